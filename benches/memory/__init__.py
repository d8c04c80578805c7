"""Measures memory over time while stock loaders and rustload load one model; `make memory` runs it."""
