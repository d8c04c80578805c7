"""A stand-in for TensorRT-LLM's checkpoint and weight loaders, with the names and signatures that its source had on 2026-11-26.

Tests use it where TensorRT-LLM is not installed.
"""
