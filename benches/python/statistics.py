"""Cases that compute statistics of all tensors of a file: warm, and cold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import rustload

from .case import CACHE, MIB, safe_open
from .cold import evict, read_directly
from .loading import LoadCase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rustload import Statistics


class StatsCase(LoadCase):
    """Counts, extremes, mean and standard deviation of every tensor of a safetensors file."""

    def __init__(self, dtype: str, layers: int, *, cold: bool) -> None:
        self.stored, self.cold = getattr(torch, dtype), cold  # before the title, which has the size
        super().__init__("view", layers, ".safetensors")
        self.reads = True
        state = "a cold" if cold else "a"
        self.title = f"statistics of {state} {self.nbytes / 1e6:.0f} MB {dtype} model, .safetensors"
        self.limit = (
            "reading the file with O_DIRECT, 8 MiB at a time"
            if cold
            else "reading the file from the page cache, 8 MiB at a time, one thread"
        )

    @property
    def nbytes(self) -> int:
        return super().nbytes // 4 * int(self.stored.itemsize)

    @property
    def arena(self) -> int:
        return 0  # the elements are not kept

    @property
    def path(self) -> Path:
        return CACHE / f"model-{self.layers}-{self.stored}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: tensor.to(self.stored) for name, tensor in super().tensors().items()}

    def ways(self) -> dict[str, Callable[[], Any]]:
        def ours(**options: Any) -> dict[str, Statistics]:
            with rustload.open(self.path) as checkpoint:
                return checkpoint.stats(**options)

        def torchs() -> dict[str, tuple[int, float, float, float, float]]:
            return {name: described(tensor) for name, tensor in safe_open(self.path)}

        return {"rustload": ours, "rustload, one thread": lambda: ours(threads=1), "safe_open, torch": torchs}

    def before(self, name: str) -> None:
        super().before(name)
        if self.cold:
            evict(self.path)

    def limit_probe(self) -> Callable[[], object]:
        return lambda: read_directly(self.path) if self.cold else read_buffered(self.path)

    def reason_to_skip(self) -> str | None:
        from .cold import ColdCase

        return ColdCase("copy", self.layers, self.suffix).reason_to_skip() if self.cold else None

    def check(self) -> None:
        """Counts and extremes are exact, mean and std are those of NumPy in float64 within 1e-12."""
        with rustload.open(self.path) as checkpoint:
            found = checkpoint.stats()
        for name, tensor in safe_open(self.path):
            numbers, ours = tensor.to(torch.float64).numpy(), found[name]
            assert (ours.total, ours.nan, ours.min, ours.max) == (
                numbers.size,
                int(np.isnan(numbers).sum()),
                numbers.min(),
                numbers.max(),
            )
            scale = np.abs(numbers).mean()
            assert abs(ours.mean - numbers.mean()) <= 1e-12 * scale
            assert abs(ours.std - numbers.std()) <= 1e-12 * numbers.std()


def described(tensor: torch.Tensor) -> tuple[int, float, float, float, float]:
    """NaN, extremes, mean and standard deviation by torch."""
    wide = tensor.float()
    least, most = torch.aminmax(wide)
    std, mean = torch.std_mean(wide, correction=0)
    return int(torch.isnan(wide).sum()), least.item(), most.item(), mean.item(), std.item()


def read_buffered(path: Path) -> int:
    """Reads a file through the page cache into one buffer; returns the number of bytes."""
    buffer, done = bytearray(8 * MIB), 0
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(buffer):
            done += got
    return done
