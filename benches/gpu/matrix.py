"""Compares rustload's tensors on a device with what torch wrote, bit by bit: dtypes, layouts, formats, and every API call.

On device "cpu" the same code runs without a GPU, except for streams, `sync=` and `cast=`, which need one.
"""

from __future__ import annotations

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

import rustload
import rustload.torch

from . import samples
from .checks import ASYNC, SYNC, Place, outcome, placed
from .ordering import captures, forks, streams
from .quantized import quantized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .checks import Check, Outcome

THREADS = 8


def outcomes(folder: Path, device: str, *, quick: bool) -> Iterator[Outcome]:
    """Runs every comparison; the files are made in `folder`."""
    place = Place(device)
    made = samples.tensors(quick=quick)
    files = samples.Files(folder, made)
    for kind in samples.FORMATS:
        path, saved = files.paths[kind], files.tensors[kind]
        with rustload.open(path, framework="torch") as ckpt:
            assert set(ckpt) == set(saved)
            for way in WAYS:
                yield outcome(f"{way.__name__}, {kind}", way(ckpt, saved, place))
    moderate = {f"{name}.moderate": samples.moderate(name) for name in samples.REAL}
    buffers = {
        f"model.{name.replace('.', '_')}": tensor
        for name, tensor in made.items()
        if name.partition(".")[0] in samples.REAL
    }
    for way, saved in ((casts, moderate), (load_into, buffers)):
        torch.save(saved, folder / "more.bin")
        with rustload.open(folder / "more.bin", framework="torch") as ckpt:
            yield outcome(way.__name__, way(ckpt, saved, place))
    for check in (quantized, *((streams, captures, forks) if place.is_cuda else ())):
        yield outcome(check.__name__, check(folder, place))


def one_by_one(ckpt: rustload.Checkpoint, saved: dict[str, torch.Tensor], place: Place) -> Iterator[Check]:
    """`handle.materialize`, of whole tensors and of slices."""
    for name, expected in saved.items():
        handle = ckpt[name]
        yield name, placed(handle.materialize(place.device), place), expected, False
        if expected.ndim and expected.numel():
            yield f"{name}[1:]", handle[1:].materialize(place.device), expected[1:], False
            part = handle[..., ::2].materialize(place.device)
            yield f"{name}[..., ::2]", part, expected[..., ::2], False


def orders(ckpt: rustload.Checkpoint, saved: dict[str, torch.Tensor], place: Place) -> Iterator[Check]:
    """`transpose=`, as a swap and as a permutation."""
    for name, expected in saved.items():
        if expected.ndim >= 2:
            found = ckpt[name].materialize(place.device, transpose=True)
            yield f"{name} transposed", _contiguous(found), expected.mT, False
        if expected.ndim == 3:
            for dims in ((2, 0, 1), (1, 0, 2), (2, 1, 0)):
                found = ckpt[name].materialize(place.device, transpose=dims)
                yield f"{name} permuted to {dims}", _contiguous(found), expected.permute(dims), False


def casts(ckpt: rustload.Checkpoint, saved: dict[str, torch.Tensor], place: Place) -> Iterator[Check]:
    """`dtype=`, with and without a transpose, with the cast on the CPU and on the GPU.

    The reference is rustload's result on the CPU; if that is the one under test, torch's, where their rules agree.
    """
    for name, given in saved.items():
        source, _, layout = name.partition(".")
        if source not in samples.REAL or layout not in ("contiguous", "sliced", "large", "moderate"):
            continue
        for target in samples.TARGETS:
            if not place.is_cuda and target.startswith("float8") and layout != "moderate":
                continue
            for transpose in (None, True):
                arguments: dict[str, Any] = {"dtype": target, "transpose": transpose, "copy": True}
                if place.is_cuda:
                    expected = ckpt[name].materialize(**arguments)
                else:
                    expected = (given if transpose is None else given.mT).to(getattr(torch, target))
                for option in place.casts:
                    found = ckpt[name].materialize(place.device, **arguments, **option)
                    yield f"{name} {arguments} {option}", _contiguous(placed(found, place)), expected, True


def all_at_once(ckpt: rustload.Checkpoint, saved: dict[str, torch.Tensor], place: Place) -> Iterator[Check]:
    """`Checkpoint.materialize`, plain, cast and transposed."""
    for name, found in ckpt.materialize(device=place.device).items():
        yield name, placed(found, place), saved[name], False
    names = [name for name in saved if name.partition(".")[0] in ("float32", "bfloat16", "int32", "bool")]
    reference = ckpt.materialize(names, dtype="float16", transpose=_matrices, copy=True)
    for option in place.casts:
        found = ckpt.materialize(names, place.device, dtype="float16", transpose=_matrices, **option)
        for name in names:
            expected = saved[name].mT if saved[name].ndim == 2 else saved[name]
            is_cast = name.startswith(("float32", "bfloat16"))
            yield (
                f"{name} to float16 {option}",
                found[name],
                reference[name] if is_cast and place.is_cuda else expected.to(found[name].dtype),
                is_cast,
            )


def streamed(ckpt: rustload.Checkpoint, saved: dict[str, torch.Tensor], place: Place) -> Iterator[Check]:
    """`Checkpoint.stream` in each order, with a large and a small window, and closed halfway."""
    for order in ("file", "name", "given"):
        for memory in ("256MiB", "8MiB"):
            seen = []
            for name, found in ckpt.stream(device=place.device, order=order, memory=memory):
                seen.append(name)
                yield f"{name}, order {order}, memory {memory}", placed(found, place), saved[name], False
            assert sorted(seen) == sorted(saved), f"order {order}: {len(seen)} of {len(saved)} names"
    for name, found in ckpt.stream(device=place.device):
        yield f"{name}, of a stream that is left", found, saved[name], False
        break


def out(ckpt: rustload.Checkpoint, saved: dict[str, torch.Tensor], place: Place) -> Iterator[Check]:
    """`out=`: contiguous, strided, transposed, and of another dtype."""
    for name, expected in saved.items():
        if expected.is_conj():
            continue
        dtype, shape = expected.dtype, tuple(expected.shape)
        target = torch.empty(shape, dtype=dtype, device=place.device)
        yield f"{name}, out=", ckpt[name].materialize(out=target), expected, False
        if len(shape) >= 2 and name.partition(".")[0] in samples.REAL:
            wide = torch.empty((*shape[:-1], 2 * shape[-1]), dtype=dtype, device=place.device)[..., ::2]
            yield f"{name}, strided out=", ckpt[name].materialize(out=wide), expected, False
            transposed = torch.empty((*shape[:-2], shape[-1], shape[-2]), dtype=dtype, device=place.device).mT
            yield f"{name}, transposed out=", ckpt[name].materialize(out=transposed), expected, False
        if name.startswith(("float32.", "bfloat16.")):
            other = torch.bfloat16 if dtype == torch.float32 else torch.float32
            target = torch.empty(shape, dtype=other, device=place.device)
            reference = (
                ckpt[name].materialize(dtype=other, copy=True) if place.is_cuda else expected.to(other)
            )
            yield f"{name}, out= of {other}", ckpt[name].materialize(out=target), reference, True


def threads(ckpt: rustload.Checkpoint, saved: dict[str, torch.Tensor], place: Place) -> Iterator[Check]:
    """All tensors from several threads at once, each with a stream of its own on a GPU."""

    def take(number: int) -> list[Check]:
        names = list(saved)[number::THREADS]
        if not place.is_cuda:
            return [(name, ckpt[name].materialize(copy=True), saved[name], False) for name in names]
        with torch.cuda.stream(torch.cuda.Stream(place.device)):  # type: ignore[no-untyped-call]
            # Every second upload is still in flight when it is copied, on the thread's stream.
            return [
                (
                    name,
                    ckpt[name].materialize(place.device, **(SYNC, ASYNC)[at % 2]).clone(),
                    saved[name],
                    False,
                )
                for at, name in enumerate(names)
            ]

    with ThreadPoolExecutor(THREADS) as pool:
        for found in pool.map(take, range(THREADS)):
            if place.is_cuda:
                torch.cuda.synchronize(place.device)
            yield from found


def frameworks(ckpt: rustload.Checkpoint, saved: dict[str, torch.Tensor], place: Place) -> Iterator[Check]:
    """Other consumers of DLPack: rustload's own buffers, and CuPy and JAX where they are installed and have the device."""
    names = [name for name in saved if name.startswith(("float32.", "int64.", "float16."))]
    names = [name for name in names if saved[name].numel()]
    if place.is_cuda:
        for name in names:
            buffer = ckpt[name].materialize(place.device, framework="dlpack")
            yield f"{name} as Buffer", placed(torch.from_dlpack(buffer), place), saved[name], False  # type: ignore[attr-defined]
        for name in names if importlib.util.find_spec("cupy") else ():
            array = ckpt[name].materialize(place.device, framework="cupy")
            yield f"{name} by CuPy", placed(torch.from_dlpack(array), place), saved[name], False  # type: ignore[attr-defined]
        for name in names if _has_jax_gpu() else ():
            if name.startswith("int64."):
                continue  # without its x64 switch, JAX has none
            array = ckpt[name].materialize(place.device, framework="jax")
            yield f"{name} by JAX", torch.from_dlpack(array), saved[name], False  # type: ignore[attr-defined]
    else:
        for name in names:
            buffer = ckpt[name].materialize(framework="dlpack", copy=True)
            yield f"{name} as Buffer", torch.from_dlpack(buffer), saved[name], False  # type: ignore[attr-defined]


WAYS: tuple[Callable[[rustload.Checkpoint, dict[str, torch.Tensor], Place], Iterator[Check]], ...] = (
    one_by_one,
    orders,
    casts,
    all_at_once,
    streamed,
    out,
    threads,
    frameworks,
)


def load_into(ckpt: rustload.Checkpoint, saved: dict[str, torch.Tensor], place: Place) -> Iterator[Check]:
    """`rustload.torch.load_into` a module on the meta device, one on the device, and one of other dtypes."""
    for start in ("meta", place.device):
        model = _module(saved, start)
        rustload.torch.load_into(model, ckpt, device_map={"": place.device})
        for name, found in model.state_dict().items():
            yield f"{name}, from {start}", placed(found, place), saved[name], False
    model = _module(saved, "meta")
    rustload.torch.load_into(model, ckpt, dtype={"*.float32_*": "bfloat16"}, device_map={"": place.device})
    state = model.state_dict()
    for name in (name for name in saved if ".float32_" in name):
        if place.is_cuda:
            expected = ckpt[name].materialize(dtype="bfloat16", copy=True)
        else:
            expected = saved[name].to(torch.bfloat16)
        yield f"{name} as bfloat16", placed(state[name], place), expected, True


def _matrices(handle: rustload.LazyTensor) -> bool | None:
    return True if handle.ndim == 2 else None


def _module(saved: dict[str, torch.Tensor], device: str) -> torch.nn.Module:
    """A module whose state dict has these names, shapes and dtypes."""
    model = torch.nn.Module()
    model.add_module("model", torch.nn.Module())
    for name, tensor in saved.items():
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
        model.get_submodule("model").register_buffer(name.removeprefix("model."), empty)
    return model


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.is_contiguous(), "a converted result that is not contiguous"
    return tensor


def _has_jax_gpu() -> bool:
    if importlib.util.find_spec("jax") is None:
        return False
    # Otherwise the first use of JAX takes three quarters of the GPU's memory.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    return any(device.platform == "gpu" for device in jax.devices())
