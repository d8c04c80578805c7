"""Splits one result into pieces: what the CPU converts, in which order it is copied, and what the GPU converts.

A result that needs no conversion on the GPU is copied directly into its memory. The elements of any other result are copied in
the file's order, a few rows at a time, into a staging buffer, and the GPU casts and transposes them from there into the result.
So only the GPU's memory sees the strided access of a transpose, and it is fast at that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rustload import _rustload
from rustload._common.request import dims_of
from rustload._cuda.gpu import ITEMSIZE
from rustload._cuda.packed import decoding_of, tiles
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rustload._common.request import Cast, Request
    from rustload._cuda.packed import Tile

# Bytes of one of the two staging buffers.
STAGING_BYTES = 32 << 20

# For a smaller tensor, a cast on the CPU costs less than measuring the rate of the cast.
_CPU_CAST_MIN_BYTES = 4 << 20

_FLOATS = frozenset({"float64", "float32", "float16", "bfloat16"})
_FP8 = frozenset({"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"})
_SIGNED = ("int8", "int16", "int32", "int64")
# Casts with bit-equal results on the GPU and the CPU, NaN payloads aside, source to results: exact ones, and those that round to
# nearest even.
_GPU_CASTS = {
    **dict.fromkeys((*_FLOATS, *_FP8), _FLOATS),
    **{name: _FLOATS.union(_SIGNED[number + 1 :]) for number, name in enumerate(_SIGNED)},
    "uint8": _FLOATS.union(_SIGNED[1:]),
    "bool": _FLOATS.union(_SIGNED, ["uint8"]),
}

# Caches of `_untransposed` and `_cast_rate`.
_UNTRANSPOSED: dict[tuple[Any, ...], Request] = {}
_RATES: dict[tuple[str, str, int | None], float] = {}


class Piece(NamedTuple):
    """Elements that are copied to the GPU together.

    Attributes:
        core: What is read.
        request: How the CPU converts it.
        dtype: The dtype that is copied.
        target: The destination: a tensor, or a part of one.
        is_direct: Whether it is copied directly to `target`. Otherwise it goes into the staging buffer, from which the GPU casts
            or transposes it into `target`.
        tile: The rows of a quantized weight that the GPU decodes into `target`; the core is then that of the codes.
    """

    core: _rustload.Tensor
    request: Request
    dtype: str
    target: Any
    is_direct: bool
    tile: Tile | None = None

    @property
    def nbytes(self) -> int:
        """Its bytes in a staging buffer."""
        return self.core.size * ITEMSIZE[self.dtype] if self.tile is None else self.tile.nbytes

    def parts(self) -> Iterator[tuple[int, _rustload.Tensor, str]]:
        """What is copied to a staging buffer: where it begins in the piece's bytes, the tensor and the dtype."""
        if self.tile is None:
            yield 0, self.core, self.dtype
        else:
            for start, part in zip(self.tile.offsets, self.tile.parts, strict=True):
                yield start, part, part.dtype


def pieces(
    core: _rustload.Tensor | _rustload.Joined,
    request: Request,
    result: Any,
    cast: Cast,
    rate: Callable[[], float],
) -> Iterator[Piece]:
    """The pieces of a result with at least one element, for a framework that converts on the GPU.

    Args:
        core: What is read.
        request: How to make the result.
        result: The result, a tensor with memory.
        cast: Whether the CPU or the GPU casts, as in `LazyTensor.materialize`.
        rate: Returns the rate of H2D copies in bytes per second.
    """
    if isinstance(core, _rustload.Tensor):
        yield from _pieces_of_tensor(core, request, result, cast, rate)
        return
    parts = core.parts()
    if len(parts) == 1:
        yield from _pieces_of_tensor(parts[0], request, result, cast, rate)
        return
    order = dims_of(request.transpose, len(core.shape))
    for part, offsets in zip(parts, core.offsets(), strict=True):
        if part.size:
            target = result
            for at, dim in enumerate(order):
                target = target.narrow(at, offsets[dim], part.shape[dim])
            yield from _pieces_of_tensor(part, request, target, cast, rate)


def _pieces_of_tensor(
    core: _rustload.Tensor, request: Request, target: Any, cast: Cast, rate: Callable[[], float]
) -> Iterator[Piece]:
    result_dtype = request.dtype or core.dtype
    order = dims_of(request.transpose, len(core.shape))
    # Only the CPU dequantizes, and only it expands broadcast tensors (stride 0), up to `Limits.materialize_bytes`.
    cpu_only = request.dequantize or any(
        stride == 0 and size > 1 for size, stride in zip(core.shape, core.strides, strict=True)
    )
    if cast == "cpu" or cpu_only:
        yield from _cpu_pieces(core, request, result_dtype, target)
        return
    core = core.permute(order)
    order_in_file = _memory_order(core.shape, core.strides)
    if (packed := _packed_pieces(core, request, target, order_in_file)) is not None:
        yield from packed
        return
    on_gpu = result_dtype != core.dtype and _casts_on_gpu(core, result_dtype, cast, request.threads, rate)
    if order_in_file is None and not on_gpu:
        yield from _cpu_pieces(core, _untransposed(request, request.dtype), result_dtype, target)
        return
    if order_in_file is not None:
        core, target = core.permute(order_in_file), target.permute(order_in_file)
    dtype = core.dtype if on_gpu else result_dtype
    untransposed = _untransposed(request, dtype)
    for part, destination in _staging_parts(core, target, ITEMSIZE[dtype]):
        yield Piece(part, untransposed, dtype, destination, is_direct=False)


def _packed_pieces(
    core: _rustload.Tensor, request: Request, target: Any, order_in_file: list[int] | None
) -> list[Piece] | None:
    """The pieces of a quantized weight that the GPU decodes; None for others, and where fewer bytes travel if the CPU decodes."""
    result_dtype = request.dtype or core.dtype
    decoding = decoding_of(core) if result_dtype in _GPU_CASTS.get(core.dtype, ()) else None
    if decoding is None:
        return None
    order = order_in_file or list(range(len(core.shape)))
    found = tiles(decoding, core.permute(order), target.permute(order), STAGING_BYTES)
    if found is None or not _is_less_packed([tile for tile, _ in found], core, result_dtype):
        return None
    as_stored = _untransposed(request, None)
    return [
        Piece(tile.parts[0], as_stored, tile.parts[0].dtype, destination, is_direct=False, tile=tile)
        for tile, destination in found
    ]


def _is_less_packed(tiles: list[Tile], core: _rustload.Tensor, result_dtype: str) -> bool:
    """Whether fewer bytes are copied if the GPU decodes than if the CPU does."""
    decoded = core.size * min(ITEMSIZE[core.dtype], ITEMSIZE[result_dtype])
    return sum(part.nbytes for tile in tiles for part in tile.parts) < decoded


def _cpu_pieces(core: _rustload.Tensor, request: Request, dtype: str, target: Any) -> Iterator[Piece]:
    """The pieces of a tensor that the CPU converts: directly, or through staging buffers into a strided `out=`."""
    if target.is_contiguous():
        yield Piece(core, request, dtype, target, is_direct=True)
        return
    if request.transpose not in (None, False):
        core, request = (
            core.permute(dims_of(request.transpose, len(core.shape))),
            _untransposed(request, request.dtype),
        )
    for part, destination in _staging_parts(core, target, ITEMSIZE[dtype]):
        yield Piece(part, request, dtype, destination, is_direct=False)


def _untransposed(request: Request, dtype: str | None) -> Request:
    """`request` without its transpose and with this dtype; equal arguments give the same object."""
    key = (dtype, request.allow_lossy, request.dequantize, request.overflow, request.threads)
    found = _UNTRANSPOSED.get(key)
    if found is None:
        found = request.but(dtype=dtype, transpose=None, copy=True)
        found = _UNTRANSPOSED.setdefault(key, found)
    return found


def _memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """The dimensions by decreasing stride, outermost first; None if they are in that order already."""
    long_dims = [dim for dim, size in enumerate(shape) if size > 1]
    by_stride = sorted(long_dims, key=lambda dim: -strides[dim])
    if by_stride == long_dims:
        return None
    return [dim for dim, size in enumerate(shape) if size <= 1] + by_stride


def _casts_on_gpu(
    core: _rustload.Tensor, result: str, cast: Cast, threads: int | None, rate: Callable[[], float]
) -> bool:
    """Whether the GPU casts, rather than the CPU."""
    source = core.dtype
    if result not in _GPU_CASTS.get(source, ()):
        return False
    if cast == "gpu" or ITEMSIZE[result] > ITEMSIZE[source]:
        return True
    # For a narrowing cast, the CPU casts unless it is slower than the H2D copies: the copies are then only as long as the result.
    # The rate is that of reading and casting, with the threads that an upload uses.
    return core.nbytes >= _CPU_CAST_MIN_BYTES and _cast_rate(source, result, threads) <= rate()


def cpu_casts_below(cast: Cast, *, can_convert: bool) -> int:
    """The CPU casts tensors of fewer bytes to narrower dtypes, whatever its rate and the dtypes."""
    if cast == "cpu" or not can_convert:
        return 1 << 62
    return 0 if cast == "gpu" else _CPU_CAST_MIN_BYTES


def _cast_rate(source: str, result: str, threads: int | None) -> float:
    """The rate of the CPU's cast in bytes of source per second, measured once."""
    key = (source, result, threads)
    if key not in _RATES:
        _RATES[key] = _rustload.cast_rate(source, result, threads)
    return _RATES[key]


def _staging_parts(
    core: _rustload.Tensor, target: Any, itemsize: int
) -> Iterator[tuple[_rustload.Tensor, Any]]:
    """Cuts a tensor along its outer dimensions into parts that fit a staging buffer; yields each with its part of `target`."""
    if core.size * itemsize <= STAGING_BYTES:
        yield core, target
        return
    count = core.shape[0]
    rows = STAGING_BYTES * count // (core.size * itemsize)
    if rows == 0:
        for number in range(count):
            yield from _staging_parts(core.index(number), target[number], itemsize)
        return
    for first in range(0, count, rows):
        part = slice(first, first + rows)
        yield core.index(part), target[part]


def cpu_only_pieces(
    core: _rustload.Tensor | _rustload.Joined, request: Request, buffer: _rustload.Buffer
) -> Iterator[tuple[_rustload.Tensor, Request, _rustload.Buffer]]:
    """The pieces of a result for a framework that does not convert on the GPU; the CPU converts all of them.

    Raises:
        UnsupportedError: Tensors are joined along a dimension that is not the outermost: parts are not contiguous.
    """
    if isinstance(core, _rustload.Tensor):
        yield core, request, buffer
        return
    order = dims_of(request.transpose, len(core.shape))
    itemsize = ITEMSIZE[request.dtype or core.dtype]
    for part, offsets in zip(core.parts(), core.offsets(), strict=True):
        # Its elements are neighbours in the result if only one dimension, and those of size 1 around it, are not whole.
        is_inside = False
        start, stride = 0, itemsize
        for dim in reversed(order):
            if is_inside and part.shape[dim] > 1:
                note = "framework='torch' can; or join along the first dimension"
                raise _error(
                    "DtypeUnsupported", "a joined tensor is uploaded along its first dimension", note
                )
            is_inside = is_inside or part.shape[dim] < core.shape[dim]
            start += offsets[dim] * stride
            stride *= core.shape[dim]
        if part.size:
            yield part, request, buffer.part(start, "uint8", [part.size * itemsize])
