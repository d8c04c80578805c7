"""A stand-in for the part of SGLang that `rustload.sglang` extends, with the names and signatures of SGLang 0.5.23.

Tests use it where SGLang is not installed. It finds files and applies hooks as SGLang does, and does nothing else.
"""
