"""`SlabAllocator`: small results share slabs of the framework's memory, so that many of them take one copy and one allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rustload._cuda.gpu import Gpu
    from rustload._cuda.upload_task import UploadTask
    from rustload._rustload import Buffer, Upload

# Results in a slab start at multiples of the alignment that GPU kernels prefer.
_ALIGNMENT_BYTES = 256


class Slabs(NamedTuple):
    """Which results share slabs. A slab is freed with the last result in it.

    Attributes:
        nbytes: Bytes of a slab; the last one is smaller if less is left.
        result_nbytes: The most bytes of a result in a slab; larger ones have memory of their own.
    """

    nbytes: int
    result_nbytes: int


# The consumer keeps all results, so none keeps others alive.
KEPT_RESULTS = Slabs(8 << 20, 1 << 20)
# The consumer may drop some results and keep others.
TAKEN_RESULTS = Slabs(2 << 20, 256 << 10)
# A single result would keep a whole slab alive.
SINGLE_RESULT = Slabs(0, 0)


class SlabAllocator:
    """Cuts results from slabs of one GPU.

    Args:
        gpu: Allocates the slabs.
        upload: Also needed for that.
        slabs: Which results share slabs.
    """

    def __init__(self, gpu: Gpu, upload: Upload, slabs: Slabs) -> None:
        self._gpu, self._upload, self._slabs = gpu, upload, slabs
        # The most bytes of a result that `cut` takes.
        self.result_nbytes = slabs.result_nbytes
        # The tensor that owns the current slab, its memory, and the first unused byte.
        self._slab: tuple[Any, Buffer, int] | None = None

    def in_use(self) -> Iterator[Any]:
        """The tensor that owns the slab that later results will be cut from."""
        if self._slab is not None:
            yield self._slab[0]

    def close(self) -> None:
        """Drops the current slab, which its results keep alive."""
        self._slab = None

    def cut(self, tasks: Sequence[UploadTask], *, more: bool) -> Iterator[tuple[int, Any, list[Buffer]]]:
        """Memory for the results of tasks of which the core makes each straight in its place.

        If more results will follow, they will use the last slab too.

        Yields:
            The index of a task, the tensor that owns a slab, and memory in it for the tasks from this index on.
        """
        first = 0
        while first < len(tasks):
            rest = tasks[first:] if first else tasks
            if self._slab is None or self._slab[2] + rest[0].nbytes > self._slab[1].nbytes:
                nbytes = self._slabs.nbytes
                if not more:
                    nbytes = min(nbytes, sum(aligned(task.nbytes) for task in rest))
                self._new_slab(nbytes)
            assert self._slab is not None  # set above
            owner, slab, start = self._slab
            cores: list[Any] = [task.core for task in rest]  # none is joined
            parts, end = slab.parts(start, _ALIGNMENT_BYTES, cores, [task.request.dtype for task in rest])
            self._slab = owner, slab, aligned(end)
            yield first, owner, parts
            first += len(parts)

    def takes_single(self, nbytes: int) -> bool:
        """Whether a result of so many bytes is cut from a slab by `cut_single`: without the next ones, slabs are not large."""
        return nbytes <= min(self._slabs.result_nbytes, TAKEN_RESULTS.result_nbytes)

    def cut_single(self, nbytes: int, dtype: str, shape: Sequence[int]) -> tuple[Any, Buffer]:
        """The tensor that owns a slab, and memory in it for one result."""
        if self._slab is None or self._slab[2] + nbytes > self._slab[1].nbytes:
            self._new_slab(TAKEN_RESULTS.nbytes)
        assert self._slab is not None  # set above
        owner, slab, start = self._slab
        self._slab = owner, slab, start + aligned(nbytes)
        return owner, slab.part(start, dtype, shape)

    def _new_slab(self, nbytes: int) -> None:
        owner, memory = self._gpu.new([nbytes], "uint8", self._upload)
        self._slab = owner, memory, 0


def aligned(nbytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
