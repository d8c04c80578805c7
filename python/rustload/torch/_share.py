"""`share="node"`: the ranks of a machine read its part of a file once, each a share of it, into the page cache.

For cold files on a network file system, where each rank that reads by itself fetches replicated tensors again. Ranks exchange
what they need, and errors, by collectives of the default group; elements are never sent.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch.distributed as dist

from rustload import _rustload
from rustload._common.request import Request
from rustload._common.sizes import format_bytes
from rustload.errors import _check_one_of
from rustload.torch._hooks import ComputedTensor
from rustload.torch._shards import is_dtensor, local_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload.torch._plan import Step

__all__ = ["Share", "agreed", "is_shared", "rows_needed", "share_of", "warm_up"]

Share: TypeAlias = Literal["node"] | None
"""Who shares reads: the ranks of one machine, or none."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# The bytes that are read ahead at once, and those of a part: many ranges of a slow file have to be under way.
_WINDOW_BYTES, _CHUNK_BYTES = 64 << 20, 4 << 20

Rows: TypeAlias = dict[str, tuple[int, int]]
"""For each tensor of the file, the first index of dimension 0 that is needed, and the one after the last."""


class Piece(NamedTuple):
    """Rows of a tensor of the file, to be read ahead."""

    name: str
    start: int
    stop: int


def is_shared(share: Share) -> bool:
    """Whether reads are shared: if there are other ranks.

    Raises:
        ValueError: `share` has another value.
    """
    _check_one_of("share", share, (None, "node"))
    return share == "node" and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


@contextlib.contextmanager
def agreed(*, shared: bool) -> Iterator[None]:
    """A step that succeeds on all ranks or on none.

    If it has collectives, they come before anything that can fail: a rank that has failed gathers errors next.

    Raises:
        RuntimeError: The step failed on another rank; the message has the rank and the cause.
    """
    if not shared:
        yield
        return
    try:
        yield
    except Exception as error:
        _gather(f"{type(error).__name__}: {error}")
        raise
    for rank, failure in enumerate(_gather(None)):
        if failure is not None:
            raise RuntimeError(f"rank {rank} failed to load: {failure}")


def _gather(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def rows_needed(checkpoint: Checkpoint, steps: Sequence[Step]) -> Rows:
    """The rows of each tensor of the file that this rank reads.

    Of a tensor that is transposed or sharded in another dimension, all rows.
    """
    needed: Rows = {}
    for step in steps:
        runs = local_runs(step.slot.tensor, step.slot.names[0]) if is_dtensor(step.slot.tensor) else None
        sources: list[Any] = [step.whole, *step.others]
        for lazy in sources:
            if isinstance(lazy, ComputedTensor) or lazy.name not in checkpoint:
                continue
            stored = checkpoint[lazy.name]
            rows = stored.shape[0] if stored.ndim else 1
            first, last = 0, rows
            if is_dtensor(step.slot.tensor) and (lazy.shape, lazy.strides) == (stored.shape, stored.strides):
                held = [run for run in (runs[0] if runs else []) if run[0] < run[1]]
                first, last = (held[0][0], held[-1][1]) if held else (0, 0)
            if first < last:
                before = needed.get(lazy.name, (first, last))
                needed[lazy.name] = (min(before[0], first), max(before[1], last))
    return needed


def warm_up(checkpoint: Checkpoint, needed: Rows) -> str:
    """Reads this rank's share of what its machine needs; returns a note that says how much.

    Called by all ranks.
    """
    try:
        machine = _BOOT_ID.read_text()
    except OSError:
        machine = str(dist.get_rank())  # nothing is shared with another rank
    there = [(rank, rows) for rank, (name, rows) in enumerate(_gather((machine, needed))) if name == machine]
    number = [rank for rank, _ in there].index(dist.get_rank())
    sizes = {name: _row_bytes(checkpoint, name) for _, rows in there for name in rows}
    order = [name for name in checkpoint if name in sizes]
    pieces = share_of([rows for _, rows in there], sizes, order, number)
    total, parts = 0, []
    for name, start, stop in pieces:
        lazy = checkpoint[name]
        total += (stop - start) * sizes[name]
        step = max(1, _CHUNK_BYTES // max(1, sizes[name]))
        rows = range(start, stop, step) if lazy.ndim else ()
        parts += [lazy[first : min(first + step, stop)] for first in rows] or [lazy]
    if parts:
        stream = _rustload.stream(
            [(part._core, Request(copy=True)) for part in parts],
            window=_WINDOW_BYTES,
            threads=None,
            by_file=True,
            share_storages=False,
            results_kept=False,
        )
        while stream.next() is not None:
            pass
    return (
        f"{format_bytes(total)} were read ahead, as a share of what {len(there)} ranks of this machine need"
    )


def _row_bytes(checkpoint: Checkpoint, name: str) -> int:
    lazy = checkpoint[name]
    return lazy.nbytes // max(1, lazy.shape[0] if lazy.ndim else 1)


def share_of(
    needed: Sequence[Rows], row_bytes: Mapping[str, int], order: Sequence[str], number: int
) -> list[Piece]:
    """The rows that one of several ranks reads ahead, so that together they read every row that any of them needs, once.

    Args:
        needed: What each rank needs.
        row_bytes: The size of a row of each tensor.
        order: The tensors in the order of the file.
        number: The index of the rank.
    """
    union: list[Piece] = []
    for name in order:
        for start, stop in sorted(rows[name] for rows in needed if name in rows):
            if union and union[-1].name == name and start <= union[-1].stop:
                union[-1] = union[-1]._replace(stop=max(stop, union[-1].stop))
            else:
                union.append(Piece(name, start, stop))
    total = sum((piece.stop - piece.start) * row_bytes[piece.name] for piece in union)
    lower, upper = total * number // len(needed), total * (number + 1) // len(needed)
    mine, position = [], 0
    for name, start, stop in union:
        size = max(1, row_bytes[name])
        # A row belongs to the share in which its first byte is.
        first = start + max(0, -(-(lower - position) // size))
        last = start + max(0, -(-(upper - position) // size))
        if min(first, stop) < min(last, stop):
            mine.append(Piece(name, min(first, stop), min(last, stop)))
        position += (stop - start) * row_bytes[name]
    return mine
