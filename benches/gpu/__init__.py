"""The suite for a GPU machine: correctness on the device, link bandwidth, times beside other loaders. `run.py` runs it."""
