"""The tensors of the correctness matrix, and files of them in every format; all are created here."""

from __future__ import annotations

import functools
import io
import json
import warnings
from typing import TYPE_CHECKING

import safetensors
import safetensors.torch
import torch

from rustload import _rustload

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ("zip", "legacy", "sharded", "safetensors")
SHARDS = 3

# The dtypes that can be cast to floats, and the targets.
REAL = (
    *("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"),
    *("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"),
)
TARGETS = ("float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2")

# The integer dtype to view a dtype as, by bytes per element; all operations support these.
SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


def dtypes() -> list[str]:
    """Every dtype that both rustload and the installed torch have."""
    return [name for name, *_ in _rustload.DTYPES if hasattr(torch, name)]


def patterns(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """A tensor of random bits, so that every NaN, denormal and sign may occur; bools are 0 or 1."""
    generator = torch.Generator().manual_seed(seed)
    dtype: torch.dtype = getattr(torch, name)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = torch.Size(shape).numel() * dtype.itemsize
    made = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    return made.view(dtype).reshape(shape)


def tensors(*, quick: bool) -> dict[str, torch.Tensor]:
    """Every dtype in every layout, by `dtype.layout`; the large ones exceed the slots and staging buffers of any pipeline."""
    made: dict[str, torch.Tensor] = {}
    for seed, name in enumerate(dtypes()):
        made |= {f"{name}.{layout}": tensor for layout, tensor in _layouts(name, 10 * seed, quick=quick)}
    if not quick:
        for name in ("float32", "bfloat16"):
            made[f"{name}.huge"] = patterns(name, (4100, 9001), 5)
            made[f"{name}.huge_permuted"] = patterns(name, (130, 300, 501), 6).permute(2, 0, 1)
    return made


def _layouts(name: str, seed: int, *, quick: bool) -> list[tuple[str, torch.Tensor]]:
    base = patterns(name, (4, 5, 6), seed)
    # Larger than one ring slot, and not a multiple of it; made as bytes, since elements have many sizes.
    rows = (50_000 if quick else 3_200_000) // (257 * base.element_size())
    large = patterns(name, (rows, 257), seed + 1)
    found = [
        ("contiguous", patterns(name, (3, 4, 5), seed + 2)),
        ("sliced", base[1:, :, 1:4]),
        ("offset", base[2]),
        ("transposed", base.transpose(0, 2)),
        ("permuted", base.permute(1, 2, 0)),
        ("strided", base[:, ::2, ::3]),
        ("expanded", base[:1].expand(3, 5, 6)),
        ("overlapping", base.reshape(-1).as_strided((5, 4), (2, 1), 3)),
        ("scalar", base[2, 3, 4]),
        ("one", base[:1, :1, :1]),
        ("empty", base[:, 2:2]),
        ("empty_transposed", base[:0].permute(2, 0, 1)),
        ("row", patterns(name, (1031,), seed + 3)),
        ("large", large),
        ("large_transposed", large.t()),
    ]
    if name in ("complex64", "complex128"):
        found.append(("conjugate", base.conj()))
    return found


def moderate(name: str) -> torch.Tensor:
    """Numbers that every float dtype can represent, so that casts never overflow."""
    generator = torch.Generator().manual_seed(11)
    made = torch.randn(33, 65, generator=generator) * 20
    return (made.abs() if name.startswith("u") else made).to(getattr(torch, name))


class Files:
    """The matrix in every format, and the tensors in each.

    Attributes:
        paths: The path to open, by format.
        tensors: The tensors, by format and name.
    """

    def __init__(self, folder: Path, given: dict[str, torch.Tensor]) -> None:
        """Writes the files; omits a dtype from a format whose own writer rejects it."""
        zipped = {name: tensor for name, tensor in given.items() if _is_saved(tensor.dtype, legacy=False)}
        old = {name: tensor for name, tensor in zipped.items() if _is_saved(tensor.dtype, legacy=True)}
        header = {dtype for dtype, _, _, code, *_ in _rustload.DTYPES if code is not None}
        plain = {
            name: _copy(tensor)
            for name, tensor in zipped.items()
            if name.partition(".")[0] in header and _is_in_safetensors(tensor.dtype)
            # That format has no conjugate flag and no packed half-byte dtypes.
            if not tensor.is_conj() and (tensor.ndim or not name.startswith("float4"))
        }
        self.tensors = {"zip": zipped, "legacy": old, "sharded": zipped, "safetensors": plain}
        self.paths = {
            "zip": folder / "model.bin",
            "legacy": folder / "legacy.bin",
            "sharded": folder / "sharded",
            "safetensors": folder / "model.safetensors",
        }
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "ComplexHalf support", UserWarning)
            torch.save(zipped, self.paths["zip"])
            torch.save(old, self.paths["legacy"], _use_new_zipfile_serialization=False)
            _save_sharded(zipped, self.paths["sharded"])
        safetensors.torch.save_file(plain, self.paths["safetensors"])


def _save_sharded(given: dict[str, torch.Tensor], folder: Path) -> None:
    folder.mkdir()
    names = list(given)
    weight_map: dict[str, str] = {}
    for number in range(SHARDS):
        file = f"pytorch_model-{number + 1:05}-of-{SHARDS:05}.bin"
        part = names[number::SHARDS]
        torch.save({name: given[name] for name in part}, folder / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))


@functools.cache
def _is_saved(dtype: torch.dtype, *, legacy: bool) -> bool:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ComplexHalf support", UserWarning)
        try:
            torch.save(torch.empty(1, dtype=dtype), io.BytesIO(), _use_new_zipfile_serialization=not legacy)
        except (AttributeError, KeyError, NotImplementedError, RuntimeError):
            return False
    return True


@functools.cache
def _is_in_safetensors(dtype: torch.dtype) -> bool:
    try:
        safetensors.torch.save({"one": torch.empty(1, dtype=dtype)})
    except (KeyError, RuntimeError, TypeError, ValueError, safetensors.SafetensorError):
        return False
    return True


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    same = tensor.view(SAME_SIZE[tensor.element_size()])
    return same.clone(memory_format=torch.contiguous_format).view(tensor.dtype)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bytes in C order, on the CPU."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    row = tensor.view(SAME_SIZE[tensor.element_size()]).contiguous().reshape(-1).cpu()
    # Dimensions of size 1 may have arbitrary strides, which views of another element size refuse.
    return torch.empty(0, dtype=torch.uint8).set_(
        row.untyped_storage(),
        row.storage_offset() * row.element_size(),
        (row.numel() * row.element_size(),),
        (1,),
    )


def is_same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether dtype, shape and every bit are the same."""
    return (
        found.dtype == expected.dtype
        and found.shape == expected.shape
        and torch.equal(bits(found), bits(expected))
    )


def is_same_number(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """The same for results of casts, where NaN payloads may differ."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    left, right = found.cpu().to(torch.float64), expected.cpu().to(torch.float64)
    left, right = left.reshape(-1), right.reshape(-1)
    differ = left.view(torch.int64) != right.view(torch.int64)
    return not bool((differ & ~(left.isnan() & right.isnan())).any())
