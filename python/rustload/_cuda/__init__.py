"""Tensors in the memory of NVIDIA GPUs: what is uploaded where, and what the GPU does with it.

`_rustload.Upload` reads, casts and copies. Here is decided what it copies: straight into the result, or, where the GPU casts or
transposes, through a panel (`_split`). `_uploads` keeps copies going ahead of whoever takes the results. A `Place` is one GPU as
one framework sees it; `_torch` is the layer that a test without a GPU cannot run.
"""

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
