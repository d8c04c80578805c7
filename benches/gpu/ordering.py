"""Whether uploads are ordered with the caller's CUDA stream: no copy starts too early, no result is used too early."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

import rustload

from . import samples
from .checks import ASYNC, SYNC

if TYPE_CHECKING:
    from collections.abc import Iterator
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
        new: Any = torch.cuda.Stream
        for stream in (torch.cuda.default_stream(place.device), new(place.device), new(place.device, -1)):
            with torch.cuda.stream(stream):
                for sync in (SYNC, ASYNC):
                    for arguments in PLAIN_AND_TRANSPOSED:
                        torch.cuda.empty_cache()
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
