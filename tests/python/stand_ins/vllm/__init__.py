"""A stand-in for the part of vLLM that `rustload.vllm` extends, with the names and signatures of vLLM 0.33.

Tests use it where vLLM is not installed. It finds files and hands weights to a model as vLLM does, and does nothing else.
"""
