"""`UploadQueue`: makes results on a GPU ahead of the consumer.

Results are made in batches. A batch is submitted to the core, which reads, casts and copies on its own CUDA streams. When the
consumer reaches the batch, the caller's current stream waits for its copies, and casts, transposes and decoding are enqueued on
that stream. At most two batches with such conversions are in flight, each with its own staging buffer. The host does not wait for
the GPU unless the caller asks for complete results (`sync`).
"""

from __future__ import annotations

import atexit
import itertools
from collections import deque
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._cuda.slabs import SlabAllocator, aligned
from rustload._cuda.split import STAGING_BYTES, Piece, cpu_only_pieces, pieces

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rustload._common.request import Cast, Request
    from rustload._cuda.gpu import Gpu, StagingBuffer
    from rustload._cuda.slabs import Slabs
    from rustload._cuda.upload_task import UploadTask
    from rustload._rustload import Buffer

# The bounds of one batch.
_BATCH_BYTES = 32 << 20
_BATCH_TENSORS = 2048

# Staging buffers have a multiple of this size.
_STAGING_STEP_BYTES = 2 << 20

# No thread of the core may be inside the driver when the process unloads it.
atexit.register(_rustload.end_upload_workers)


class _Batch:
    """What is submitted to the core at once: direct pieces first, then those for the staging buffer.

    The direct pieces are in three lists of equal length, because there may be thousands. `slab_tasks` are the tasks whose
    destinations in `into` are still missing, each with its position there: `_cut_from_slabs` makes them in one call.
    """

    def __init__(self) -> None:
        self.cores: list[_rustload.Tensor] = []
        self.requests: list[Request] = []
        self.into: list[Buffer] = []
        self.slab_tasks: list[UploadTask] = []
        self.slab_positions: list[int] = []
        self.staged_pieces: list[tuple[int, Piece]] = []
        self.done: list[UploadTask] = []
        self.nbytes = 0
        self.staged_nbytes = 0
        self.staging: StagingBuffer | None = None
        self.ticket: int | None = None

    def submit(self, upload: _rustload.Upload, stream: int | None) -> None:
        """Submits the batch to the core, which starts to read and copy."""
        cores, requests, into = self.cores, self.requests, self.into
        if self.staging is not None:
            memory = self.staging.byte_view
            for start, piece in self.staged_pieces:
                for offset, core, dtype in piece.parts():
                    cores.append(core)
                    requests.append(piece.request)
                    into.append(memory.part(start + offset, dtype, core.shape))
        if not cores:
            return
        self.ticket = upload.submit(zip(cores, requests, strict=True), into, stream=stream)


class UploadQueue:
    """Makes results on one GPU. `close`, or the end of `with`, waits until no copy is in flight.

    Args:
        gpu: The destination.
        cast: Whether the CPU or the GPU casts, as in `LazyTensor.materialize`.
        window: Bytes of results that may be made ahead of the consumer; None for no bound.
        threads: The most threads that read and cast.
        slabs: Which results share slabs.
    """

    def __init__(
        self,
        gpu: Gpu,
        *,
        cast: Cast,
        window: int | None,
        threads: int | None,
        slabs: Slabs,
    ) -> None:
        # Before the first call of the driver, as some of them would end a capture.
        gpu.follow_current_stream(())
        self._gpu = gpu
        # The caller's stream that was followed last.
        self._stream = gpu.current_stream()
        self._cast: Cast = cast
        self._window = window
        self._held_bytes = 0
        # Of the last batch that was returned: they are held until the next one is asked for.
        self._returned_bytes = 0
        self._waiting: deque[_Batch] = deque()
        self._staging_buffers: list[StagingBuffer] = []
        self._upload = _rustload.upload(gpu.index, window=window or STAGING_BYTES, threads=threads)
        self._slabs = SlabAllocator(gpu, self._upload, slabs)

    def start(self, tasks: Iterable[UploadTask], *, sync: bool) -> None:
        """Sets what to make; nothing is read yet.

        Args:
            tasks: The results; the iterator is advanced as the window allows.
            sync: Whether results are complete when `next_batch` returns them. Otherwise they are complete for work that the
                caller enqueues on its current stream from then on.
        """
        self._cursor = _TaskCursor(tasks)
        self._sync = sync

    def next_batch(self) -> list[UploadTask]:
        """The next tasks, in their order, whose results are made; empty after the last. Earlier results count as taken."""
        self._held_bytes -= self._returned_bytes
        self._returned_bytes = 0
        while True:
            self._gpu.follow_current_stream(self._in_flight(self._cursor))
            self._stream = self._gpu.current_stream()
            self._submit_ahead(self._cursor)
            if not self._waiting:
                return []
            if done := self._finish(self._waiting.popleft()):
                self._returned_bytes = sum([task.nbytes for task in done])
                return done

    def follow_current_stream(self, owners: Iterable[Any]) -> None:
        """Makes earlier results ready for the caller's current stream, if it is not the one that they were made ready for.

        Args:
            owners: The tensors that own the memory of results that the caller has not got yet.
        """
        if self._gpu.current_stream() != self._stream:
            self._gpu.follow_current_stream(itertools.chain(owners, self._in_flight(self._cursor)))
            self._stream = self._gpu.current_stream()

    def close(self) -> None:
        """Cancels the tasks in flight and waits until no copy is left."""
        self._upload.close()
        self._waiting.clear()
        self._staging_buffers.clear()
        self._slabs.close()

    def __enter__(self) -> UploadQueue:
        """The queue itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Closes it."""
        self.close()

    def _in_flight(self, cursor: _TaskCursor) -> Iterator[Any]:
        if cursor.parts is not None and cursor.task is not None:
            yield cursor.task.owner
        yield from self._slabs.in_use()
        yield from (staging.tensor for staging in self._staging_buffers)
        for batch in self._waiting:
            yield from (task.owner for task in batch.done)
            yield from (piece.target for _, piece in batch.staged_pieces)

    def _submit_ahead(self, cursor: _TaskCursor) -> None:
        """Submits batches until the window or both staging buffers are full."""
        while True:
            if sum(1 for batch in self._waiting if batch.staged_nbytes) == 2:
                return
            batch = self._next_batch(cursor)
            if not (batch.cores or batch.staged_pieces or batch.done):
                return
            if batch.staged_nbytes:
                batch.staging = self._staging_buffer(batch.staged_nbytes)
            batch.submit(self._upload, self._gpu.current_stream())
            self._waiting.append(batch)

    def _next_batch(self, cursor: _TaskCursor) -> _Batch:
        """The next batch; empty if the window is full or no task is left."""
        batch = _Batch()
        cores, done = batch.cores, batch.done
        while (
            batch.nbytes < _BATCH_BYTES
            and len(cores) < _BATCH_TENSORS
            and len(batch.staged_pieces) < _BATCH_TENSORS
            and len(done) < _BATCH_TENSORS
        ):
            if cursor.parts is None:
                task = cursor.task
                if task is None or not self._fits_window(task, batch):
                    break
                if task.is_direct:
                    self._add_direct(batch, cursor)
                    continue
                self._held_bytes += task.nbytes
                cursor.parts = self._pieces_of(task)
            if cursor.piece is None:
                cursor.piece = next(cursor.parts, None)
                if cursor.piece is None:
                    done.append(cursor.finished())
                    continue
            if not self._add_piece(batch, cursor.piece):
                break
            cursor.piece = None
        self._cut_from_slabs(batch, more=cursor.task is not None)
        return batch

    def _add_direct(self, batch: _Batch, cursor: _TaskCursor) -> None:
        """Adds the current result, which the core makes straight in its place, and those of this kind that follow it and fit.

        Memory in slabs follows by `_cut_from_slabs`. There may be thousands of such results, so each takes few steps here.
        """
        cores, requests, into, done = batch.cores, batch.requests, batch.into, batch.done
        in_slab = self._slabs.result_nbytes
        task, tasks, nbytes, window = cursor.task, cursor.tasks, batch.nbytes, self._window
        for position in range(len(into), _BATCH_TENSORS):
            if task is None or not task.is_direct or nbytes >= _BATCH_BYTES:
                break
            if window is not None and not self._fits_window(task, batch, nbytes - batch.nbytes):
                break
            if task.nbytes <= in_slab:
                batch.slab_tasks.append(task)
                batch.slab_positions.append(position)
                into.append(None)  # type: ignore[arg-type]  # set by `_cut_from_slabs`
            else:
                into.append(self._memory(task, task.core.shape))
            cores.append(task.core)  # type: ignore[arg-type]  # no Joined
            requests.append(task.request)
            done.append(task)
            nbytes += task.nbytes
            task = cursor.task = next(tasks, None)
        self._held_bytes += nbytes - batch.nbytes
        batch.nbytes = nbytes

    def _cut_from_slabs(self, batch: _Batch, *, more: bool) -> None:
        """Allocates the small results of a batch. `more`: whether other batches follow."""
        tasks, into, wrap = batch.slab_tasks, batch.into, self._gpu.wrap
        for first, owner, parts in self._slabs.cut(tasks, more=more):
            stop = first + len(parts)
            for task, position, part in zip(
                tasks[first:stop], batch.slab_positions[first:stop], parts, strict=True
            ):
                into[position] = part
                task.owner, task.result = owner, wrap(part)

    def _fits_window(self, task: UploadTask, batch: _Batch, added: int = 0) -> bool:
        """Whether the task fits, beside the `added` bytes of this batch that are not counted as held yet."""
        if self._window is None or not (self._waiting or batch.cores or batch.staged_pieces or batch.done):
            return True
        return self._held_bytes + added + task.nbytes <= self._window

    def _memory(self, task: UploadTask, shape: Sequence[int]) -> Buffer:
        """Allocates a result: a part of a slab if it is small, memory of its own otherwise."""
        dtype = task.request.dtype or task.core.dtype
        if self._slabs.takes_single(task.nbytes):
            task.owner, into = self._slabs.cut_single(task.nbytes, dtype, shape)
            task.result = self._gpu.wrap(into)
        else:
            task.result, into = self._gpu.new(shape, dtype, self._upload)
            task.owner = task.result
        return into

    def _pieces_of(self, task: UploadTask) -> Iterator[Piece]:
        """The pieces of a task's result, which is allocated unless it has a destination."""
        core, request = task.core, task.request
        shape = core.result_shape(request)
        dtype = request.dtype or core.dtype
        if 0 in shape:
            core.materialize(request)  # raises the errors of the request
            if task.result is None:
                task.result = self._gpu.empty(shape, dtype, self._upload)
            task.owner = task.result
            return iter(())
        into: Buffer | None = None
        if task.result is None:
            into = self._memory(task, shape)
        else:
            task.owner = task.result
        if not self._gpu.can_convert:
            memory = into if into is not None else self._gpu.byte_view(task.result)
            return (
                Piece(part, request, dtype, target, is_direct=True)
                for part, request, target in cpu_only_pieces(core, request, memory)
            )
        found = pieces(core, request, task.result, self._cast, self._upload.rate)
        if into is None:
            return found
        result, memory = task.result, into
        return (
            piece._replace(target=memory) if piece.is_direct and piece.target is result else piece
            for piece in found
        )

    def _add_piece(self, batch: _Batch, piece: Piece) -> bool:
        """Adds the piece to the batch; False if it does not fit the staging buffer."""
        if piece.is_direct:
            target = piece.target
            into = target if isinstance(target, _rustload.Buffer) else self._gpu.byte_view(target)
            batch.cores.append(piece.core)
            batch.requests.append(piece.request)
            batch.into.append(into)
            batch.nbytes += into.nbytes
            return True
        nbytes = piece.nbytes
        start = aligned(batch.staged_nbytes)
        if start and start + nbytes > STAGING_BYTES:
            return False
        batch.staged_pieces.append((start, piece))
        batch.staged_nbytes = start + nbytes
        return True

    def _staging_buffer(self, nbytes: int) -> StagingBuffer:
        """A staging buffer that no batch in flight uses, allocated if there is none that is large enough."""
        used = {id(batch.staging) for batch in self._waiting}
        free = [staging for staging in self._staging_buffers if id(staging) not in used]
        for staging in free:
            if staging.nbytes >= nbytes:
                return staging
        for staging in free:
            self._staging_buffers.remove(staging)
        staging = self._gpu.staging_buffer(-(-nbytes // _STAGING_STEP_BYTES) * _STAGING_STEP_BYTES)
        self._staging_buffers.append(staging)
        return staging

    def _finish(self, batch: _Batch) -> list[UploadTask]:
        """Makes the caller's stream wait for the copies of the batch, enqueues its conversions there; returns what is made."""
        sync = self._sync
        if batch.ticket is not None:
            stream = self._gpu.current_stream()
            complete = (sync or stream is None) and not batch.staged_pieces
            self._upload.wait(batch.ticket, stream=stream, sync=complete)
        for start, piece in batch.staged_pieces:
            assert batch.staging is not None  # set by `_submit_ahead` for a batch with staged pieces
            if piece.tile is None:
                batch.staging.convert_into(start, piece.dtype, piece.core.shape, piece.target)
            else:
                batch.staging.decode_into(start, piece.tile, piece.target)
        if sync and batch.staged_pieces:
            self._gpu.synchronize()
        return batch.done


class _TaskCursor:
    """An iterator over tasks, and the remaining pieces of the current task."""

    def __init__(self, tasks: Iterable[UploadTask]) -> None:
        self.tasks = iter(tasks)
        self.task: UploadTask | None = next(self.tasks, None)
        self.parts: Iterator[Piece] | None = None
        # The piece that did not fit the last batch.
        self.piece: Piece | None = None

    def finished(self) -> UploadTask:
        """Advances to the next task; returns the one whose pieces are all submitted."""
        task = self.task
        assert task is not None  # `finished` is called only with a current task
        self.parts = None
        self.task = next(self.tasks, None)
        return task
