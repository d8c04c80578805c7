"""Cases with streams whose results are all kept: they must not be slower than one tensor after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import rustload

from .case import CACHE, FRESH, DataCase, safe_open

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TENSORS = 16


class KeptStreamCase(DataCase):
    """Stream 16 tensors and keep them all, compared with `materialize` one by one and with a whole load."""

    allocates = True
    suffix = ".safetensors"
    limit = "the cast between touched buffers"

    def __init__(self, numel: int, source: str, target: str) -> None:
        self.numel, self.source, self.target = numel, source, target
        self.title = f"stream {TENSORS} tensors of {numel:,} elements of {source} as {target}, all kept"

    @property
    def nbytes(self) -> int:
        return TENSORS * self.numel * _dtype(self.source).itemsize

    @property
    def path(self) -> Path:
        return CACHE / f"kept-{TENSORS}-{self.numel}-{self.source}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        dtype = _dtype(self.source)
        return {f"layer.{at}": torch.randn(self.numel // 1024, 1024).to(dtype) for at in range(TENSORS)}

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, target = self.path, _dtype(self.target)
        # A pattern, because a plain dtype does not convert fp8.
        many: dict[str, Any] = {"dtype": {"*": self.target}, "copy": True}

        def streamed(framework: Any = "torch") -> dict[str, Any]:
            with rustload.open(path, framework=framework) as checkpoint:
                return dict(checkpoint.stream(**many))

        def one_by_one(framework: Any = "torch") -> dict[str, Any]:
            with rustload.open(path, framework=framework) as checkpoint:
                return {name: t.materialize(dtype=self.target, copy=True) for name, t in checkpoint.items()}

        def whole() -> dict[str, Any]:
            with rustload.open(path, framework="torch") as checkpoint:
                return checkpoint.materialize(**many)

        def wrapped(arrays: dict[str, Any]) -> dict[str, Any]:
            return {name: torch.from_numpy(array) for name, array in arrays.items()}

        return {
            "rustload": streamed,
            "rustload, one by one": one_by_one,
            "rustload, whole load": whole,
            "rustload, numpy": lambda: wrapped(streamed("numpy")),
            "rustload, numpy, one by one": lambda: wrapped(one_by_one("numpy")),
            f"rustload, {FRESH}": streamed,
            f"rustload, one by one, {FRESH}": one_by_one,
            "safe_open .to()": lambda: {
                name: tensor.to(target, copy=True) for name, tensor in safe_open(path)
            },
        }

    def limit_probe(self) -> Callable[[], object]:
        source = torch.ones(TENSORS * self.numel).to(_dtype(self.source))
        target = torch.ones(TENSORS * self.numel, dtype=_dtype(self.target))
        return lambda: target.copy_(source)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found
