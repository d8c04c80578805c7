"""Executes a plan: streams into new memory or into GPU memory, and otherwise reads in place or in windows, tensor by tensor."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import torch

from rustload._checkpoint.producers import check_memory as check
from rustload._checkpoint.producers import producer_for
from rustload._common.request import Request
from rustload._frameworks import torch as adapter
from rustload._frameworks.adapters import check_copy
from rustload._frameworks.torch import torch_dtype
from rustload._tensor.joined import JoinedTensor
from rustload.errors import NotEnoughMemoryError, _error, _Note, _pass, _say
from rustload.torch._fill import fill, is_direct, is_on_gpu
from rustload.torch._hooks import ComputedTensor
from rustload.torch._shards import is_dtensor, local_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from rustload._tensor.handle import LazyTensor
    from rustload.torch._plan import LoadOptions, Step

# With so many cores for each GPU, the default number of threads leaves enough for the others.
_SHARE_WITHOUT_BOUND = 16
_REMEDIES = (
    _pass("dtype", "for a smaller model"),
    _pass("device_map", "to divide it among devices"),
    _say("let accelerate load a layer at a time (weights_map=rustload.torch.state_dict(path))"),
    ("raise", "available_memory", ..., "if more may be taken"),
)


def execute_steps(
    steps: Sequence[Step], options: LoadOptions, sample_memory: Callable[[], None]
) -> Iterator[Step]:
    """Executes every step and yields it when it is done; `sample_memory` is called at each local maximum of host memory.

    Raises:
        FormatError: The file was truncated or changed; tensors loaded before stay loaded. The same holds for other errors of
            reading.
        ValueError: Tied parameters have different values in the file.
    """
    streamed: dict[torch.device, tuple[list[Step], list[Step]]] = {}
    rest = []
    for step in steps:
        if _is_streamed(step):
            streamed.setdefault(step.device, ([], []))[step.is_new].append(step)
        else:
            rest.append(step)
    gpus = [device for device in streamed if is_on_gpu(device)]
    threads = _threads_per_gpu(len(gpus))
    streams = []
    for device, groups in streamed.items():
        gpu = device if device in gpus else None
        total = sum(step.nbytes for group in groups for step in group)
        streams.append((_stream_groups(groups, options, gpu, threads), total))
    for step, data in _side_by_side(streams):
        _assign_result(step, data, options)
        yield step
    for step in rest:
        _load_one(step, options, sample_memory)
        yield step


def check_memory(steps: Sequence[Step], options: LoadOptions) -> None:
    """Compares the memory of new tensors, less that of the tensors that they replace, with what each device has left.

    Raises:
        NotEnoughMemoryError: They need more (code `NotEnoughMemory`); nothing was changed.
    """
    by_device: dict[torch.device, list[Step]] = {}
    for step in steps:
        if step.is_new:
            by_device.setdefault(step.device, []).append(step)
    for device, new in by_device.items():
        if device.type != "cpu" and not is_on_gpu(device):
            continue
        gpu = device if is_on_gpu(device) else None
        streamed = [step for step in new if _is_streamed(step)]
        more = sum(step.nbytes for step in new if not _is_streamed(step))
        more -= sum(step.slot.tensor.nbytes for step in new if _replaces(step))
        try:
            check(
                [step.lazy for step in streamed],
                _requests_of(streamed, options, gpu),
                adapter.gpu_for(gpu),
                share_storages=True,
                more=more,
            )
        except NotEnoughMemoryError as error:
            # Not to stream, or to take fewer tensors: the model needs all.
            error.__notes__ = [_Note(_REMEDIES)]
            raise


def _replaces(step: Step) -> bool:
    """Whether the new tensor takes the place of one on the same device."""
    return not step.is_lazy and step.slot.tensor.device == step.device


def _is_streamed(step: Step) -> bool:
    """Whether a stream can make the result: new host memory, or GPU memory."""
    if step.is_lazy or isinstance(step.lazy, (ComputedTensor, JoinedTensor)):
        return False
    if is_on_gpu(step.device):
        return step.is_new or is_direct(local_tensor(step.slot.tensor))
    return step.is_new and step.device.type == "cpu"


def _threads_per_gpu(gpus: int) -> int | None:
    """The threads that read and cast for each GPU: a share of the cores if there are several GPUs; None for the default."""
    if gpus < 2:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    share = cores // gpus
    return max(1, share) if share < _SHARE_WITHOUT_BOUND else None


def _side_by_side(
    streams: Sequence[tuple[Generator[tuple[Step, torch.Tensor]], int]],
) -> Iterator[tuple[Step, torch.Tensor]]:
    """The results of streams, each with its bytes in all: always from the stream of which the smallest part was taken.

    Each stream reads ahead, so the links of all GPUs are busy at once.
    """
    with contextlib.ExitStack() as stack:
        for stream, _ in streams:
            stack.enter_context(contextlib.closing(stream))
        taken = dict.fromkeys(range(len(streams)), 0.0)
        while taken:
            number = min(taken, key=taken.__getitem__)
            stream, total = streams[number]
            found = next(stream, None)
            if found is None:
                del taken[number]
                continue
            taken[number] += found[0].nbytes / max(total, 1)
            yield found


def _stream_groups(
    groups: Sequence[Sequence[Step]], options: LoadOptions, gpu: torch.device | None, threads: int | None
) -> Generator[tuple[Step, torch.Tensor]]:
    """Streams the tensors of one device, group after group, each in the file's order.

    Either all steps of a group get new storage, or none does; the latter are all in GPU memory and written in place.
    """
    for steps in filter(None, groups):
        producer = producer_for(
            [step.lazy for step in steps],
            _requests_of(steps, options, gpu),
            adapter,
            gpu,
            by_file=True,
            window=options.window,
            gpu_window=options.window,
            threads=None if gpu is None else threads,
            share_storages=True,
            results_kept=True,
            cast=options.cast,
            into=None if steps[0].is_new else [local_tensor(step.slot.tensor) for step in steps],
        )
        with contextlib.closing(producer):
            for index in producer.order:
                for data in producer.next(many=False):
                    yield steps[index], data


def _requests_of(steps: Sequence[Step], options: LoadOptions, gpu: torch.device | None) -> list[Request]:
    """How the stream of these steps makes their results."""
    return [
        Request(
            dtype=step.dtype,
            copy=step.copy if gpu is None else True,
            writable=gpu is None,  # the model keeps it
            allow_lossy=options.allow_lossy,
            dequantize=step.dequantize,
            mappings=step.lazy._context.mappings,
        )
        for step in steps
    ]


def _assign_result(step: Step, data: torch.Tensor, options: LoadOptions) -> None:
    """Assigns `data` to the model's parameter or buffer, if it was not written in place already."""
    slot = step.slot
    if not step.is_new:
        torch.autograd.graph.increment_version(slot.tensor)  # it was written in place
    elif slot.on_meta or options.assign is True:
        made = slot.parameter(data)
        for one in (slot, *step.also):
            one.assign(made)
    elif is_dtensor(slot.tensor):
        # Setting `data` would leave a DTensor's local tensor as it is.
        torch.utils.swap_tensors(slot.tensor, slot.parameter(data))  # type: ignore[no-untyped-call]
    else:
        # The parameter stays the same object, because an optimizer may hold it.
        slot.tensor.data = data
        slot.tensor.grad = None
    _check_tied_values(step, options)


def _load_one(step: Step, options: LoadOptions, sample_memory: Callable[[], None]) -> None:
    """Reads one tensor into existing memory, or into new memory on its device."""
    slot = step.slot
    dtype = torch_dtype(step.dtype)
    if step.is_lazy:
        # The file sets the shape of the memory, which is allocated first.
        check_copy(step.lazy._core)
        # A meta tensor stays on meta: it cannot change its device type in place, so it is replaced below.
        target = "meta" if slot.on_meta else step.device
        slot.tensor.materialize(step.lazy.shape, device=target, dtype=dtype)  # type: ignore[attr-defined]  # a lazy parameter has it
    is_made = step.is_new and (slot.on_meta or not step.is_lazy)
    filled = (
        torch.empty(step.lazy.shape, dtype=dtype, device=step.device)
        if is_made
        else local_tensor(slot.tensor)
    )
    fill(
        filled,
        step.lazy,
        options.window,
        allow_lossy=options.allow_lossy,
        dequantize=step.dequantize,
        cast=options.cast,
        sample_memory=sample_memory,
    )
    if is_made:
        _assign_result(step, filled, options)
    else:
        _check_tied_values(step, options)


def _check_tied_values(step: Step, options: LoadOptions) -> None:
    """Raises ValueError if the other tensors of the file for the same slot are not equal to it."""
    for other in step.others:
        if not _is_equal(local_tensor(step.slot.tensor), other, options, dequantize=step.dequantize):
            both = f"{step.lazy.name!r} and {other.name!r}"
            note = "untie them in the model, or leave one out with rename={...: None}"
            raise _error("ModelMismatch", f"{both} differ in the file and are tied in the model", note)


def _is_equal(filled: torch.Tensor, lazy: LazyTensor, options: LoadOptions, *, dequantize: bool) -> bool:
    """Whether the loaded tensor equals `lazy`, compared in windows. NaN equals NaN.

    Where the file decides dtypes, `lazy` may have another one than the loaded tensor: then neither may be the other one rounded.
    """
    dtypes = {filled.dtype}
    if options.assign is True and not dequantize and options.rules.dtype(lazy) is None:
        dtypes.add(torch_dtype(lazy.dtype))
    if not filled.ndim:
        filled, lazy = filled[None], lazy[None]
    nbytes = filled.numel() * filled.dtype.itemsize
    rows = max(1, min(options.window, 16 << 20) * filled.shape[0] // max(nbytes, 1))
    for first in range(0, filled.shape[0], rows):
        part = slice(first, first + rows)
        for dtype in dtypes:
            other = lazy[part].materialize(
                dtype=dtype, framework="torch", allow_lossy=options.allow_lossy, dequantize=dequantize
            )
            mine = filled[part].to(dtype)
            other = other.to(mine.device)
            if not torch.equal(mine, other) and not bool(
                ((mine == other) | ((mine != mine) & (other != other))).all()
            ):
                return False
    return True
