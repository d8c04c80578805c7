"""Decodes packed codes of quantized weights with torch, on any device, to the bits that the core decodes on the CPU.

Each step is one operation of the core's decoder in its order, in float32: the number of each code, less its zero point, times its
scale; then the offset; then one rounding to the dtype of the weight. No operation here joins two roundings, such as `addcmul`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rustload._frameworks.torch_dtypes import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rustload._cuda.packed import Codes, Scales, Tile


def decode(tile: Tile, stored: Sequence[torch.Tensor]) -> torch.Tensor:
    """The wanted elements of a tile, as a view of its decoded rows; `stored` is the bytes of each part, 1-D, on one device."""
    decoding, parts = tile.decoding, iter(stored)
    device = stored[0].device
    (start, stop), width = tile.scale_rows, decoding.width
    numbers = _unpack(decoding.codes, next(parts), tile.first, tile.last)
    scales = _scales(decoding.scales, parts, start)
    zeros = None if decoding.zeros is None else _unpack(decoding.zeros, next(parts), start, stop)
    dtype = torch_dtype(decoding.dtype)
    offsets = None if decoding.offsets is None else next(parts).view(dtype).float().view_as(scales)
    if decoding.row_index is None:
        rows = decoding.row_of_scales(torch.arange(tile.first, tile.last, device=device)) - start
    else:
        rows = _indices(parts, stop - start)
    columns = None if decoding.column_index is None else _indices(parts, decoding.scales.columns)

    def of_each(grid: torch.Tensor) -> torch.Tensor:
        """The value of each element, from a matrix as that of the scales."""
        grid = grid.index_select(0, rows)
        if columns is not None:
            return grid.index_select(1, columns)
        return grid.unsqueeze(2).expand(-1, -1, width).flatten(1)[:, : decoding.columns]

    if zeros is not None:
        numbers -= of_each(zeros)
    numbers *= of_each(scales)
    if decoding.factor is not None:
        numbers *= decoding.factor
    if offsets is not None:
        if decoding.rounds:
            numbers = numbers.to(dtype).float()
        numbers += of_each(offsets)
    return numbers.to(dtype).as_strided(*tile.layout)


def _indices(parts: Iterator[torch.Tensor], count: int) -> torch.Tensor:
    """Indices below `count`, as when they were checked: a file that is changed since must not end the use of the GPU."""
    return next(parts).view(torch.int32).clamp(0, count - 1)


def _unpack(codes: Codes, stored: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """The numbers of the codes of these rows, float32."""
    if codes.word_add:
        stored = (stored.view(torch.int32) + codes.word_add).view(torch.uint8)
    start, unit = (codes.first_row(first), codes.unit) if codes.is_across else (first, 1)
    found = torch.empty(last - start, codes.columns, dtype=torch.int32, device=stored.device)
    # One row of `filled` for each code along a word, and one plane of bytes for each byte of a period.
    if codes.is_across:
        filled, planes = found, stored.view(-1, codes.columns, unit)
    else:
        rows = stored[: (last - first) * codes.unit].view(last - first, codes.unit)
        filled, planes = found.T, rows.T.unsqueeze(2)
    count, mask = len(codes.places), (1 << codes.bits) - 1
    for code, place in enumerate(codes.places):
        row = filled[code::count]
        byte, shift = divmod(place, 8)
        plane = [
            planes[at // unit :: codes.period // unit, :, at % unit][: len(row)] for at in (byte, byte + 1)
        ]
        value = plane[0] >> shift
        if shift + codes.bits > 8:
            value = value | plane[1] << (8 - shift)
        row.copy_(value & mask)
    return _numbers(codes.numbers, found[first - start :])


def _numbers(numbers: list[float], codes: torch.Tensor) -> torch.Tensor:
    """The number of each code."""
    table = torch.tensor(numbers, dtype=torch.float32, device="cpu")
    if codes.device.type != "cpu":
        table = table.pin_memory().to(codes.device, non_blocking=True)  # without waiting for the device
    return table.index_select(0, codes.flatten()).view(codes.shape)


def _scales(scales: Scales, parts: Iterator[torch.Tensor], start: int) -> torch.Tensor:
    """The matrix of scales, float32, of which the first row is number `start` of the weight's."""
    stored = next(parts)
    if scales.numbers is not None:
        found = _numbers(scales.numbers, stored.int())
    else:
        found = stored.view(torch_dtype(scales.stored.dtype)).float()
    if scales.outer is not None:
        _, each, divides, offset = scales.outer
        first = start * scales.columns
        outer = next(parts).view(torch.float32)
        if len(outer) > 1:
            number = torch.arange(first, first + len(found), device=found.device) // each - first // each
            outer = outer.index_select(0, number)
        found = found / outer if divides else found * outer
        if offset is not None:
            found += offset
    return found.view(-1, scales.columns)
