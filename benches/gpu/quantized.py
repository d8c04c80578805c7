"""Quantized weights on a GPU, one of each scheme: whether it decodes to the bits of the CPU, and the rates of both.

The rates say where the packed codes should travel: in each scheme, the GPU's should be above the CPU's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

import rustload
from benches.python.quantized import SCHEMES

from . import probes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .checks import Check, Place

TARGETS = (None, "float32", "bfloat16", "float16")
# A weight of several tiles, which the fixed costs of a load do not dominate; a small one, of which they are most.
SHAPES = ((4096, 14336), (1024, 1024))
SMALL = (256, 512)


def weights(folder: Path, shape: tuple[int, int]) -> Iterator[tuple[str, rustload.LazyTensor, torch.Tensor]]:
    """The title of each scheme, a weight of it, and the weight by torch on the CPU."""
    for scheme in SCHEMES:
        torch.manual_seed(0)
        packed = scheme.packed(*shape)
        path = folder / "quantized.safetensors"
        safetensors.torch.save_file({name: one.contiguous() for name, one in packed.items()}, path)
        with rustload.open(path, framework="torch", dequantize=True) as ckpt:
            yield scheme.title, ckpt[scheme.name], scheme.decoded(packed)


def quantized(folder: Path, place: Place) -> Iterator[Check]:
    """Every scheme with each dtype, transposed, and in part."""
    for title, lazy, decoded in weights(folder, SMALL):
        yield title, lazy.materialize(place.device, decoded.dtype), decoded, True
        for view, what in (
            (lazy, ""),
            (lazy.T, " transposed"),
            (lazy[3:-5], " rows"),
            (lazy[:, 8:200:3], " columns"),
        ):
            for target in TARGETS:
                for option in place.casts:
                    found = view.materialize(place.device, target, **option)
                    wanted = view.materialize(dtype=target, copy=True)
                    yield f"{title}{what} {target} {option}", found, wanted, True


def rates(folder: Path, device: str, *, quick: bool) -> Iterator[tuple[str, float, str]]:
    """The rate of results in bfloat16, decoded by the GPU and by the CPU."""
    for shape in (SMALL,) if quick else SHAPES:
        for title, lazy, _ in weights(folder, shape):
            for where in ("gpu", "cpu"):
                how: dict[str, Any] = {"dtype": "bfloat16", "cast": where}
                seconds = probes.median(functools.partial(lazy.materialize, device, **how))
                what = f"{title}, {shape[0]}x{shape[1]}, decoded by the {where.upper()}"
                yield what, 2 * lazy.size / seconds / 1e9, "GB/s"
