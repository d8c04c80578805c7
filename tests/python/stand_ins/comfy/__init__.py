"""A stand-in for what ComfyUI does with a state dict: it looks at tensors and takes them out of the dict.

Tests use it where ComfyUI is not on the path.
"""
