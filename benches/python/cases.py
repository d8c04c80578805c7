"""All cases, in full or small size, in the order in which they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .case import MIB
from .cold import ColdCase
from .first import FirstCase, IntoCase
from .loading import GraphCase, LoadCase, PermuteCase, TransposeCase
from .many import GrowthCase, JoinCase, NarrowCase, SmallCase
from .opening import LegacyOpenCase, OpenCase, ScanCase
from .quantized import dequantizing
from .saving import SaveCase
from .sets import SetCase, dense, experts
from .starting import StartCase, ViewCase
from .statistics import StatsCase
from .streaming import KeptStreamCase

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .case import Case

FORMATS = (".bin", ".safetensors")


def all_cases(*, quick: bool) -> Iterator[Case]:
    """Yields every case; with `quick` in small sizes whose times mean nothing."""
    yield from (FirstCase(case, quick=quick) for case in _first(quick=quick))
    yield from _opening(quick=quick)
    yield from _loading(quick=quick)
    yield from _converting(quick=quick)
    yield from dequantizing(quick=quick)
    # 896 MiB, and half as much.
    yield from (SaveCase(to, 1 if quick else 14) for to in ("copy", "bfloat16"))
    layers = 1 if quick else 16
    yield from (ColdCase(to, layers, suffix) for to in ("copy", "bfloat16") for suffix in FORMATS[1:])
    yield ColdCase("copy", layers, ".bin")
    yield from (
        StatsCase(dtype, layers, cold=cold) for dtype in ("float32", "bfloat16") for cold in (False, True)
    )
    # Last, as they fill the page cache with holes.
    yield from (GrowthCase(size) for size in ((64, 128) if quick else (1024, 2048, 4096, 8192, 16384)))


def _first(*, quick: bool) -> Iterator[Case]:
    layers = 1 if quick else 16
    for to in ("copy", "bfloat16", "float16"):
        yield from (LoadCase(to, layers, suffix) for suffix in (*FORMATS, ".legacy"))
    yield from (IntoCase(layers, suffix) for suffix in (*FORMATS, ".legacy"))
    yield from (SmallCase(2000 if quick else 20_000, 64, suffix) for suffix in FORMATS)


def _opening(*, quick: bool) -> Iterator[Case]:
    opens = ((1, MIB), (300, 16384), (2000, 64)) if quick else ((1, 16 * MIB), (300, 65536), (20_000, 64))
    for count, each in opens:
        yield from (OpenCase(count, each, suffix) for suffix in FORMATS)
        yield LegacyOpenCase(count, each)
    yield ScanCase(opens[-1][0])
    yield StartCase()
    yield from (ViewCase((1 if quick else 16) * MIB, suffix) for suffix in FORMATS)


def _loading(*, quick: bool) -> Iterator[Case]:
    layers = 1 if quick else 16
    for to in ("view", "copy", "bfloat16", "float16"):
        yield from (LoadCase(to, layers, suffix) for suffix in FORMATS)
    many = OpenCase(2000, 64, ".bin") if quick else OpenCase(20_000, 64, ".bin")
    few = LoadCase("copy", layers, ".bin")
    yield from (GraphCase(of, mmap=mmap) for of in (many, few) for mmap in (False, True))
    yield from (SmallCase(2000 if quick else 20_000, 64, suffix) for suffix in FORMATS)
    # 300 tensors of 1.2 GB, and 18,000 of 0.9 GB.
    sets = {
        "dense": dense(3, 256) if quick else dense(33, 1536),
        "mixture-of-experts": experts(2, 20, 64, 32) if quick else experts(24, 250, 128, 192),
    }
    yield from (SetCase(kind, shapes, suffix) for kind, shapes in sets.items() for suffix in FORMATS)


def _converting(*, quick: bool) -> Iterator[Case]:
    for rows, columns in ((2048, 2048), (2056, 1032)) if quick else ((8192, 8192), (8224, 4128)):
        for dtype in (None, "bfloat16"):
            yield from (TransposeCase(rows, columns, dtype, suffix) for suffix in FORMATS)
    cube = (64, 96, 128) if quick else (256, 512, 512)
    for dims, dtype in (((1, 0, 2), None), ((2, 0, 1), None), ((2, 0, 1), "bfloat16"), ((2, 1, 0), None)):
        yield PermuteCase(cube, dims, dtype)
    filters = (128, 64, 3, 3) if quick else (2048, 1024, 3, 3)
    yield PermuteCase(filters, (2, 3, 1, 0), None)
    yield PermuteCase(filters, (0, 2, 3, 1), None)
    numel = (4 if quick else 128) << 20
    for source, target in (
        ("float8_e4m3fn", "bfloat16"),
        ("float8_e4m3fn", "float32"),
        ("float32", "float8_e4m3fn"),
    ):
        yield NarrowCase(numel, source, target)
    each = (1 if quick else 16) << 20
    for source, target in (
        ("bfloat16", "float32"),
        ("float8_e4m3fn", "float32"),
        ("float32", "float16"),
        ("float32", "float32"),
    ):
        yield KeptStreamCase(each, source, target)
    yield from (JoinCase(*((512, 512) if quick else (8192, 4096)), suffix) for suffix in FORMATS)
