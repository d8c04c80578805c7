"""Instructions of parsers and kernels, which do not move with the load of a machine; `make counts` counts them."""
