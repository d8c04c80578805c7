"""Elements of a lazy tensor put into memory that is there: whole where it can be read straight, in windows where it cannot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import torch

from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload._tensor import LazyTensor

__all__ = ["WINDOW", "fill", "is_straight", "window_of"]

WINDOW = 256 << 20


def window_of(memory: str | int) -> int:
    """`memory=` in bytes.

    Args:
        memory: Bytes, or a text such as "256MiB" or "1GB".

    Raises:
        ValueError: It is no such text, or less than 1 MiB.
        TypeError: It is neither text nor number.
    """
    if isinstance(memory, bool) or not isinstance(memory, (str, int)):
        raise _make(
            "Type", "Type", f"memory= is a number of bytes or a text such as '256MiB', not {memory!r}"
        )
    if isinstance(memory, str):
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", memory.lower())
        if found is None:
            raise _make("Value", "Value", f"memory={memory!r} is not a size such as '256MiB'")
        number, unit, binary = found.groups()
        memory = int(float(number) * (1024 if binary else 1000) ** " kmgt".index(unit or " "))
    if memory < 1 << 20:
        raise _make("Value", "Value", f"memory={memory} bytes is less than the 1 MiB that a window needs")
    return memory


def is_straight(target: torch.Tensor) -> bool:
    """Whether the elements can be read into it with no memory between."""
    plain = type(target) in (torch.Tensor, torch.nn.Parameter)
    return (
        plain
        and target.device.type == "cpu"
        and target.is_contiguous()
        and not (target.is_conj() or target.is_neg())
    )


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
