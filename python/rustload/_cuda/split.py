"""How one result is put together: what the CPU makes of a tensor, in which order it goes up, and what the GPU does with it.

A result that needs nothing of the GPU is uploaded straight into its memory. Of the others the elements go up in the file's
order, a few rows at a time, and the GPU puts them where they belong: so it is a transpose to the GPU's memory alone, which is
fast at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rustload import _rustload
from rustload._cuda.place import ITEMSIZE
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rustload._common.request import Cast, Wanted

__all__ = ["PANEL", "Piece", "pieces", "straight_pieces"]

# Bytes of one of the two panels.
PANEL = 32 << 20

# Below this a cast on the CPU costs less than finding out how fast it is.
_SMALL = 4 << 20

_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
_EIGHTS = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"})
_SIGNED = ("int8", "int16", "int32", "int64")
# What becomes what on a GPU with the same bits as on the CPU: whatever has one right answer, or rounds to nearest even.
_ON_GPU = {
    **dict.fromkeys((*_FLOATS, *_EIGHTS), _FLOATS),
    **{name: _FLOATS.union(_SIGNED[number + 1 :]) for number, name in enumerate(_SIGNED)},
    "uint8": _FLOATS.union(_SIGNED[1:]),
    "bool": _FLOATS.union(_SIGNED, ["uint8"]),
}

# What `_plain` and `_cast_rate` found before.
_PLAIN: dict[tuple[Any, ...], Wanted] = {}
_RATES: dict[tuple[str, str, int | None], float] = {}


class Piece(NamedTuple):
    """Elements that go up together.

    Attributes:
        core: What is read.
        wanted: What the CPU makes of it.
        dtype: What goes up.
        target: Where it belongs: a tensor, or a part of one.
        is_straight: Whether it goes there by itself. Otherwise the GPU casts it or orders it.
    """

    core: _rustload.Tensor
    wanted: Wanted
    dtype: str
    target: Any
    is_straight: bool


def pieces(
    core: _rustload.Tensor | _rustload.Joined,
    wanted: Wanted,
    made: Any,
    cast: Cast,
    rate: Callable[[], float],
) -> Iterator[Piece]:
    """The pieces of a result that has elements, for a framework that computes on the GPU.

    Args:
        core: What is read.
        wanted: How the result is wanted.
        made: The result, a tensor with memory.
        cast: Who casts.
        rate: How fast the GPU is fed, in bytes per second.
    """
    if isinstance(core, _rustload.Tensor):
        yield from _of_one(core, wanted, made, cast, rate)
        return
    parts = core.parts()
    if len(parts) == 1:
        yield from _of_one(parts[0], wanted, made, cast, rate)
        return
    dim = dims_of(wanted, len(core.shape)).index(core.dim)
    at = 0
    for part in parts:
        size = part.shape[core.dim]
        if part.size:
            yield from _of_one(part, wanted, made.narrow(dim, at, size), cast, rate)
        at += size


def _of_one(
    core: _rustload.Tensor, wanted: Wanted, target: Any, cast: Cast, rate: Callable[[], float]
) -> Iterator[Piece]:
    result = wanted.dtype or core.dtype
    order = dims_of(wanted, len(core.shape))
    # The CPU alone makes numbers of a quantized tensor, and of repeated elements as many as a limit allows.
    computed = wanted.dequantize or any(
        stride == 0 and size > 1 for size, stride in zip(core.shape, core.strides, strict=True)
    )
    if cast == "cpu" or computed:
        yield from _straight(core, wanted, result, target)
        return
    core = core.permute(order)
    lies = _as_it_lies(core.shape, core.strides)
    on_gpu = result != core.dtype and _is_for_gpu(core, result, cast, wanted.threads, rate)
    if lies is None and not on_gpu:
        yield from _straight(core, _plain(wanted, wanted.dtype), result, target)
        return
    if lies is not None:
        core, target = core.permute(lies), target.permute(lies)
    dtype = core.dtype if on_gpu else result
    plain = _plain(wanted, dtype)
    for part, place in _panels(core, target, ITEMSIZE[dtype]):
        yield Piece(part, plain, dtype, place, is_straight=False)


def _straight(core: _rustload.Tensor, wanted: Wanted, dtype: str, target: Any) -> Iterator[Piece]:
    """The CPU makes it as it is wanted; memory with gaps, which may have been given, gets it through panels."""
    if target.is_contiguous():
        yield Piece(core, wanted, dtype, target, is_straight=True)
        return
    if wanted.transpose not in (None, False):
        core, wanted = core.permute(dims_of(wanted, len(core.shape))), _plain(wanted, wanted.dtype)
    for part, place in _panels(core, target, ITEMSIZE[dtype]):
        yield Piece(part, wanted, dtype, place, is_straight=False)


def _plain(wanted: Wanted, dtype: str | None) -> Wanted:
    """`wanted` in the order that the tensor has, as another dtype; the same object for equal ones."""
    key = (dtype, wanted.allow_lossy, wanted.dequantize, wanted.overflow, wanted.threads)
    found = _PLAIN.get(key)
    if found is None:
        found = wanted.but(dtype=dtype, transpose=None, copy=True)
        found = _PLAIN.setdefault(key, found)
    return found


def dims_of(wanted: Wanted, ndim: int) -> list[int]:
    """The dimensions of the tensor in the order of the result's."""
    if wanted.transpose in (None, False):
        return list(range(ndim))
    if wanted.transpose is True:
        return [*range(ndim - 2), ndim - 1, ndim - 2]
    dims: Sequence[int] = wanted.transpose  # type: ignore[assignment]  # neither None nor a bool
    return [dim + ndim if dim < 0 else dim for dim in dims]


def _as_it_lies(shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """The order in which the dimensions lie in the file, outermost first; None where that is the order they have."""
    real = [dim for dim, size in enumerate(shape) if size > 1]
    lies = sorted(real, key=lambda dim: -strides[dim])
    if lies == real:
        return None
    return [dim for dim, size in enumerate(shape) if size <= 1] + lies


def _is_for_gpu(
    core: _rustload.Tensor, result: str, cast: Cast, threads: int | None, rate: Callable[[], float]
) -> bool:
    """Whether the GPU casts."""
    source = core.dtype
    if result not in _ON_GPU.get(source, ()):
        return False
    if cast == "gpu" or ITEMSIZE[result] > ITEMSIZE[source]:
        return True
    # The CPU may cast if that is no slower than the copies that it feeds, which then are as short as the result.
    return core.nbytes >= _SMALL and _cast_rate(source, result, threads) <= rate()


def _cast_rate(source: str, result: str, threads: int | None) -> float:
    """Bytes of source that the CPU casts in a second, measured once."""
    key = (source, result, threads)
    if key not in _RATES:
        _RATES[key] = _rustload.cast_rate(source, result, threads)
    return _RATES[key]


def _panels(core: _rustload.Tensor, target: Any, itemsize: int) -> Iterator[tuple[_rustload.Tensor, Any]]:
    """Parts of a tensor that fit a panel, along its outer dimensions, and their places."""
    if core.size * itemsize <= PANEL:
        yield core, target
        return
    count = core.shape[0]
    rows = PANEL * count // (core.size * itemsize)
    if rows == 0:
        for number in range(count):
            yield from _panels(core.index(number), target[number], itemsize)
        return
    for first in range(0, count, rows):
        part = slice(first, first + rows)
        yield core.index(part), target[part]


def straight_pieces(
    core: _rustload.Tensor | _rustload.Joined, wanted: Wanted, buffer: _rustload.Buffer
) -> Iterator[tuple[_rustload.Tensor, Wanted, _rustload.Buffer]]:
    """The pieces of a result for a framework that does not compute on the GPU: all is made on the CPU.

    Raises:
        UnsupportedError: Tensors are joined along another than the outermost dimension, so that their parts lie scattered.
    """
    if isinstance(core, _rustload.Tensor):
        yield core, wanted, buffer
        return
    order = dims_of(wanted, len(core.shape))
    parts = core.parts()
    if len(parts) > 1 and any(core.shape[dim] > 1 for dim in order[: order.index(core.dim)]):
        note = "framework='torch' can; or join along the first dimension"
        raise _make(
            "Unsupported", "DtypeUnsupported", "a joined tensor is uploaded along its first dimension", note
        )
    itemsize = ITEMSIZE[wanted.dtype or core.dtype]
    at = 0
    for part in parts:
        nbytes = part.size * itemsize
        if nbytes:
            yield part, wanted, buffer.part(at, "uint8", [nbytes])
        at += nbytes
