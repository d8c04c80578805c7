"""Random state dicts, saved and converted, and read back: every element has the bits that it had.

Each has tensors of random names, dtypes, shapes and strides: 0-d, empty, transposed, expanded, views of one storage, tied ones.
It is saved in one of the forms that `rustload.save` and `rustload.convert` write, and read by rustload and by safetensors. A
single file has the bytes that safetensors itself writes.

    python fuzz/saves.py [--seed 1] [--count 100000] [--show N]

A difference ends the run; its number is printed, and `--seed S --show N` repeats it.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

import rustload

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.complex64, torch.bool),
    *(
        torch.uint8,
        torch.int8,
        torch.uint16,
        torch.int16,
        torch.uint32,
        torch.int32,
        torch.uint64,
        torch.int64,
    ),
]
PARTS = ["a", "b", "layers", "0", "1", "10", "weight", "bias", "ü", "名", "x y", "-", "A", "_"]


def bits(tensor: torch.Tensor) -> bytes:
    """The bytes of all elements in C order."""
    return bytes(plain(tensor).view(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the strides of its shape; `contiguous` keeps any stride of a dimension of one."""
    copied = tensor.detach().contiguous().clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(copied)


def one_tensor(chance: random.Random, others: list[torch.Tensor]) -> torch.Tensor:
    """A tensor of random dtype, shape and strides, sometimes of the storage of another."""
    if others and chance.random() < 0.25:
        other = chance.choice(others)
        kind = chance.randrange(4)
        if kind == 0:
            return other
        if kind == 1 and other.dim() and other.shape[0]:
            start = chance.randrange(other.shape[0])
            return other[start : start + chance.randrange(4)]
        if kind == 2:
            return other.T if other.dim() == 2 else other
        is_dense = other.is_contiguous() and other.dim() and other.stride(-1) == 1
        return other.view(torch.uint8) if is_dense else other
    dtype = chance.choice(DTYPES)
    shape = [chance.choice([0, 1, 1, 2, 3, 5, 8, 17]) for _ in range(chance.randrange(4))]
    count = 1
    for size in shape:
        count *= size
    noise = torch.frombuffer(bytearray(chance.randbytes(max(count, 1) * dtype.itemsize)), dtype=torch.uint8)
    tensor = (noise & 1).bool() if dtype == torch.bool else noise.view(dtype)
    tensor = tensor[:count].view(shape)
    if tensor.dim() > 1 and chance.random() < 0.3:
        tensor = tensor.permute(chance.sample(range(tensor.dim()), tensor.dim()))
    if tensor.dim() and tensor.shape[-1] > 2 and chance.random() < 0.2:
        tensor = tensor[..., ::2]
    if chance.random() < 0.05:
        tensor = tensor.expand(3, *tensor.shape)
    return tensor


def state_dict(chance: random.Random) -> dict[str, torch.Tensor]:
    """Tensors by names, none of which is a prefix of another at a dot."""
    tensors: dict[str, torch.Tensor] = {}
    for number in range(chance.randrange(9)):
        name = ".".join([*chance.choices(PARTS, k=chance.randrange(3)), f"{chance.choice(PARTS)}{number}"])
        tensors[name] = one_tensor(chance, list(tensors.values()))
    return tensors


def run_one(seed: str, folder: Path) -> str:
    """Saves one state dict in one form and reads it back; returns what it did."""
    chance = random.Random(seed)
    tensors = state_dict(chance)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    options: dict[str, Any] = {
        "fsync": False,
        "verify": chance.random() < 0.1,
        "ties": chance.choice(["auto", "copy", "drop"]),
        "threads": chance.choice([None, 1, 2]),
    }
    target = folder / "m.safetensors"
    if chance.random() < 0.3:
        target = folder / "folder"
        options["max_shard_size"] = chance.choice([1, 50, 1000])
    kind = chance.choice(["torch", "lazy", "convert", "legacy"])
    source = folder / "m.bin"
    if kind != "torch":
        try:
            torch.save(tensors, source, _use_new_zipfile_serialization=kind != "legacy")
        except RuntimeError:
            # torch.save refuses tensors of two dtypes on one storage.
            kind = "torch"
    if kind == "torch":
        report = rustload.save(tensors, target, **options)
    else:
        if kind == "lazy":
            report = rustload.save(rustload.open(source), target, **options)
        else:
            report = rustload.convert(source, target, **options)
        same = rustload.diff(source, target, data=True)
        # A folder keeps no record of ties.
        assert same.same or (report.dropped and target.is_dir()), str(same)
    found = rustload.open(target)
    assert set(found) | set(report.dropped) == set(tensors)
    for name, tensor in tensors.items():
        read = found[report.dropped.get(name, name)].materialize(copy=True, framework="torch")
        assert (read.dtype, read.shape, bits(read)) == (tensor.dtype, tensor.shape, bits(tensor)), name
    if target.is_file():
        copies = {name: plain(tensors[name]) for name in found}
        metadata = {"format": "pt", **report.dropped}
        if len(metadata) == 1:
            assert target.read_bytes() == safetensors.torch.save(copies, metadata=metadata)
    for file in [target] if target.is_file() else target.glob("*.safetensors"):
        for name, tensor in safetensors.torch.load_file(file).items():
            assert bits(tensor) == bits(tensors[name]), name
    return f"{kind} to a {'file' if target.is_file() else 'folder'}"


def main() -> int:
    """Runs the programs and prints how many of each form there were."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--show", type=int)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    numbers = range(args.count) if args.show is None else [args.show]
    done: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            try:
                done[run_one(f"{args.seed}/{number}", Path(folder) / "work")] += 1
            except Exception:
                print(f"state dict {number} of seed {args.seed}:", file=sys.stderr)
                raise
    counted = ", ".join(f"{count:,} {what}" for what, count in sorted(done.items()))
    print(f"{sum(done.values()):,} state dicts in {time.monotonic() - start:.0f} s: {counted}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
