"""Writes safetensors files: `save` and `Writer`."""
