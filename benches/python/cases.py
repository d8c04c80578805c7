"""All cases, at full or at small size, in the order in which they are run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .case import MIB
from .loading import GraphCase, LoadCase, TransposeCase
from .many import many_cases
from .opening import LegacyOpenCase, OpenCase, ScanCase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .case import Case


def all_cases(*, quick: bool) -> Iterator[Case]:
    """Yields every case, at full or at small size."""
    formats = (".bin", ".safetensors")
    opens = ((1, MIB), (300, 16384), (2000, 64)) if quick else ((1, 16 * MIB), (300, 65536), (20_000, 64))
    for count, each in opens:
        yield from (OpenCase(count, each, suffix) for suffix in formats)
        yield LegacyOpenCase(count, each)
    yield ScanCase(opens[-1][0])
    for to in ("view", "copy", "bfloat16", "float16"):
        yield from (LoadCase(to, 1 if quick else 16, suffix) for suffix in formats)
    many, few = OpenCase(*opens[-1], ".bin"), LoadCase("copy", 1 if quick else 16, ".bin")
    yield from (GraphCase(of, mmap=mmap) for of in (many, few) for mmap in (False, True))
    shapes = ((2048, 2048), (2056, 1032)) if quick else ((8192, 8192), (8224, 4128))
    for rows, columns in shapes:
        for dtype in (None, "bfloat16"):
            yield from (TransposeCase(rows, columns, dtype, suffix) for suffix in formats)
    yield from many_cases(quick=quick)
