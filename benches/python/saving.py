"""Cases that convert a checkpoint to a safetensors file, without waiting for the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

import rustload

from .case import CACHE, MIB, each, torch_load
from .loading import LoadCase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class SaveCase(LoadCase):
    """Convert a whole float32 model to safetensors: as it is, or cast. All ways write into the page cache, without fsync."""

    allocates = False
    notes = ("no row waits for the disk: rustload with fsync=False, as the reference never does",)

    def __init__(self, to: str, layers: int) -> None:
        super().__init__(to, layers, ".bin")
        self.allocates = False
        self.title = f"convert a {self.nbytes / 1e6:.0f} MB float32 .bin to safetensors, " + (
            "same dtype" if self.dtype is None else f"as {self.dtype}"
        )
        self.limit = "writing as many bytes from touched memory to a new file"

    @property
    def out(self) -> Path:
        """The file that is written."""
        return CACHE / "saved.safetensors"

    def before(self, name: str) -> None:
        super().before(name)
        self.out.unlink(missing_ok=True)

    def ways(self) -> dict[str, Callable[[], Any]]:
        def ours(**options: Any) -> dict[str, None]:
            with rustload.open(self.path) as checkpoint:
                rustload.save(checkpoint, self.out, dtype=self.dtype, fsync=False, **options)
            return dict.fromkeys(("file",))

        def reference() -> dict[str, None]:
            state = each(torch_load(self.path, mmap=True), lambda tensor: tensor.to(self.torch_dtype))
            safetensors.torch.save_file(state, self.out, metadata={"format": "pt"})
            return dict.fromkeys(("file",))

        return {
            "rustload": ours,
            "rustload, one thread": lambda: ours(threads=1),
            "torch.load(mmap=True), save_file": reference,
        }

    def limit_probe(self) -> Callable[[], object]:
        block = torch.ones(2 * MIB, dtype=torch.float32).numpy().data
        count = self.nbytes * self.torch_dtype.itemsize // 4 // (8 * MIB)

        def write() -> None:
            self.out.unlink(missing_ok=True)
            with self.out.open("wb", buffering=0) as file:
                for _ in range(count):
                    file.write(block)

        return write

    def check(self) -> None:
        found = []
        for way in self.ways().values():
            way()
            found.append(self.out.read_bytes())
            self.out.unlink()
        assert all(other == found[0] for other in found[1:])
