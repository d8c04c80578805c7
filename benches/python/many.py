"""Cases with whole checkpoints: many small tensors, narrow floats, joins, and how time grows with size."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

import rustload

from .case import CACHE, MIB, DataCase, SmallTensors, movement, safe_open, torch_load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class SmallCase(SmallTensors, DataCase):
    """Load all tensors of a checkpoint of many small ones, as owned torch tensors."""

    allocates = True
    limit = "what torch takes to make as many tensors: `torch.empty`"

    def __init__(self, count: int, each: int, suffix: str) -> None:
        self.count, self.each, self.suffix = count, each, suffix
        self.title = f"load {count:,} tensors of {each * 4} bytes as owned torch tensors, {suffix}"

    def ways(self) -> dict[str, Callable[[], Any]]:
        path = self.path

        def ours() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return checkpoint.materialize(copy=True)

        def views() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return checkpoint.materialize()

        def items() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return {name: tensor.materialize() for name, tensor in checkpoint.items()}

        ways: dict[str, Callable[[], Any]] = {"rustload": ours, "rustload, views": views}
        ways["rustload, views, one by one"] = items
        if self.suffix == ".bin":
            ways["torch.load"] = lambda: torch_load(path, mmap=False)
            ways["torch.load(mmap=True), views"] = lambda: torch_load(path, mmap=True)
        else:
            ways["load_file, views"] = lambda: safetensors.torch.load_file(path)
            ways["safe_open + clone"] = lambda: {name: tensor.clone() for name, tensor in safe_open(path)}
        return ways

    def limit_probe(self) -> Callable[[], object]:
        def made() -> object:
            return {name: torch.empty(self.each) for name in range(self.count)}

        return made


class NarrowCase(DataCase):
    """Load one large tensor from or to fp8."""

    allocates = True
    suffix = ".safetensors"
    limit = "copying the bytes that are read between touched buffers"

    def __init__(self, numel: int, source: str, target: str) -> None:
        self.numel, self.source, self.target = numel, source, target
        self.title = f"load {numel >> 20}Mi elements of {source} as {target}, {self.suffix}"

    @property
    def nbytes(self) -> int:
        return self.numel * _dtype(self.source).itemsize

    @property
    def path(self) -> Path:
        return CACHE / f"narrow-{self.numel}-{self.source}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return {"weight": torch.randn(self.numel // 4096, 4096).to(_dtype(self.source))}

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, target = self.path, _dtype(self.target)

        def ours() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return {name: tensor.materialize(dtype=self.target) for name, tensor in checkpoint.items()}

        return {
            "rustload": ours,
            "safe_open .to()": lambda: {name: tensor.to(target) for name, tensor in safe_open(path)},
        }

    def limit_probe(self) -> Callable[[], object]:
        return movement(self.nbytes // 4, torch.float32)

    def check(self) -> None:
        ours, peer = (way()["weight"] for way in self.ways().values())
        assert ours.dtype == peer.dtype
        # The values are within e4m3's range, where rustload and torch agree.
        assert torch.equal(ours.view(torch.uint8), peer.view(torch.uint8))


class JoinCase(DataCase):
    """Join three matrices side by side and cast them."""

    allocates = True
    limit = "the cast between touched buffers, not joined"

    def __init__(self, rows: int, columns: int, suffix: str) -> None:
        self.rows, self.columns, self.suffix = rows, columns, suffix
        self.title = f"join three float32 {rows}x{columns} along dimension 1 as bfloat16, {suffix}"

    @property
    def nbytes(self) -> int:
        return 3 * self.rows * self.columns * 4

    @property
    def path(self) -> Path:
        return CACHE / f"join-{self.rows}x{self.columns}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return {name: torch.randn(self.rows, self.columns) for name in "qkv"}

    def ways(self) -> dict[str, Callable[[], Any]]:
        path = self.path

        def ours() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return {
                    "qkv": rustload.concat([checkpoint[name] for name in "qkv"], 1).materialize(
                        dtype="bfloat16"
                    )
                }

        def load() -> list[torch.Tensor]:
            state = torch_load(path, mmap=True) if self.suffix == ".bin" else dict(safe_open(path))
            return [state[name] for name in "qkv"]

        return {
            "rustload": ours,
            "torch.cat, then .to()": lambda: {"qkv": torch.cat(load(), 1).to(torch.bfloat16)},
            ".to() each, then torch.cat": lambda: {
                "qkv": torch.cat([tensor.to(torch.bfloat16) for tensor in load()], 1)
            },
        }

    def limit_probe(self) -> Callable[[], object]:
        return movement(self.nbytes // 4, torch.bfloat16)


class GrowthCase(DataCase):
    """Stream a sparse checkpoint as bfloat16 and drop every tensor: time should be linear in the size, and memory constant."""

    suffix = ".safetensors"
    arena = 0  # results are dropped again
    limit = "reading the file through, 16 MiB at a time"

    def __init__(self, mebibytes: int) -> None:
        self.mebibytes = mebibytes
        self.title = f"stream {mebibytes / 1024:g} GiB of sparse float32 as bfloat16, dropping every tensor"

    @property
    def nbytes(self) -> int:
        return self.mebibytes * MIB

    @property
    def path(self) -> Path:
        return CACHE / f"sparse-{self.mebibytes}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        return {}

    def prepare(self) -> None:
        """Writes a header, and the data as a hole of a sparse file."""
        if self.path.exists():
            return
        CACHE.mkdir(parents=True, exist_ok=True)
        each = 32 * MIB
        header = json.dumps(
            {
                f"layer.{at}.weight": {
                    "dtype": "F32",
                    "shape": [each // 4096, 1024],
                    "data_offsets": [at * each, (at + 1) * each],
                }
                for at in range(self.nbytes // each)
            }
        ).encode()
        header += b" " * (-len(header) % 8)
        with self.path.open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + self.nbytes)

    def ways(self) -> dict[str, Callable[[], Any]]:
        def ours() -> object:
            with rustload.open(self.path, framework="dlpack") as checkpoint:
                return sum(1 for _ in checkpoint.stream(dtype="bfloat16"))

        return {"rustload": lambda: [ours()]}

    def limit_probe(self) -> Callable[[], object]:
        def read() -> None:
            buffer = bytearray(16 * MIB)
            with self.path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass

        return read

    def check(self) -> None:
        assert self.ways()["rustload"]() == [self.nbytes // (32 * MIB)]


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found
