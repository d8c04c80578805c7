"""Converts a distributed checkpoint: `python -m benches.dcp`."""
