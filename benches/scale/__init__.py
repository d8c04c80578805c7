"""What each rank of a large job reads: `python -m benches.scale`."""
