"""A stand-in for the base class of torchtitan's state dict adapters, with the names and signatures of torchtitan 0.3.

Tests use it where torchtitan is not installed.
"""
