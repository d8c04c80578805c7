"""What stands in a checkpoint: lazy tensors (`handle`), several seen as one (`joined`), and what a file only names (`inert`)."""
