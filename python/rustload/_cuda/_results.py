"""What the faces ask for: one tensor on a GPU, one into memory that is there, many in a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._cuda._uploads import Uploads, Work
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rustload._cuda._place import Place
    from rustload._cuda._split import Cast
    from rustload._tensor import LazyTensor, Wanted

__all__ = ["filled", "make", "many"]

_ITEMSIZE = {name: itemsize for name, itemsize, _ in _rustload.DTYPES}


def make(tensor: LazyTensor, wanted: Wanted, place: Place, *, cast: Cast, sync: bool) -> Any:
    """The tensor on the GPU.

    Raises:
        BufferError: `copy=False`.
        DeviceError: CUDA is not there, or fails.
        RustloadError: As for `LazyTensor.materialize`.
    """
    return _one(_work(tensor._core, wanted), place, cast=cast, sync=sync)


def filled(tensor: LazyTensor, wanted: Wanted, out: Any, place: Place, *, cast: Cast, sync: bool) -> None:
    """Writes into memory of the GPU; errors as for `make`."""
    work = _work(tensor._core, wanted)
    work.made = out
    _one(work, place, cast=cast, sync=sync)


def _one(work: Work, place: Place, *, cast: Cast, sync: bool) -> Any:
    with Uploads(place, cast=cast, window=None, threads=work.wanted.threads) as uploads:
        (done,) = uploads.results([work], sync=sync)
        return place.given(done.made)


def _work(core: _rustload.Tensor | _rustload.Joined, wanted: Wanted) -> Work:
    if wanted.copy is False:
        raise _make("Buffer", "Buffer", "a tensor on a GPU is a copy by nature: copy=False cannot be had")
    elements = core.nbytes // _ITEMSIZE[core.dtype]
    return Work(core, wanted, nbytes=elements * _ITEMSIZE[wanted.dtype or core.dtype])


def many(
    tensors: Sequence[LazyTensor],
    wanted: Sequence[Wanted],
    place: Place,
    *,
    steps: Sequence[tuple[int, int, bool]],
    cast: Cast,
    sync: bool,
    window: int | None,
    threads: int | None,
    into: Sequence[Any] | None = None,
) -> Iterator[tuple[int, int, bool, Any]]:
    """Tensors on the GPU, in the order of `steps`, made ahead.

    Args:
        tensors: What is read.
        wanted: How, for each.
        place: Where.
        steps: The order and the ties, as `_rustload.steps` tells them.
        cast: Who casts.
        sync: Whether each is complete when it is given.
        window: Bytes of results that may be made ahead; None for as many as there are.
        threads: Threads that read and cast, at most.
        into: For each where it goes, or None for new memory.

    Yields:
        The three numbers of the step, and the tensor; None for one that is the same as an earlier one.
    """

    def works() -> Iterator[Work]:
        for index, first, _ in steps:
            if index == first:
                work = _work(tensors[index]._core, wanted[index])
                if into is not None:
                    work.made = into[index]
                yield work

    with Uploads(place, cast=cast, window=window, threads=threads) as uploads:
        found = uploads.results(works(), sync=sync)
        for index, first, again in steps:
            made = place.given(next(found).made) if index == first else None
            yield index, first, again, made
            # The caller has it: nothing of it may stay here.
            del made
