"""Whether uploads are ordered with the caller's CUDA stream, leave graph captures alone, and are refused in forked children."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import torch

import rustload

from . import samples
from .checks import ASYNC, SYNC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .checks import Check, Place

PLAIN_AND_TRANSPOSED: tuple[dict[str, Any], ...] = ({}, {"transpose": True})


def streams(folder: Path, place: Place) -> Iterator[Check]:
    """Results on the default stream, a stream of the caller and a high-priority stream.

    Memory that a long kernel of the caller's stream still writes to is freed and reused at once, and results of
    `sync=False` are used by the next operation of that stream.
    """
    expected = samples.patterns("float32", (4096, 2048), 3)
    torch.save({"weight": expected}, folder / "streams.bin")
    with rustload.open(folder / "streams.bin", framework="torch") as ckpt:
        handle = ckpt["weight"]
        found: torch.Tensor | None
        new: Any = torch.cuda.Stream
        for stream in (torch.cuda.default_stream(place.device), new(place.device), new(place.device, -1)):
            with torch.cuda.stream(stream):
                for sync in (SYNC, ASYNC):
                    for arguments in PLAIN_AND_TRANSPOSED:
                        torch.cuda.empty_cache()
                        # The result of the round before would be freed during this one.
                        found = None
                        old = _written_by_stream(expected, place)
                        del old
                        before = torch.cuda.memory_allocated(place.device)
                        found = handle.materialize(place.device, **arguments, **sync)
                        taken = torch.cuda.memory_allocated(place.device) - before
                        assert taken >= found.nbytes, "the result is not in torch's allocator"
                        used = _value_seen_by(found, stream)
                        correct = expected.mT if arguments else expected
                        yield f"{sync} {arguments} on {stream}", used, correct, False
                given = _written_by_stream(expected, place)
                handle.materialize(out=given, **ASYNC)
                yield f"out=, sync=False on {stream}", _value_seen_by(given, stream), expected, False
                state = ckpt.materialize(device=place.device, **ASYNC)
                used = _value_seen_by(state["weight"], stream)
                yield f"Checkpoint.materialize(sync=False) on {stream}", used, expected, False
                for name, found in ckpt.stream(device=place.device, **ASYNC):
                    yield (
                        f"{name} of Checkpoint.stream(sync=False) on {stream}",
                        _value_seen_by(found, stream),
                        expected,
                        False,
                    )


def captures(folder: Path, place: Place) -> Iterator[Check]:
    """CUDA graphs: a load into a capture is refused and the capture goes on; a load elsewhere does not disturb it."""
    expected = samples.patterns("float32", (512, 2048), 3)
    torch.save({"weight": expected}, folder / "captures.bin")
    with rustload.open(folder / "captures.bin", framework="torch") as ckpt:
        handle = ckpt["weight"]
        for what, load in (
            ("on the capturing stream", lambda: _is_refused(lambda: handle.materialize(place.device))),
            ("on another thread", lambda: _equals_elsewhere(handle, expected, place)),
        ):
            counter = torch.zeros(4, device=place.device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                counter.add_(1)
                outcome = load()  # type: ignore[no-untyped-call]
                counter.add_(1)
            graph.replay()
            torch.cuda.synchronize(place.device)
            yield f"a load {what}", torch.tensor(outcome), torch.tensor(True), False  # noqa: FBT003 - a value
            yield f"the graph after a load {what}", counter, torch.full((4,), 2.0), False


def forks(folder: Path, place: Place) -> Iterator[Check]:
    """A forked child of a process that used CUDA gets a DeviceError, and the parent goes on."""
    expected = samples.patterns("float32", (512, 2048), 4)
    torch.save({"weight": expected}, folder / "forks.bin")
    with rustload.open(folder / "forks.bin", framework="torch") as ckpt:
        handle = ckpt["weight"]
        handle.materialize(place.device)
        child = os.fork()
        if not child:
            try:
                os._exit(0 if _is_refused(lambda: handle.materialize(place.device)) else 1)
            finally:
                os._exit(2)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        yield "the child's exit code", torch.tensor(status), torch.tensor(0), False
        yield "the parent's next load", handle.materialize(place.device), expected, False


def _is_refused(load: Callable[[], object]) -> bool:
    try:
        load()
    except rustload.DeviceError:
        return True
    return False


def _equals_elsewhere(handle: rustload.LazyTensor, expected: torch.Tensor, place: Place) -> bool:
    """Whether a load on another thread, whose current stream does not capture, gives a tensor of the right shape."""
    found: list[torch.Tensor] = []
    thread = threading.Thread(target=lambda: found.append(handle.materialize(place.device)))
    thread.start()
    thread.join()
    return len(found) == 1 and found[0].shape == expected.shape


def _written_by_stream(like: torch.Tensor, place: Place) -> torch.Tensor:
    """Device memory that the current stream keeps writing to for some milliseconds."""
    made = torch.empty(like.shape, dtype=like.dtype, device=place.device)
    for _ in range(200):
        made.fill_(7)
    return made


def _value_seen_by(found: torch.Tensor, stream: Any) -> torch.Tensor:
    """The value that the stream's next operation sees, before the memory is overwritten."""
    used = found.clone()
    found.fill_(3)
    stream.synchronize()
    return used
