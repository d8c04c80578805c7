"""The values of a checkpoint: lazy tensors (`handle`), joined ones (`joined`), and inert values of unknown classes (`inert`)."""
