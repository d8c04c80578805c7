"""The interface of `_cuda`: one tensor as a new GPU result, one into existing GPU memory, many as a stream."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._common.request import Request
from rustload._cuda.gpu import ITEMSIZE
from rustload._cuda.slabs import KEPT_RESULTS, SINGLE_RESULT, TAKEN_RESULTS
from rustload._cuda.split import cpu_casts_below
from rustload._cuda.upload_task import UploadTask
from rustload._cuda.uploads import UploadQueue
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rustload._common.request import Cast, Core
    from rustload._cuda.gpu import Gpu

_CHECKED_MIN_BYTES = 16 << 20


def check_memory(cores: Sequence[Core], requests: Sequence[Request], gpu: Gpu, *, freed: int = 0) -> None:
    """Compares the memory of results that are kept together, less what is freed meanwhile, with what the GPU has left.

    Raises:
        NotEnoughMemoryError: They need more (code `NotEnoughMemory`).
    """
    # The driver is asked only for what takes longer to read.
    if sum(core.nbytes for core in cores) < _CHECKED_MIN_BYTES:
        return
    free = gpu.free_memory()
    pairs = [
        (core, request)
        for core, request in zip(cores, requests, strict=True)
        if isinstance(core, _rustload.Tensor)
    ]
    if free is not None:
        _rustload.check_gpu_memory(pairs, free=free, freed=freed)


def make(core: Core, request: Request, gpu: Gpu, *, cast: Cast, sync: bool) -> Any:
    """Materializes a tensor on the GPU and returns the framework's object.

    Raises:
        BufferError: `copy=False`.
        DeviceError: CUDA is not available, or fails.
        RustloadError: As for `LazyTensor.materialize`.
    """
    task = _task(core, request)
    check_memory([core], [request], gpu)
    return _one(task, gpu, cast=cast, sync=sync)


def fill(core: Core, request: Request, out: Any, gpu: Gpu, *, cast: Cast, sync: bool) -> None:
    """Materializes a tensor into existing GPU memory; errors as for `make`."""
    task = _task(core, request)
    task.result = out
    _one(task, gpu, cast=cast, sync=sync)


def _one(task: UploadTask, gpu: Gpu, *, cast: Cast, sync: bool) -> Any:
    threads = task.request.threads
    with UploadQueue(gpu, cast=cast, window=None, threads=threads, slabs=SINGLE_RESULT) as uploads:
        uploads.start([task], sync=sync)
        (finished,) = uploads.next_batch()
        return gpu.to_result(finished.result)


def _task(core: Core, request: Request) -> UploadTask:
    if request.copy is False:
        raise _error("Buffer", "copy=False is not possible for a tensor on a GPU: it is always a copy")
    nbytes = core.nbytes
    if request.dtype is not None:
        nbytes = nbytes // ITEMSIZE[core.dtype] * ITEMSIZE[request.dtype]
    return UploadTask(core, request, nbytes=nbytes)


def _tasks(
    indices: Iterable[int],
    cores: Sequence[_rustload.Tensor],
    requests: Sequence[Request],
    cast_below: int,
    into: Sequence[Any] | None = None,
) -> Iterator[UploadTask]:
    """The tasks of these tensors, with existing destinations or none. `cast_below`: see `_rustload.direct_upload_bytes`."""
    direct = None
    if into is None:
        direct = _rustload.direct_upload_bytes(zip(cores, requests, strict=True), cast_below)
    for index in indices:
        core, request = cores[index], requests[index]
        if direct and (nbytes := direct[index]):
            yield UploadTask(core, request, nbytes=nbytes, is_direct=True)
        else:
            task = _task(core, request)
            task.result = None if into is None else into[index]
            yield task


def upload_all(cores: Sequence[_rustload.Tensor], gpu: Gpu) -> list[Any]:
    """Copies tensors to a GPU without conversion and returns them complete."""
    request = Request(copy=True)
    tasks = _tasks(range(len(cores)), cores, [request] * len(cores), 0)
    with UploadQueue(gpu, cast="auto", window=None, threads=None, slabs=KEPT_RESULTS) as uploads:
        uploads.start(tasks, sync=False)
        batches = iter(uploads.next_batch, [])
        results = [gpu.to_result(task.result) for batch in batches for task in batch]
        gpu.synchronize()
    return results


class CudaProducer:
    """A `Producer` of tensors on a GPU: it reads and copies ahead of the consumer.

    Args:
        cores: The tensors to read.
        requests: The request of each.
        gpu: The destination.
        on_meta: Makes the result for a meta tensor, from its index in `cores`.
        by_file: True for the order of the data in the files, False for the order of `cores`.
        cast: Whether the CPU or the GPU casts, as in `LazyTensor.materialize`.
        sync: Whether each result is complete when it is returned; with `results_kept`, when the last one is returned.
        window: Bytes of results that may be made ahead of the consumer; None for no bound.
        threads: The most threads that read and cast.
        results_kept: Whether the consumer uses no result before it has all of them.
        into: For each tensor an existing destination, written even if the same elements went to another one; None allocates.
    """

    def __init__(
        self,
        cores: Sequence[_rustload.Tensor],
        requests: Sequence[Request],
        gpu: Gpu,
        *,
        on_meta: Callable[[int], Any],
        by_file: bool,
        cast: Cast,
        sync: bool,
        window: int | None,
        threads: int | None,
        results_kept: bool,
        into: Sequence[Any] | None = None,
    ) -> None:
        self.order, self._ties = _rustload.order(zip(cores, requests, strict=True), by_file=by_file)
        if into is not None:
            self._ties = {}
        # The position in `order` of the next tensor.
        self._position = 0
        self._cores, self._requests = cores, requests
        self._gpu, self._on_meta, self._into = gpu, on_meta, into
        self._cast: Cast = cast
        self._sync, self._results_kept = sync, results_kept
        self._window, self._threads = window, threads
        self._metas = {index for index, core in enumerate(cores) if core.is_meta}
        # Results of tied tensors that occur again later, by the index of the first, each with the tensor that owns its memory.
        self._reused: dict[int, tuple[Any, Any]] = {}
        self._uploads: UploadQueue | None = None
        self._finished: deque[UploadTask] = deque()
        self._closed = False

    def next(self, *, many: bool) -> list[Any]:
        """Returns the next tensor, or with `many` all that are made; empty after the last. Waits for its copies if `sync`."""
        if self._closed or self._position == len(self.order):
            return []
        try:
            if self._uploads is not None:
                # The results that are left of the last batch were made ready for the stream that was current then.
                self._uploads.follow_current_stream(self._owners())
            found = [self._next()]
            while many and self._finished and self._position < len(self.order):
                found += self._rest_of_batch() or [self._next()]
            if self._position == len(self.order) and self._sync and self._results_kept:
                self._gpu.synchronize()
            return found
        except Exception:
            if self._is_closed():
                return []  # an error caused by a concurrent `close` is not reported
            raise

    def _is_closed(self) -> bool:
        return self._closed

    def _next(self) -> Any:
        position = self._position
        self._position = position + 1
        index = self.order[position]
        first, has_later_alias = self._ties.get(position, (index, False))
        owner: Any = None
        if first != index:
            result, owner = self._reused[first]
        elif index in self._metas:
            result = self._on_meta(index)
        else:
            if not self._finished:
                uploads = self._uploads or self._start()
                self._finished.extend(uploads.next_batch())
            task = self._finished.popleft()
            result, owner = self._gpu.to_result(task.result), task.owner
        if has_later_alias:
            self._reused[first] = result, owner
        elif first != index:
            del self._reused[first]
        return result

    def _owners(self) -> Iterator[Any]:
        """The tensors that own the memory of results that are made and not returned yet."""
        yield from (task.owner for task in self._finished)
        yield from (owner for _, owner in self._reused.values() if owner is not None)

    def _rest_of_batch(self) -> list[Any]:
        """The other tensors of the last batch, if no tensor is tied or meta, so that thousands of them take few steps each."""
        if self._ties or self._metas:
            return []
        tasks, to_result = self._finished, self._gpu.to_result
        results = [to_result(task.result) for task in tasks]
        tasks.clear()
        self._position += len(results)
        return results

    def _start(self) -> UploadQueue:
        # Lazily: opening the device raises its errors before the first tensor, and no read starts before the first `next`.
        slabs = KEPT_RESULTS if self._results_kept else TAKEN_RESULTS
        self._uploads = uploads = UploadQueue(
            self._gpu, cast=self._cast, window=self._window, threads=self._threads, slabs=slabs
        )
        firsts: Iterable[int] = self.order
        if self._ties or self._metas:
            aliases = {
                self.order[position]
                for position, (first, _) in self._ties.items()
                if first != self.order[position]
            }
            firsts = [index for index in self.order if index not in aliases and index not in self._metas]
        cast_below = cpu_casts_below(self._cast, can_convert=self._gpu.can_convert)
        # A function: a generator must not hold a reference to the producer, or dropping it would need the cycle collector.
        tasks = _tasks(firsts, self._cores, self._requests, cast_below, self._into)
        uploads.start(tasks, sync=self._sync and not self._results_kept)
        return uploads

    def close(self) -> None:
        """Stops the copies in flight and waits for them; frees results that were not taken."""
        self._closed = True
        uploads = self._uploads
        if uploads is not None:
            uploads.close()
        self._finished.clear()
