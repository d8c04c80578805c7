"""Instruction counts of parsers and kernels, which do not depend on the machine's load; `make counts` runs them."""
