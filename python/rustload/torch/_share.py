"""`share="node"`: the ranks of a machine read what they need once.

Of cold files on a network file system, each rank reads a share of it into the page cache. From a store, the first rank that needs
some bytes fetches them into a file, and the others read that. Ranks exchange what they need, and errors, by collectives of the
default group; elements are never sent.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

import torch.distributed as dist

from rustload import _rustload
from rustload._common.request import Request
from rustload._common.sizes import format_bytes
from rustload.errors import _check_one_of
from rustload.torch._hooks import ComputedTensor
from rustload.torch._node_folder import NodeFolder
from rustload.torch._shards import is_dtensor, local_runs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload.torch._plan import Step

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


class SharedReads:
    """What a rank shares while it loads. As a context, it ends that."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Reads of a checkpoint."""
        self._checkpoint = checkpoint
        self._folder: NodeFolder | None = None

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Reads nothing of others any more."""
        self._checkpoint._core.unshare()
        self._leave()

    def _leave(self) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            folder.remove()

    def offer(self) -> None:
        """Makes a folder by which the ranks of this machine can share, if the checkpoint is in a store."""
        core = self._checkpoint._core
        if core.reopening() is not None:
            return
        with contextlib.suppress(OSError):
            self._folder = NodeFolder.made()
            if not core.share(self._folder.path, 0, 1, self._folder.window):
                self._leave()
            core.unshare()

    def begin(self, needed: Rows) -> str:
        """Begins to share, for which files are read ahead; returns a note that says what.

        Called by all ranks.
        """
        offered = None if self._folder is None else self._folder.path
        try:
            machine = _BOOT_ID.read_text()
        except OSError:
            machine = str(dist.get_rank())  # nothing is shared with another rank
        every = enumerate(_gather((machine, needed, offered)))
        there = [(rank, rows, folder) for rank, (name, rows, folder) in every if name == machine]
        number = [rank for rank, _, _ in there].index(dist.get_rank())
        if self._checkpoint._core.reopening() is not None:
            return warm_up(self._checkpoint, [rows for _, rows, _ in there], number)
        folder = next((folder for _, _, folder in there if folder is not None), None)
        if folder != offered:
            self._leave()
            with contextlib.suppress(OSError):  # in another container, each rank fetches for itself
                self._folder = None if folder is None else NodeFolder(folder)
        files = 0
        if self._folder is not None:
            window = self._folder.window // len(there)
            files = self._checkpoint._core.share(self._folder.path, number, len(there), window)
        with_whom = f"with the {len(there)} ranks of this machine"
        return (
            f"what was fetched of {files} files of a store was shared {with_whom}"
            if files
            else "nothing was shared"
        )


def warm_up(checkpoint: Checkpoint, every: Sequence[Rows], number: int) -> str:
    """Reads a share of what the ranks of a machine need; returns a note that says how much.

    Args:
        checkpoint: The checkpoint.
        every: What each rank needs.
        number: The index of this rank.
    """
    sizes = {name: _row_bytes(checkpoint, name) for rows in every for name in rows}
    order = [name for name in checkpoint if name in sizes]
    pieces = share_of(every, sizes, order, number)
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
        f"{format_bytes(total)} were read ahead, as a share of what {len(every)} ranks of this machine need"
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
