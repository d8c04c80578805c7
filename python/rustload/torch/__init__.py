"""For users of torch: importing this imports torch, which `import rustload` does not."""

from rustload.torch._load import load

__all__ = ["load"]
