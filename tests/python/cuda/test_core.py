"""Uploads through the pinned ring: what arrives on the device is what the CPU makes, for every dtype, layout and format."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support import DTYPES, patterns

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[..., subprocess.CompletedProcess[str]]

# Uploads all tensors of a file in some ways and compares.
COMPARE = """
    import sys
    import fakecuda, rustload
    from fakecuda import Wanted
    from rustload import RustloadError, _rustload

    def same(upload, tensors, wanted, **options):
        ticket, into = fakecuda.submit(upload, tensors, wanted, **options)
        upload.wait(ticket, stream=None, sync=True)
        many = [wanted] * len(tensors) if isinstance(wanted, Wanted) else wanted
        for tensor, want, buffer in zip(tensors, many, into, strict=True):
            assert fakecuda.read(buffer) == fakecuda.expected(tensor, want), (tensor.name, want)
        return into

    def clean(upload):
        upload.close()
        assert fakecuda.count("memory") == 0, "device memory"
        assert fakecuda.count("stray") == fakecuda.count("pageable") == 0
"""

# A small ring, so that it goes round many times, and copies that take their time.
SMALL = {"RUSTLOAD_RING": "65536x5", "FAKECUDA_DELAY": 200}


@pytest.mark.parametrize("threads", [1, 4])
def test_every_dtype_in_every_layout(on_fake: Run, save: Callable[..., Path], threads: int) -> None:
    tensors = {}
    for name in DTYPES:
        base = patterns(name, (40, 30, 60))
        tensors |= {
            f"{name}.whole": base,
            f"{name}.turned": base.permute(2, 0, 1),
            f"{name}.part": base[1:, ::3, 5:50],
            f"{name}.row": base[0, 0, :7],
            f"{name}.scalar": base[0, 0, 0],
            f"{name}.empty": base[:0],
            f"{name}.spread": base[:1, :, :1].expand(50, 30, 40),
        }
    path = save(tensors)
    on_fake(
        COMPARE
        + """
    tensors = list(rustload.open(sys.argv[1]).values())
    upload = _rustload.upload(0, window=1 << 28, threads=int(sys.argv[2]))
    wide = [tensor for tensor in tensors if tensor.ndim == 3]
    same(upload, tensors, Wanted())
    same(upload, tensors, Wanted(), slab=False)
    same(upload, wide, Wanted(transpose=True))
    same(upload, wide, Wanted(transpose=[1, 2, 0]))
    same(upload, [tensor[1:, 2:-3:2] for tensor in wide], Wanted())
    clean(upload)
    """,
        path,
        threads,
        **SMALL,
    )


def test_every_cast(on_fake: Run, save: Callable[..., Path]) -> None:
    path = save({name: patterns(name, (90, 130)) for name in DTYPES}, "casts.pt")
    on_fake(
        COMPARE
        + """
    tensors = list(rustload.open(sys.argv[1]).values())
    upload = _rustload.upload(0, window=1 << 28, threads=3)
    for dtype in sys.argv[2].split():
        for transpose in (False, True):
            wanted = Wanted(dtype=dtype, allow_lossy=True, transpose=transpose)
            same(upload, tensors, wanted)
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        same(upload, tensors, Wanted(dtype=dtype, allow_lossy=True, overflow="saturate"))
    clean(upload)
    """,
        path,
        " ".join(DTYPES),
        RUSTLOAD_RING="16384x4",
        FAKECUDA_DELAY=50,
    )


def test_large_tensors_are_cut_and_permuted_ones_made_in_bands(
    on_fake: Run, save: Callable[..., Path]
) -> None:
    path = save(
        {
            "long": patterns("float32", (5_000_001,)),
            "wide": patterns("bfloat16", (3, 1_500_000)),
            "matrix": patterns("float32", (3000, 1100)),
            "heads": patterns("float16", (64, 300, 8, 32)).permute(0, 2, 1, 3),
        }
    )
    on_fake(
        COMPARE
        + """
    tensors = list(rustload.open(sys.argv[1]).values())
    # The least window makes bands no larger than a slot.
    for window in (0, 1 << 20, 1 << 28):
        upload = _rustload.upload(0, window=window, threads=3)
        same(upload, tensors, Wanted())
        same(upload, tensors[1:], Wanted(transpose=True, dtype="float32"))
        same(upload, tensors[3:], Wanted(transpose=[3, 1, 0, 2], dtype="bfloat16"))
        clean(upload)
    """,
        path,
        RUSTLOAD_RING="262144x6",
        FAKECUDA_DELAY=300,
    )
