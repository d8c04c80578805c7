"""Elements of a lazy tensor put into memory that is there: whole where it can be read straight, in windows where it cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rustload._frameworks import torch as adapter
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload._tensor.handle import LazyTensor

__all__ = ["WINDOW", "check_numbers", "fill", "is_on_gpu", "is_straight"]

WINDOW = 256 << 20


def check_numbers(lazy: LazyTensor) -> None:
    """Refuses to take the integers of a quantized tensor for its numbers, as torch does.

    Raises:
        UnsupportedError: It is quantized.
    """
    if lazy.quantization is not None:
        text = f"{lazy.name!r} is quantized: its integers mean numbers together with their scale only"
        note = ".dequantize() gives the numbers, .int_repr() the integers; of lazy tensors materialize(dequantize=True)"
        raise _make("Unsupported", "DtypeUnsupported", text, note)


def is_straight(target: torch.Tensor) -> bool:
    """Whether the elements can be read into it with no more memory between than an upload has."""
    if type(target) not in (torch.Tensor, torch.nn.Parameter) or target.is_conj() or target.is_neg():
        return False
    return is_on_gpu(target.device) or (target.device.type == "cpu" and target.is_contiguous())


def is_on_gpu(device: torch.device) -> bool:
    """Whether results go there by upload."""
    return adapter.place(device) is not None


def fill(
    target: torch.Tensor,
    lazy: LazyTensor,
    window: int = WINDOW,
    *,
    allow_lossy: bool = False,
    held: Callable[[], None] = lambda: None,
) -> None:
    """Writes `lazy` into `target`, cast to its dtype.

    Args:
        target: A tensor of the same shape, on any device, detached.
        lazy: What to read, already in the order of the target's dimensions.
        window: Bytes of host memory that may be held on the way.
        allow_lossy: As for `LazyTensor.materialize`.
        held: Called when the most memory is held.
    """
    if is_straight(target):
        lazy.materialize(out=target, allow_lossy=allow_lossy)
        held()
        return
    nbytes = target.numel() * target.dtype.itemsize
    if nbytes > window and target.ndim and type(target) is torch.Tensor:
        rows = max(1, window * target.shape[0] // nbytes)
        for first in range(0, target.shape[0], rows):
            one = rows == 1
            place = first if one else slice(first, first + rows)
            fill(target[place], lazy[place], window, allow_lossy=allow_lossy, held=held)
        return
    part = lazy.materialize(dtype=target.dtype, copy=True, framework="torch", allow_lossy=allow_lossy)
    held()
    with torch.no_grad():
        target.copy_(part)
