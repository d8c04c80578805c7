"""Benchmarks of rustload against torch and safetensors; run them with `make bench`."""
