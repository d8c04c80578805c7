"""`Uploads`: results on a GPU, made ahead of whoever takes them.

Results are made in batches. A batch is submitted to the core, which reads, casts and copies on streams of its own; when its turn
comes, the caller's stream is made to wait for it, and casts and transposes on the GPU are enqueued there. Two batches with such
work can be on their way, one panel each. Nothing waits for the GPU unless the caller wants results to be complete.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._cuda.place import ITEMSIZE
from rustload._cuda.split import PANEL, Piece, pieces, straight_pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    from rustload._common.request import Cast, Wanted
    from rustload._cuda.place import Panel, Place
    from rustload._rustload import Buffer

__all__ = ["Uploads", "Work"]

# Bytes that are submitted at once, and tensors.
_BATCH = 32 << 20
_COUNT = 2048

# Small results share slabs of the framework's memory. Parts start where kernels like their operands to.
_SLAB = 2 << 20
_SHARES_SLAB = 64 << 10
_ALIGNMENT = 256


@dataclasses.dataclass(slots=True)
class Work:
    """One result.

    Attributes:
        core: What is read.
        wanted: How; `copy` does not count.
        made: Where it goes, if that is there; the result when it is given.
        nbytes: Bytes of the result.
        held: The tensor whose memory it is: a slab, or the result.
    """

    core: _rustload.Tensor | _rustload.Joined
    wanted: Wanted
    made: Any = None
    nbytes: int = 0
    held: Any = None


class _Batch:
    """What is submitted at once: first what goes straight to its place, then what goes to the panel."""

    __slots__ = ("done", "moves", "nbytes", "on_panel", "panel", "straight", "ticket")

    def __init__(self) -> None:
        self.straight: list[tuple[_rustload.Tensor, Wanted, Buffer]] = []
        self.moves: list[tuple[int, Piece]] = []
        self.done: list[Work] = []
        self.nbytes = 0
        self.on_panel = 0
        self.panel: Panel | None = None
        self.ticket: int | None = None

    def submit(self, upload: _rustload.Upload, stream: int | None) -> None:
        """Has the core begin."""
        all_of_it = self.straight
        if self.panel is not None:
            row = self.panel.row
            all_of_it = all_of_it + [
                (piece.core, piece.wanted, row.part(start, piece.dtype, piece.core.shape))
                for start, piece in self.moves
            ]
        if not all_of_it:
            return
        ways = {id(wanted): wanted for _, wanted, _ in all_of_it}
        numbers = {way: number for number, way in enumerate(ways)}
        self.ticket = upload.submit(
            [tensor for tensor, _, _ in all_of_it],
            list(ways.values()),
            [numbers[id(wanted)] for _, wanted, _ in all_of_it],
            [into for _, _, into in all_of_it],
            stream=stream,
        )


class Uploads:
    """Makes results on one GPU. Close it, or use it with `with`: then nothing is left on its way.

    Args:
        place: Where.
        cast: Who casts.
        window: Bytes of results that may be made ahead; None for as many as there are.
        threads: Threads that read and cast, at most.
    """

    def __init__(self, place: Place, *, cast: Cast, window: int | None, threads: int | None) -> None:
        self._place = place
        self._cast: Cast = cast
        self._window = window
        self._held = 0
        self._waiting: deque[_Batch] = deque()
        self._ready: deque[Work] = deque()
        self._panels: list[Panel] = []
        self._slab: tuple[Any, Buffer, int] | None = None
        self._upload = _rustload.upload(place.index, window=window or PANEL, threads=threads)

    def results(self, works: Iterable[Work], *, sync: bool) -> Iterator[Work]:
        """Gives the works in their order when they are made.

        Args:
            works: What is to be made; taken as there is room.
            sync: Whether results are complete when they are given. Otherwise they are so for what the caller does on his
                stream from then on.
        """
        queue = _Queue(works)
        while True:
            while not self._ready:
                self._place.follow(self._on_their_way(queue))
                self._submit_ahead(queue)
                if not self._waiting:
                    return
                self._finish(self._waiting.popleft(), sync=sync)
            work = self._ready.popleft()
            self._held -= work.nbytes
            yield work
            # The caller has it: nothing of it may stay here.
            del work

    def close(self) -> None:
        """Ends what is on its way and waits until no copy is left."""
        self._upload.close()
        self._waiting.clear()
        self._ready.clear()
        self._panels.clear()
        self._slab = None

    def __enter__(self) -> Uploads:
        """Itself."""
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def _on_their_way(self, queue: _Queue) -> Iterator[Any]:
        if queue.parts is not None and queue.work is not None:
            yield queue.work.held
        yield from (panel.held for panel in self._panels)
        for batch in self._waiting:
            yield from (work.held for work in batch.done)
            yield from (piece.target for _, piece in batch.moves)

    def _submit_ahead(self, queue: _Queue) -> None:
        """Submits as much as there is room for."""
        while True:
            if sum(1 for batch in self._waiting if batch.on_panel) == 2:
                return
            batch = self._gathered(queue)
            if not (batch.straight or batch.moves or batch.done):
                return
            if batch.on_panel:
                batch.panel = self._panel(batch.on_panel)
            batch.submit(self._upload, self._place.stream())
            self._waiting.append(batch)

    def _gathered(self, queue: _Queue) -> _Batch:
        """The next batch; empty if there is no room for any, or nothing left."""
        batch = _Batch()
        straight, done = batch.straight, batch.done
        while (
            batch.nbytes < _BATCH
            and len(straight) < _COUNT
            and len(batch.moves) < _COUNT
            and len(done) < _COUNT
        ):
            if queue.parts is None:
                work = queue.work
                if work is None or not self._has_room(work, batch):
                    break
                self._held += work.nbytes
                if _is_as_in_the_file(work):
                    straight.append((work.core, work.wanted, self._memory(work, work.core.shape)))  # type: ignore[arg-type]  # no Joined
                    batch.nbytes += work.nbytes
                    done.append(queue.finished())
                    continue
                queue.parts = self._begun(work)
            if queue.piece is None:
                queue.piece = next(queue.parts, None)
                if queue.piece is None:
                    done.append(queue.finished())
                    continue
            if not self._taken(batch, queue.piece):
                break
            queue.piece = None
        return batch

    def _has_room(self, work: Work, batch: _Batch) -> bool:
        if self._window is None or not (self._waiting or batch.straight or batch.moves or batch.done):
            return True
        return self._held + work.nbytes <= self._window

    def _memory(self, work: Work, shape: Sequence[int]) -> Buffer:
        """The memory of a new result."""
        dtype = work.wanted.dtype or work.core.dtype
        if work.nbytes <= _SHARES_SLAB:
            work.held, into = self._of_slab(work.nbytes, dtype, shape)
            work.made = self._place.wrap(into)
        else:
            work.made, into = self._place.new(shape, dtype, self._upload)
            work.held = work.made
        return into

    def _begun(self, work: Work) -> Iterator[Piece]:
        """The pieces of a result, whose memory is there or allocated now."""
        core, wanted = work.core, work.wanted
        shape = core.result_shape(wanted)
        dtype = wanted.dtype or core.dtype
        if 0 in shape:
            core.materialize(wanted)  # says what is wrong with it
            if work.made is None:
                work.made = self._place.empty(shape, dtype, self._upload)
            work.held = work.made
            return iter(())
        into: Buffer | None = None
        if work.made is None:
            into = self._memory(work, shape)
        else:
            work.held = work.made
        if not self._place.computes:
            given = into if into is not None else self._place.row(work.made)
            return (
                Piece(part, wanted, dtype, row, is_straight=True)
                for part, wanted, row in straight_pieces(core, wanted, given)
            )
        found = pieces(core, wanted, work.made, self._cast, self._upload.rate)
        if into is None:
            return found
        made, whole = work.made, into
        return (
            piece._replace(target=whole) if piece.is_straight and piece.target is made else piece
            for piece in found
        )

    def _taken(self, batch: _Batch, piece: Piece) -> bool:
        """Whether the piece found room in the batch."""
        if piece.is_straight:
            target = piece.target
            into = target if isinstance(target, _rustload.Buffer) else self._place.row(target)
            batch.straight.append((piece.core, piece.wanted, into))
            batch.nbytes += into.nbytes
            return True
        nbytes = piece.core.size * ITEMSIZE[piece.dtype]
        start = -(-batch.on_panel // _ALIGNMENT) * _ALIGNMENT
        if start and start + nbytes > PANEL:
            return False
        batch.moves.append((start, piece))
        batch.on_panel = start + nbytes
        return True

    def _panel(self, nbytes: int) -> Panel:
        """One that no batch on its way uses."""
        used = {id(batch.panel) for batch in self._waiting}
        free = [panel for panel in self._panels if id(panel) not in used]
        for panel in free:
            if panel.nbytes >= nbytes:
                return panel
        for panel in free:
            self._panels.remove(panel)
        panel = self._place.panel(-(-nbytes // _SLAB) * _SLAB)
        self._panels.append(panel)
        return panel

    def _of_slab(self, nbytes: int, dtype: str, shape: Sequence[int]) -> tuple[Any, Buffer]:
        """A slab, and a part of it."""
        found = self._slab
        if found is None or found[2] + nbytes > _SLAB:
            found = *self._place.new([_SLAB], "uint8", self._upload), 0
        held, slab, at = found
        self._slab = held, slab, at + -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return held, slab.part(at, dtype, shape)

    def _finish(self, batch: _Batch, *, sync: bool) -> None:
        """Has the caller's stream wait for the batch and do its share."""
        if batch.ticket is not None:
            stream = self._place.stream()
            done = (sync or stream is None) and not batch.moves
            self._upload.wait(batch.ticket, stream=stream, sync=done)
        for start, piece in batch.moves:
            assert batch.panel is not None  # there are moves
            batch.panel.move(start, piece.dtype, piece.core.shape, piece.target)
        if sync and batch.moves:
            self._place.finish()
        self._ready.extend(batch.done)


def _is_as_in_the_file(work: Work) -> bool:
    """Whether it is a new tensor with elements that needs neither a cast nor another order: most are, and quickly seen to be."""
    core, wanted = work.core, work.wanted
    return (
        type(core) is _rustload.Tensor
        and work.made is None
        and work.nbytes > 0
        and wanted.dtype in (None, core.dtype)
        and wanted.transpose in (None, False)
        and not wanted.dequantize
        and core.is_contiguous
    )


class _Queue:
    """Works, and the pieces of the one that was begun."""

    __slots__ = ("_works", "parts", "piece", "work")

    def __init__(self, works: Iterable[Work]) -> None:
        self._works = iter(works)
        self.work: Work | None = next(self._works, None)
        self.parts: Iterator[Piece] | None = None
        # Of these, one that found no room.
        self.piece: Piece | None = None

    def finished(self) -> Work:
        """The work that was begun, whose pieces are all on their way."""
        work = self.work
        assert work is not None  # it was begun
        self.work, self.parts = next(self._works, None), None
        return work
