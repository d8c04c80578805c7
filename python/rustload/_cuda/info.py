"""`cuda_info`: the CUDA driver and GPUs that this process can use."""

from __future__ import annotations

from typing import Any

from rustload import _rustload


def cuda_info() -> dict[str, Any]:
    """The CUDA driver and GPUs that rustload finds. Never raises, and creates no CUDA context.

    It initializes the driver: later changes of `CUDA_VISIBLE_DEVICES` have no effect on this process, and processes forked
    from it cannot use CUDA.

    >>> import rustload
    >>> sorted(rustload.cuda_info())
    ['available', 'devices', 'driver', 'library', 'reason']

    Returns:
        `available`: whether tensors can be copied to a GPU. `reason`: why not, or None. `library`: the driver library that
        was loaded. `driver`: the newest CUDA version that it supports, such as `"13.0"`. `devices`: the number of GPUs
        that are visible to this process.
    """
    return _rustload.cuda_info()
