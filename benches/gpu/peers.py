"""Loaders that load a file onto a GPU: rustload, torch, safetensors, and others if they are installed.

Every loader takes a path, the conversion and a device, and returns tensors on the device. Each is used as its own documentation
recommends.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import safetensors
import safetensors.torch
import torch

import rustload
import rustload.torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# The files are in the page cache, or on a tmpfs: around the cache, these loaders would measure the disk.
os.environ.setdefault("FASTSAFETENSORS_ODIRECT", "0")
os.environ.setdefault("INSTANTTENSOR_BACKEND", "BUFFERED")

OURS = "rustload"
TORCH_LOAD = "torch.load(map_location)"
LOAD_FILE = "safetensors load_file(device)"
PREFETCH = "safetensors prefetch"
INSTANT = "InstantTensor"


@dataclass(frozen=True)
class Conversion:
    """The conversion of every tensor.

    Attributes:
        dtype: Another dtype, or None.
        transpose: Whether the last two dimensions are swapped.
    """

    dtype: str | None = None
    transpose: bool = False

    @property
    def converts(self) -> bool:
        """Whether anything is converted."""
        return self.dtype is not None or self.transpose

    def finish(self, tensor: torch.Tensor) -> torch.Tensor:
        """Converts with torch on the tensor's device."""
        if self.dtype is not None:
            tensor = tensor.to(getattr(torch, self.dtype))
        return tensor.mT.contiguous() if self.transpose else tensor


class Result(dict[str, torch.Tensor]):
    """Tensors by name, and the object that has to be closed after them."""

    def __init__(self, tensors: dict[str, torch.Tensor], close: Callable[[], object] | None = None) -> None:
        """Keeps both."""
        super().__init__(tensors)
        self._close = close

    def __del__(self) -> None:
        """Drops the tensors first."""
        self.clear()
        if self._close is not None:
            self._close()


Way: TypeAlias = "Callable[[Path, Conversion, str], Result]"


def ways(suffix: str, conversion: Conversion) -> dict[str, Way]:
    """All loaders that are available for this kind of file, rustload first."""
    found: dict[str, Way] = {OURS: ours, "rustload, stream": ours_streamed}
    if conversion.converts:
        found |= {"rustload, cast='cpu'": _ours_at("cpu"), "rustload, cast='gpu'": _ours_at("gpu")}
    if suffix == ".bin":
        found["rustload.torch.load(map_location)"] = ours_as_torch_load
    else:
        found |= {
            "rustload.safe_open": ours_as_safe_open,
            "rustload.safe_open, prefetch": ours_as_prefetch,
        }
    if suffix == ".bin":
        found |= {
            TORCH_LOAD: torch_load,
            "torch.load(mmap), map_location": torch_load_mapped,
            "torch.load(mmap), pin_memory, non_blocking": torch_load_pinned,
        }
        if conversion.converts:
            found["torch.load(mmap), on the CPU, then .to"] = torch_load_on_cpu
        return found
    found[LOAD_FILE] = load_file
    if hasattr(safetensors.safe_open, "prefetch"):
        found[PREFETCH] = prefetch
    for module, name, way in (
        ("fastsafetensors", "fastsafetensors, nogds", fastsafetensors),
        ("instanttensor", INSTANT, instanttensor),
        ("runai_model_streamer", "runai model streamer", runai),
    ):
        if importlib.util.find_spec(module):
            found[name] = way
    return found


def ours(path: Path, conversion: Conversion, device: str, **options: Any) -> Result:
    """`Checkpoint.materialize`."""
    with rustload.open(path, framework="torch") as ckpt:
        transpose = {"*": True} if conversion.transpose else None
        return Result(ckpt.materialize(device=device, dtype=conversion.dtype, transpose=transpose, **options))


def _ours_at(cast: str) -> Way:
    return lambda path, conversion, device: ours(path, conversion, device, cast=cast)


def ours_streamed(path: Path, conversion: Conversion, device: str) -> Result:
    """`Checkpoint.stream`; keeps all results."""
    with rustload.open(path, framework="torch") as ckpt:
        transpose = {"*": True} if conversion.transpose else None
        return Result(dict(ckpt.stream(device=device, dtype=conversion.dtype, transpose=transpose)))


def ours_as_torch_load(path: Path, conversion: Conversion, device: str) -> Result:
    """`rustload.torch.load`, which uploads whole storages; torch converts."""
    return _finished(rustload.torch.load(path, map_location=device), conversion)


def ours_as_safe_open(path: Path, conversion: Conversion, device: str) -> Result:
    """`rustload.safe_open`, tensor by tensor; torch converts."""
    with rustload.safe_open(path, "pt", device=device) as file:
        return Result({name: conversion.finish(file.get_tensor(name)) for name in file.keys()})  # noqa: SIM118 - no mapping


def ours_as_prefetch(path: Path, conversion: Conversion, device: str) -> Result:
    """`rustload.safe_open(...).prefetch`, which reads ahead; torch converts."""
    with rustload.safe_open(path, "pt", device=device) as file, file.prefetch() as loader:
        return _finished(dict(loader), conversion)


def torch_load(path: Path, conversion: Conversion, device: str) -> Result:
    """`torch.load(map_location=device)`: reads each storage to the CPU and copies it."""
    return _finished(torch.load(path, map_location=device, weights_only=True), conversion)


def torch_load_mapped(path: Path, conversion: Conversion, device: str) -> Result:
    """`torch.load(mmap=True)`, then copies from the mapped file."""
    return _finished(torch.load(path, map_location=device, weights_only=True, mmap=True), conversion)


def torch_load_pinned(path: Path, conversion: Conversion, device: str) -> Result:
    """Copies the mapped file to pinned memory, and from there asynchronously to the device."""
    state = torch.load(path, weights_only=True, mmap=True)
    return Result(
        {
            name: conversion.finish(tensor.pin_memory().to(device, non_blocking=True))
            for name, tensor in state.items()
        }
    )


def torch_load_on_cpu(path: Path, conversion: Conversion, device: str) -> Result:
    """Converts on the CPU, then copies."""
    state = torch.load(path, weights_only=True, mmap=True)
    return Result({name: conversion.finish(tensor).to(device) for name, tensor in state.items()})


def load_file(path: Path, conversion: Conversion, device: str) -> Result:
    """`safetensors.torch.load_file`."""
    return _finished(safetensors.torch.load_file(path, device=device), conversion)


def prefetch(path: Path, conversion: Conversion, device: str) -> Result:
    """`safe_open.prefetch`, which reads in threads; only in pre-releases of safetensors."""
    with safetensors.safe_open(path, framework="pt", device=device) as file:
        loader = file.prefetch()
        try:
            return _finished(dict(iter(loader)), conversion)
        finally:
            loader.close()


def fastsafetensors(path: Path, conversion: Conversion, device: str) -> Result:
    """fastsafetensors without GPUDirect Storage, because the files are in the page cache."""
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), torch.device(device), nogds=True)
    loader.add_filenames({0: [str(path)]})
    buffers = loader.copy_files_to_device()
    state = {name: buffers.get_tensor(name) for name in loader.get_keys()}

    def close() -> None:
        buffers.close()
        loader.close()

    result = Result({name: conversion.finish(tensor) for name, tensor in state.items()}, close)
    state.clear()
    return result


def instanttensor(path: Path, conversion: Conversion, device: str) -> Result:
    """InstantTensor's `safe_open`; older versions return a buffer that they reuse, so it is copied."""
    from instanttensor import safe_open

    owned = "copy" in inspect.signature(safe_open).parameters
    with safe_open(str(path), framework="pt", device=torch.device(device).index or 0) as file:
        return Result(
            {name: conversion.finish(tensor if owned else tensor.clone()) for name, tensor in file.tensors()}
        )


def runai(path: Path, conversion: Conversion, device: str) -> Result:
    """The Run:ai streamer: its host memory is reused, so each tensor is copied at once."""
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(str(path))
        return Result({name: conversion.finish(tensor.to(device)) for name, tensor in streamer.get_tensors()})


def _finished(state: dict[str, torch.Tensor], conversion: Conversion) -> Result:
    # Frees each source as soon as its result exists, as careful users do, so that the peaks of other loaders are fair.
    return Result({name: conversion.finish(state.pop(name)) for name in list(state)})
