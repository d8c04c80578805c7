"""What a GPU machine has to show: correctness on the device, probes of the link, times beside other loaders. `run.py` does it."""
