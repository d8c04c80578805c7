"""Loads a sharded model on several ranks: `python -m benches.ranks`."""
