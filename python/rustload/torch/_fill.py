"""Reads a lazy tensor into an existing tensor: directly if possible, otherwise in windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rustload._frameworks import torch as adapter
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload._tensor.handle import LazyTensor

WINDOW_BYTES = 256 << 20


def check_numbers(lazy: LazyTensor) -> None:
    """Raises for a quantized tensor, whose integers are not its numbers, as torch does.

    Raises:
        UnsupportedError: It is quantized.
    """
    if lazy.quantization is not None:
        text = f"{lazy.name!r} is quantized: its integers are numbers only together with their scale"
        note = ".dequantize() gives the numbers, .int_repr() the integers; of lazy tensors materialize(dequantize=True)"
        raise _error("DtypeUnsupported", text, note)


def is_direct(target: torch.Tensor) -> bool:
    """Whether elements can be read directly into the tensor, without a temporary tensor."""
    if type(target) not in (torch.Tensor, torch.nn.Parameter) or target.is_conj() or target.is_neg():
        return False
    return is_on_gpu(target.device) or (target.device.type == "cpu" and target.is_contiguous())


def is_on_gpu(device: torch.device) -> bool:
    """Whether the device is a CUDA GPU, to which the core copies directly."""
    return adapter.gpu_for(device) is not None


def fill(
    target: torch.Tensor,
    lazy: LazyTensor,
    window: int = WINDOW_BYTES,
    *,
    sample_memory: Callable[[], None] = lambda: None,
    **options: Any,
) -> None:
    """Writes `lazy` into `target`, cast to its dtype.

    Args:
        target: A tensor of the same shape, on any device, detached.
        lazy: What to read, already in the order of the target's dimensions.
        window: The most bytes of host memory for temporary tensors.
        sample_memory: Called at each local maximum of host memory.
        **options: `allow_lossy`, `dequantize` and `cast`, as for `LazyTensor.materialize`.
    """
    if is_direct(target):
        lazy.materialize(out=target, **options)
        sample_memory()
        return
    nbytes = target.numel() * target.dtype.itemsize
    if nbytes > window and target.ndim and type(target) is torch.Tensor:
        rows = max(1, window * target.shape[0] // nbytes)
        for first in range(0, target.shape[0], rows):
            part = first if rows == 1 else slice(first, first + rows)
            fill(target[part], lazy[part], window, sample_memory=sample_memory, **options)
        return
    made = lazy.materialize(dtype=target.dtype, copy=True, framework="torch", **options)
    sample_memory()
    with torch.no_grad():
        target.copy_(made)
