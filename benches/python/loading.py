"""Cases that load a model or a matrix: as views, as copies, cast, transposed, or with torch.load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch

import rustload
import rustload.torch

from .case import (
    CACHE,
    DTYPES,
    FRESH,
    DataCase,
    each,
    movement,
    read_metadata,
    safe_open,
    same_bits,
    torch_load,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .opening import OpenCase


class LoadCase(DataCase):
    """Load a whole float32 model: as views, as copies, or cast."""

    def __init__(self, to: str, layers: int, suffix: str) -> None:
        self.to, self.layers, self.suffix = to, layers, suffix
        self.dtype = None if to in ("view", "copy") else to
        self.allocates = self.reads = to != "view"
        what = {"view": "as float32 views", "copy": "as owned float32"}.get(to, f"as {to}")
        self.title = f"load a {self.nbytes / 1e6:.0f} MB float32 model {what}, {suffix}"
        self.limit = {
            "view": "reading nothing: the metadata alone",
            "copy": "copying the same bytes between touched buffers",
        }.get(to, "the cast between touched buffers")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the results."""
        return DTYPES[self.dtype]

    SHAPES = (*[(1024, 1024)] * 4, *[(4096, 1024)] * 2, (1024, 4096), (1024,), (1024,))

    @property
    def nbytes(self) -> int:
        return self.layers * sum(torch.Size(shape).numel() for shape in self.SHAPES) * 4

    @property
    def path(self) -> Path:
        return CACHE / f"model-{self.layers}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return {
            f"model.layers.{layer}.{at}.weight": torch.randn(shape)
            for layer in range(self.layers)
            for at, shape in enumerate(self.SHAPES)
        }

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, dtype, copies = self.path, DTYPES[self.dtype], self.to == "copy"
        copy = {"view": False, "copy": True}.get(self.to)

        def finish(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.clone() if copies else tensor.to(dtype)

        def ours() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return {
                    name: tensor.materialize(dtype=self.dtype, copy=copy)
                    for name, tensor in checkpoint.items()
                }

        def whole() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return checkpoint.materialize(dtype=self.dtype, copy=copy)

        ways: dict[str, Callable[[], Any]] = {"rustload": ours, "rustload, ckpt.materialize": whole}
        if self.to != "view":
            ways[f"rustload, {FRESH}"] = whole
        if self.suffix == ".bin":
            ways["torch.load(mmap=True)"] = lambda: each(torch_load(path, mmap=True), finish)
        if self.suffix != ".safetensors":
            if self.to != "view":
                # torch.load without mmap returns owned tensors, which need no copy.
                plain = (lambda tensor: tensor) if copies else finish
                ways["torch.load"] = lambda: each(torch_load(path, mmap=False), plain)
        else:
            ways["safe_open"] = lambda: {name: finish(tensor) for name, tensor in safe_open(path)}
            ways["load_file"] = lambda: each(safetensors.torch.load_file(path), finish)
        return ways

    def limit_probe(self) -> Callable[[], object]:
        if self.to == "view":
            return read_metadata(self.path, self.nbytes)
        return movement(self.nbytes // 4, DTYPES[self.dtype])


class TransposeCase(DataCase):
    """Load one float32 matrix transposed, with or without a cast."""

    allocates = True

    def __init__(self, rows: int, columns: int, dtype: str | None, suffix: str) -> None:
        self.rows, self.columns, self.dtype, self.suffix = rows, columns, dtype, suffix
        cast = f" and cast to {dtype}" if dtype else ""
        self.title = f"load float32 {rows}x{columns} transposed{cast}, {suffix}"
        self.limit = f"the {'cast' if dtype else 'copy'} between touched buffers, not transposed"

    @property
    def nbytes(self) -> int:
        return self.rows * self.columns * 4

    @property
    def path(self) -> Path:
        return CACHE / f"matrix-{self.rows}x{self.columns}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return {"weight": torch.randn(self.rows, self.columns)}

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, dtype = self.path, DTYPES[self.dtype]

        def ours() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return {
                    name: tensor.materialize(dtype=self.dtype, transpose=True)
                    for name, tensor in checkpoint.items()
                }

        def transpose_first(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.t().contiguous().to(dtype)

        def cast_first(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype).t().contiguous()

        def load(finish: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Any]:
            if self.suffix == ".bin":
                return lambda: each(torch_load(path, mmap=True), finish)
            return lambda: {name: finish(tensor) for name, tensor in safe_open(path)}

        peer = "torch.load(mmap=True)" if self.suffix == ".bin" else "safe_open"
        if self.dtype is None:
            ways = {"rustload": ours, f"{peer} .t().contiguous()": load(transpose_first)}
        else:
            ways = {
                "rustload": ours,
                f"{peer} .to().t().contiguous()": load(cast_first),
                f"{peer} .t().contiguous().to()": load(transpose_first),
            }
        if self.suffix == ".bin":
            ways["torch.load, the same"] = lambda: each(torch_load(path, mmap=False), cast_first)
        return ways

    def limit_probe(self) -> Callable[[], object]:
        return movement(self.rows * self.columns, DTYPES[self.dtype])


class PermuteCase(DataCase):
    """Load one float32 tensor permuted, with or without a cast."""

    allocates = True
    suffix = ".safetensors"

    def __init__(self, shape: tuple[int, ...], dims: tuple[int, ...], dtype: str | None) -> None:
        self.shape, self.dims, self.dtype = shape, dims, dtype
        cast = f" and cast to {dtype}" if dtype else ""
        size = "x".join(map(str, shape))
        self.title = f"load float32 {size} permuted to {dims}{cast}, {self.suffix}"
        self.limit = f"the {'cast' if dtype else 'copy'} between touched buffers, not permuted"

    @property
    def nbytes(self) -> int:
        return torch.Size(self.shape).numel() * 4

    @property
    def path(self) -> Path:
        return CACHE / f"cube-{'x'.join(map(str, self.shape))}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return {"weight": torch.randn(self.shape)}

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, dims, dtype = self.path, self.dims, DTYPES[self.dtype]

        def ours() -> object:
            with rustload.open(path, framework="torch") as checkpoint:
                return {
                    name: tensor.materialize(dtype=self.dtype, transpose=dims)
                    for name, tensor in checkpoint.items()
                }

        def numpy() -> object:
            found = {name: tensor.numpy().transpose(dims) for name, tensor in safe_open(path)}
            return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in found.items()}

        def cast_first(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(dtype).permute(dims).contiguous()

        def permute_first(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.permute(dims).contiguous().to(dtype)

        def load(finish: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Any]:
            return lambda: {name: finish(tensor) for name, tensor in safe_open(path)}

        if self.dtype is None:
            permuted = "safe_open .permute().contiguous()"
            return {"rustload": ours, permuted: load(permute_first), "safe_open, numpy.transpose": numpy}
        return {
            "rustload": ours,
            "safe_open .to().permute().contiguous()": load(cast_first),
            "safe_open .permute().contiguous().to()": load(permute_first),
        }

    def limit_probe(self) -> Callable[[], object]:
        return movement(self.nbytes // 4, DTYPES[self.dtype])


class GraphCase(DataCase):
    """Load the object graph of a `.bin` under torch: owned, or mapped and untouched."""

    suffix = ".bin"

    def __init__(self, of: OpenCase | LoadCase, *, mmap: bool) -> None:
        self.of, self.mmap = of, mmap
        self.allocates = self.reads = not mmap
        count = len(of.SHAPES) * of.layers if isinstance(of, LoadCase) else of.count
        self.title = (
            f"torch.load of {count:,} tensors, {self.nbytes / 1e6:.0f} MB, {'mapped' if mmap else 'owned'}"
        )
        self.limit = "reading the metadata" if mmap else "copying the same bytes between touched buffers"

    @property
    def nbytes(self) -> int:
        return self.of.nbytes

    @property
    def path(self) -> Path:
        return self.of.path

    def tensors(self) -> dict[str, torch.Tensor]:
        return self.of.tensors()

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, mmap = self.path, self.mmap
        return {
            "rustload": lambda: rustload.torch.load(path, mmap=mmap),
            "torch.load": lambda: torch_load(path, mmap=mmap),
        }

    def check(self) -> None:
        ours, theirs = self.ways().values()
        found, expected = ours(), theirs()
        assert list(found) == list(expected)
        assert all(same_bits(found[name], tensor) for name, tensor in expected.items())

    def limit_probe(self) -> Callable[[], object]:
        return (
            read_metadata(self.path, self.nbytes) if self.mmap else movement(self.nbytes // 4, torch.float32)
        )
