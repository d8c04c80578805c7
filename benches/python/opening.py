"""Cases that only read metadata: opening, listing, scanning."""

from __future__ import annotations

import io
import pickletools
import zipfile
from typing import TYPE_CHECKING, Any

import safetensors
import torch

import rustload

from .case import CACHE, Case, SmallTensors, read_metadata, torch_load

if TYPE_CHECKING:
    from collections.abc import Callable


class OpenCase(SmallTensors, Case):
    """Open a file and list every name, dtype and shape."""

    limit = "reading the metadata with one system call"
    reads = False

    def __init__(self, count: int, each: int, suffix: str) -> None:
        self.count, self.each, self.suffix = count, each, suffix
        self.title = f"open and list {count:,} tensors, {suffix}"

    def ways(self) -> dict[str, Callable[[], Any]]:
        path = self.path

        def ours() -> object:
            with rustload.open(path) as checkpoint:
                return [(name, tensor.dtype, tensor.shape) for name, tensor in checkpoint.items()]

        def keys_only() -> object:
            with safetensors.safe_open(path, framework="pt") as file:
                return list(file.keys())

        def sliced() -> object:
            with safetensors.safe_open(path, framework="pt") as file:
                slices = [(name, file.get_slice(name)) for name in file.keys()]  # noqa: SIM118 - not a mapping
                return [(name, part.get_dtype(), part.get_shape()) for name, part in slices]

        if self.suffix == ".safetensors":
            return {"rustload": ours, "safe_open, keys only": keys_only, "safe_open + get_slice": sliced}
        return {
            "rustload": ours,
            "torch.load(mmap=True)": lambda: torch_load(path, mmap=True),
            "torch.load": lambda: torch_load(path, mmap=False),
        }

    def limit_probe(self) -> Callable[[], object]:
        return read_metadata(self.path, self.nbytes)

    def check(self) -> None:
        with rustload.open(self.path) as checkpoint:
            shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.items()}
        assert shapes == {name: tuple(tensor.shape) for name, tensor in self.tensors().items()}


class ScanCase(OpenCase):
    """Scan the pickle of many tensors, against listing its opcodes, which is the first step of other scanners."""

    limit = "reading the pickle with one system call"

    def __init__(self, count: int) -> None:
        super().__init__(count, 1, ".pkl")
        self.title = f"scan the pickle of {count:,} tensors"

    def prepare(self) -> None:
        if not self.path.exists():
            CACHE.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_name(self.path.name + ".partial")
            file = io.BytesIO()
            torch.save(self.tensors(), file)
            with zipfile.ZipFile(file) as archive:
                partial.write_bytes(archive.read("archive/data.pkl"))
            partial.rename(self.path)

    def ways(self) -> dict[str, Callable[[], Any]]:
        data = self.path.read_bytes()
        return {
            "rustload": lambda: rustload.scan(data).globals,
            "pickletools.genops": lambda: [sum(1 for _ in pickletools.genops(data))],
        }

    def limit_probe(self) -> Callable[[], object]:
        return self.path.read_bytes

    def check(self) -> None:
        report = rustload.scan(self.path.read_bytes())
        assert report.complete
        calls = {(named.module, named.name): named.calls for named in report.globals}
        assert calls["torch._utils", "_rebuild_tensor_v2"] == self.count


class LegacyOpenCase(OpenCase):
    """As `OpenCase`, for a legacy stream (before torch's zip format), for which torch has no lazy reader."""

    def __init__(self, count: int, each: int) -> None:
        super().__init__(count, each, ".legacy")
        self.title = f"open and list {count:,} tensors, legacy stream"

    def ways(self) -> dict[str, Callable[[], Any]]:
        ways = super().ways()
        return {name: ways[name] for name in ("rustload", "torch.load")}
