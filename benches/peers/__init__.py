"""Compares rustload with scanners and viewers of others on the same files, and writes the tables of docs/explain/peers.md.

The other tools are not installed by `make test`. Install them in an environment of their own, and name its Python:

    python3 -m venv peers && peers/bin/pip install -r requirements/peers.txt
    python -m benches.peers --peers peers/bin/python

`--quick` takes a few files of each set and writes nothing.
"""
