"""Opened checkpoints: `open`, the mapping from names to lazy tensors, and streams of many tensors.

`open` opens a checkpoint; `checkpoint` has the mapping; `tensors` has what it shares with its views. `build_stream` checks the
arguments of `Checkpoint.stream` and `materialize`; `stream` has the iterator; `producers` make its tensors, on the host or on a
GPU. `names` has `names=`, `key=`, `strip=` and `rename=`.
"""
