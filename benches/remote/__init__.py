"""Reads checkpoints from a web server with a limited rate, and from a source that sleeps: `python -m benches.remote`."""
