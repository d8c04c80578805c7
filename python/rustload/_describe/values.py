"""The numbers of a tensor or a slice of one, as text: of a large one its edges, which are all that is read."""

from __future__ import annotations

import itertools
import math
import re
import struct
import sys
from typing import TYPE_CHECKING, Any

from rustload._common.request import Request
from rustload._tensor.scalar import wide_dtype
from rustload.errors import _error

if TYPE_CHECKING:
    from rustload._tensor.handle import LazyTensor

Number = bool | int | float | complex

WHOLE_MAX = 1000
"""The most elements of a tensor of which all are shown."""
EDGE = 3
"""The elements at each end of a dimension of a larger one."""
DIMENSIONS_MAX = 6
"""The most dimensions of a larger one; the numbers shown are 6 to the power of this at most."""

_INDEX = re.compile(r"\s*([+-]?[0-9]{1,18})?\s*(:)?\s*([+-]?[0-9]{1,18})?\s*(:)?\s*([+-]?[0-9]{1,18})?\s*")


def split_index(text: str) -> tuple[str, str | None]:
    """`name[:2, 0]` as the name or pattern and the text of the index; None if it has none.

    >>> split_index("layers.*[:2, ...]"), split_index("layers.[0-9]")
    (('layers.*', ':2, ...'), ('layers.[0-9]', None))
    """
    name, bracket, index = text.rpartition("[")
    if bracket and index.endswith("]") and parse_index(index[:-1]) is not None:
        return name, index[:-1]
    return text, None


def parse_index(text: str) -> tuple[Any, ...] | None:
    """The index of numbers, slices and `...` that a text is, as in NumPy; None if it is none."""
    found: list[Any] = []
    for part in text.split(","):
        if part.strip() == "...":
            found.append(...)
            continue
        match = _INDEX.fullmatch(part)
        if match is None or not part.strip():
            return None
        start, colon, stop, second, step = match.groups()
        if colon is None:
            if start is None or stop or step:
                return None
            found.append(int(start))
        elif step is not None and second is None:
            return None
        else:
            found.append(slice(*(None if end is None else int(end) for end in (start, stop, step))))
    return tuple(found)


def is_packed(dtype: str) -> bool:
    """Whether elements of the dtype are bits, not numbers."""
    return dtype.startswith(("bits", "float4"))


def numbers_of(tensor: LazyTensor, *, dequantize: bool) -> list[Number]:
    """Reads all elements as Python numbers, in C order.

    Raises:
        RustloadError: As for `LazyTensor.materialize`.
    """
    dtype, code = ("float64", "d") if dequantize and tensor._is_scaled() else wide_dtype(tensor.dtype)
    # Not by `LazyTensor.materialize`, which warns of codes that are shown as they are.
    buffer = tensor._core.materialize(
        Request(dtype=dtype, copy=True, allow_lossy=True, dequantize=dequantize)
    )
    data = memoryview(buffer).tobytes()
    if code == "dd":
        return [complex(*pair) for pair in struct.iter_unpack("=dd", data)]
    return [number for (number,) in struct.iter_unpack(f"={code}", data)]


def show_numbers(tensor: LazyTensor, columns: int, *, dequantize: bool) -> list[str]:
    """The numbers as lines of nested brackets; of more than 1,000, three at each end of every dimension.

    Floats have four digits, or three if each row then fits a line.

    Args:
        tensor: The tensor.
        columns: The width to which rows are wrapped.
        dequantize: Whether quantized ones are the numbers that they stand for.

    Raises:
        RustloadError: As for `LazyTensor.materialize`.
        ValueError: A large one has more than six dimensions.
    """
    shape = tuple(tensor.shape)
    total = math.prod(shape)
    if total == 0:
        return ["[]"]
    if len(shape) > DIMENSIONS_MAX and total > WHOLE_MAX:
        text = f"{tensor.name!r} has {len(shape)} dimensions and {total:,} elements, too many to show"
        raise _error("Value", text, "select some of them: name[0, :2]")
    cuts = [_cut(size) if total > WHOLE_MAX else [slice(0, size)] for size in shape]
    cells: dict[tuple[int, ...], Number] = {}
    for block in itertools.product(*cuts):
        numbers = numbers_of(tensor[block] if block else tensor, dequantize=dequantize)
        places = itertools.product(*(range(part.start, part.stop) for part in block))
        cells.update(zip(places, numbers, strict=True))
    numbers = [cells[place] for place in sorted(cells)]
    if not shape:
        return _texts(numbers, 4)
    lines, whole = _rows(_texts(numbers, 4), cuts, columns), len(_rows(_texts(numbers, 4), cuts, sys.maxsize))
    shorter = _rows(_texts(numbers, 3), cuts, columns) if len(lines) > whole else lines
    return shorter if len(shorter) == whole else lines


def _cut(size: int) -> list[slice]:
    """The ranges of a dimension that are shown: of a long one its edges."""
    return [slice(0, EDGE), slice(size - EDGE, size)] if size > 2 * EDGE else [slice(0, size)]


def _texts(numbers: list[Number], digits: int) -> list[str]:
    """The numbers with so many digits, to the right of one column; integers and bools as they are."""
    texts = [f"{one:.{digits}g}" if isinstance(one, (float, complex)) else str(one) for one in numbers]
    width = max(map(len, texts))
    return [one.rjust(width) for one in texts]


def _rows(texts: list[str], cuts: list[list[slice]], columns: int) -> list[str]:
    """The rows in nested brackets, with `...` where elements are left out."""
    *outer, inner = (sum(part.stop - part.start for part in cut) for cut in cuts)
    lines: list[str] = []
    of_row = iter(texts)
    for place in itertools.product(*(range(size) for size in outer)):
        # How many brackets begin and end with this row: those of the dimensions that do.
        backwards = [*zip(reversed(place), reversed(outer), strict=True)]
        begins = 1 + sum(1 for _ in itertools.takewhile(lambda one: one[0] == 0, backwards))
        ends = 1 + sum(1 for _ in itertools.takewhile(lambda one: one[0] == one[1] - 1, backwards))
        cells = [*itertools.islice(of_row, inner)]
        if len(cuts[-1]) > 1:
            cells.insert(EDGE, "...")
        lead = ("[" * begins).rjust(len(cuts))
        lines += _wrapped(lead, cells, "]" * ends + ("," if ends < len(cuts) else ""), columns)
        changed = len(cuts) - 1 - ends
        if changed >= 0 and len(cuts[changed]) > 1 and place[changed] == EDGE - 1:
            lines.append(" " * (changed + 1) + "...,")
    return lines


def _wrapped(lead: str, cells: list[str], end: str, columns: int) -> list[str]:
    """A row of cells on as few lines as possible."""
    lines, line = [], lead
    for position, cell in enumerate(cells):
        piece = cell + (", " if position + 1 < len(cells) else end)
        if len(line) > len(lead) and len(line) + len(piece.rstrip()) > columns:
            lines.append(line.rstrip())
            line = " " * len(lead)
        line += piece
    return [*lines, line.rstrip()]
