"""`cuda_info`: what this process has of CUDA."""

from __future__ import annotations

from typing import Any

from rustload import _rustload

__all__ = ["cuda_info"]


def cuda_info() -> dict[str, Any]:
    """What rustload finds of CUDA; never fails, and makes no context on any GPU.

    >>> import rustload
    >>> sorted(rustload.cuda_info())
    ['available', 'devices', 'driver', 'library', 'reason']

    Returns:
        `available`: whether tensors can be uploaded. `reason`: why not, or None. `library`: the driver's library that was
        loaded. `driver`: the newest CUDA version that it has, such as `"13.0"`. `devices`: how many GPUs it shows this
        process.
    """
    return _rustload.cuda_info()
