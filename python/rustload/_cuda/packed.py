"""Quantized weights of which the packed codes are copied to a GPU, and decoded there: what is copied for some rows of a weight.

The core says what a weight is decoded from as plain data, with no formula of a scheme (`_rustload.Tensor.decoding`). A weight is
cut into tiles of whole rows of codes, each with the scales, zero points and indices that belong to them, so that what the GPU
needs beside the result and the staging buffers has a bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rustload._cuda.gpu import ITEMSIZE
from rustload._cuda.slabs import aligned

if TYPE_CHECKING:
    from rustload import _rustload

# The most elements that are decoded at once. The GPU needs less than 20 bytes for each.
TILE_ELEMENTS = 4 << 20


class Codes(NamedTuple):
    """A matrix of packed codes.

    Attributes:
        stored: The stored tensor, 1-D, as those of all parts.
        columns: Its columns.
        unit: Bytes of a row; if `is_across`, of a word that has codes of several rows.
        is_across: Whether words have codes of several rows, a word for each column.
        bits: The bits of a code.
        period: The order of codes repeats after so many bytes.
        places: The first bit of each code of a period.
        word_add: Added to each 32-bit word first.
        numbers: The number of each code.
    """

    stored: _rustload.Tensor
    columns: int
    unit: int
    is_across: bool
    bits: int
    period: int
    places: list[int]
    word_add: int
    numbers: list[float]

    def first_row(self, row: int) -> int:
        """The first row in the word, or words, of a row."""
        return row // len(self.places) * len(self.places) if self.is_across else row

    def part(self, first: int, last: int) -> _rustload.Tensor:
        """The bytes of these rows, in whole words."""
        if not self.is_across:
            return _part(self.stored, first * self.unit, last * self.unit)
        words = self.period // self.unit * self.columns * self.unit
        count = len(self.places)
        return _part(self.stored, first // count * words, -(-last // count) * words)


class Outer(NamedTuple):
    """What scales are multiplied by, or divided by: one number for `each` so many of them; and what is added then."""

    stored: _rustload.Tensor
    each: int
    divides: bool
    offset: float | None


class Scales(NamedTuple):
    """A matrix of scales: numbers, or the bytes of `numbers`, with factors of their own."""

    stored: _rustload.Tensor
    columns: int
    numbers: list[float] | None
    outer: Outer | None


class Decoding(NamedTuple):
    """What a quantized weight is decoded from.

    Attributes:
        rows: Rows of the matrix in the order of its codes.
        columns: Its columns.
        dtype: The dtype that each product is rounded to.
        codes: The codes.
        scales: The scales.
        zeros: Zero points, a matrix as that of the scales.
        height: Rows of codes that share a row of scales,
        matrix: among each so many rows,
        scale_rows: which have so many rows of scales.
        width: Columns of codes that share a scale.
        row_index: The row of scales of each row of codes, where they are in another order.
        column_index: The column of scales of each column of codes.
        factor: A factor for all products.
        offsets: A matrix as that of the scales, added to the products.
        rounds: Whether a product is rounded before its offset is added.
    """

    rows: int
    columns: int
    dtype: str
    codes: Codes
    scales: Scales
    zeros: Codes | None
    height: int
    matrix: int
    scale_rows: int
    width: int
    row_index: _rustload.Tensor | None
    column_index: _rustload.Tensor | None
    factor: float | None
    offsets: _rustload.Tensor | None
    rounds: bool

    def row_of_scales(self, row: Any) -> Any:
        """That of a row of codes, or of a tensor of such rows."""
        return row // self.matrix * self.scale_rows + row % self.matrix // self.height


class Tile(NamedTuple):
    """Rows of a weight, and the elements that are wanted of them.

    Attributes:
        decoding: What the weight is decoded from.
        first: The first row of codes.
        last: The row after the last.
        scale_rows: The first row of the scales that these rows have, and the one after the last.
        parts: The stored elements that are copied: codes, scales, then in this order, where the weight has them, factors of
            scales, zero points, offsets, and indices of rows and of columns.
        offsets: Where each part begins in a staging buffer.
        nbytes: Bytes of all parts there.
        layout: Shape, strides and offset of the elements in the decoded rows.
    """

    decoding: Decoding
    first: int
    last: int
    scale_rows: tuple[int, int]
    parts: list[_rustload.Tensor]
    offsets: list[int]
    nbytes: int
    layout: tuple[tuple[int, ...], tuple[int, ...], int]

    def fits(self, max_bytes: int) -> bool:
        """Whether its parts fit so many bytes, and its rows and their scales the bound of a tile."""
        start, stop = self.scale_rows
        scales = (stop - start) * self.decoding.scales.columns
        elements = (self.last - self.first) * self.decoding.columns
        return max(elements, scales) <= TILE_ELEMENTS and self.nbytes <= max_bytes


def tiles(
    decoding: Decoding, core: _rustload.Tensor, target: Any, max_bytes: int
) -> list[tuple[Tile, Any]] | None:
    """Cuts a quantized weight, or a part of one, into tiles of at most `max_bytes`; each with its part of `target`.

    The dimensions of `core` are by decreasing stride.

    Returns:
        None for what only the CPU decodes: elements in another order, rows that are longer than a tile.
    """
    if any(stride <= 0 < size - 1 for size, stride in zip(core.shape, core.strides, strict=True)):
        return None
    found: list[tuple[Tile, Any]] = []
    todo = [(core, target)]
    while todo:
        part, destination = todo.pop()
        tile = _tile(decoding, part)
        if tile.fits(max_bytes):
            found.append((tile, destination))
        elif tile.last - tile.first == 1:
            return None
        else:
            dim = next(dim for dim, size in enumerate(part.shape) if size > 1)
            half = part.shape[dim] // 2
            for key in (slice(half, None), slice(half)):
                keys = (*[slice(None)] * dim, key)
                todo.append((part.index(keys), destination[keys]))
    return found


def decoding_of(core: _rustload.Tensor) -> Decoding | None:
    """What a quantized weight is decoded from; None for other tensors."""
    found: Any = core.decoding()
    if found is None:
        return None
    *weight, codes, (*scales, outer), zeros, groups, indices, factor, offsets = found
    of_scales = Scales._make([*scales, None if outer is None else Outer(*outer)])
    of_zeros = None if zeros is None else Codes(*zeros)
    last = [*groups, *indices, factor, *(offsets or (None, False))]
    return Decoding._make([*weight, Codes(*codes), of_scales, of_zeros, *last])


def _tile(decoding: Decoding, core: _rustload.Tensor) -> Tile:
    """The tile of all rows that have an element of `core`."""
    columns, codes, scales = decoding.columns, decoding.codes, decoding.scales
    end = core.offset + sum(
        (size - 1) * stride for size, stride in zip(core.shape, core.strides, strict=True)
    )
    first, last = core.offset // columns, end // columns + 1
    start, stop = decoding.row_of_scales(first), decoding.row_of_scales(last - 1) + 1
    if decoding.row_index is not None:
        start, stop = 0, decoding.scale_rows
    scale_first, scale_last = start * scales.columns, stop * scales.columns
    parts = [codes.part(first, last), _elements(scales.stored, scale_first, scale_last)]
    if scales.outer is not None:
        each = scales.outer.each
        parts.append(_elements(scales.outer.stored, scale_first // each, -(-scale_last // each)))
    if decoding.zeros is not None:
        parts.append(decoding.zeros.part(start, stop))
    if decoding.offsets is not None:
        parts.append(_elements(decoding.offsets, scale_first, scale_last))
    if decoding.row_index is not None:
        parts.append(_elements(decoding.row_index, first, last))
    if decoding.column_index is not None:
        parts.append(decoding.column_index)
    offsets, nbytes = [], 0
    for part in parts:
        offsets.append(nbytes)
        nbytes = aligned(nbytes + part.nbytes)
    layout = (tuple(core.shape), tuple(core.strides), core.offset - first * columns)
    return Tile(decoding, first, last, (start, stop), parts, offsets, nbytes, layout)


def _part(stored: _rustload.Tensor, first: int, last: int) -> _rustload.Tensor:
    """The elements that have these bytes."""
    item = ITEMSIZE[stored.dtype]
    return _elements(stored, first // item, -(-last // item))


def _elements(stored: _rustload.Tensor, first: int, last: int) -> _rustload.Tensor:
    return stored.index(slice(first, last))
