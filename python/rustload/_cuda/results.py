"""What the faces ask for: one tensor on a GPU, one into memory that is there, many in a stream."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._common.request import Wanted
from rustload._cuda.place import ITEMSIZE
from rustload._cuda.uploads import Uploads, Work
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rustload._common.request import Cast, Core
    from rustload._cuda.place import Place

__all__ = ["CudaMaker", "filled", "make", "on_gpu"]


def make(core: Core, wanted: Wanted, place: Place, *, cast: Cast, sync: bool) -> Any:
    """The tensor on the GPU.

    Raises:
        BufferError: `copy=False`.
        DeviceError: CUDA is not there, or fails.
        RustloadError: As for `LazyTensor.materialize`.
    """
    return _one(_work(core, wanted), place, cast=cast, sync=sync)


def filled(core: Core, wanted: Wanted, out: Any, place: Place, *, cast: Cast, sync: bool) -> None:
    """Writes into memory of the GPU; errors as for `make`."""
    work = _work(core, wanted)
    work.made = out
    _one(work, place, cast=cast, sync=sync)


def _one(work: Work, place: Place, *, cast: Cast, sync: bool) -> Any:
    with Uploads(place, cast=cast, window=None, threads=work.wanted.threads) as uploads:
        (done,) = uploads.results([work], sync=sync)
        return place.given(done.made)


def _work(core: Core, wanted: Wanted) -> Work:
    if wanted.copy is False:
        raise _make("Buffer", "Buffer", "a tensor on a GPU is a copy by nature: copy=False cannot be had")
    nbytes = core.nbytes
    if wanted.dtype is not None:
        nbytes = nbytes // ITEMSIZE[core.dtype] * ITEMSIZE[wanted.dtype]
    return Work(core, wanted, nbytes=nbytes)


def on_gpu(cores: Sequence[_rustload.Tensor], place: Place) -> list[Any]:
    """Tensors as they are in the file, on a GPU, complete."""
    wanted = Wanted(copy=True)
    with Uploads(place, cast="auto", window=None, threads=None) as uploads:
        found = uploads.results((_work(core, wanted) for core in cores), sync=False)
        made = [place.given(work.made) for work in found]
        place.finish()
    return made


class CudaMaker:
    """Tensors on a GPU, made ahead; a `Maker` for a stream.

    Args:
        cores: What is read.
        wanted: The different ways in which they are wanted.
        which: For each tensor, the number of its way.
        place: Where.
        on_meta: Makes a tensor that has no elements in its file, out of its place in `cores`.
        by_file: Whether they come in the order of the data, or as listed.
        cast: Who casts.
        sync: Whether results are complete when they are given; or, if they are a `whole`, with the last of them.
        window: Bytes of results that may be made ahead; None for as many as there are.
        threads: Threads that read and cast, at most.
        whole: Whether the caller uses none before he has all.
        into: For each where it goes, even if it is what went elsewhere before; None for new memory.
    """

    def __init__(
        self,
        cores: Sequence[_rustload.Tensor],
        wanted: Sequence[Wanted],
        which: Sequence[int],
        place: Place,
        *,
        on_meta: Callable[[int], Any],
        by_file: bool,
        cast: Cast,
        sync: bool,
        window: int | None,
        threads: int | None,
        whole: bool,
        into: Sequence[Any] | None = None,
    ) -> None:
        steps = _rustload.steps(cores, wanted, which, by_file=by_file)
        if into is not None:
            steps = [(index, index, False) for index, _, _ in steps]
        self._steps = deque(steps)
        self.order = [index for index, _, _ in self._steps]
        self._cores, self._wanted, self._which = cores, wanted, which
        self._place, self._on_meta, self._into = place, on_meta, into
        self._cast: Cast = cast
        self._sync, self._whole = sync, whole
        self._window, self._threads = window, threads
        # Tied tensors that come again, by the place of the first.
        self._kept: dict[int, Any] = {}
        self._uploads: Uploads | None = None
        self._found: Iterator[Work] | None = None
        self._closed = False

    def next(self) -> Any | None:
        """The next tensor, waited for as far as `sync` asks."""
        if self._closed or not self._steps:
            return None
        try:
            return self._next()
        except Exception:
            if self._is_closed():
                return None  # whatever came of closing it meanwhile is no error
            raise

    def _is_closed(self) -> bool:
        return self._closed

    def _next(self) -> Any:
        if self._found is None:
            self._found = self._begun()
        index, first, again = self._steps.popleft()
        if first != index:
            made = self._kept[first]
        elif self._cores[index].is_meta:
            made = self._on_meta(index)
        else:
            made = self._place.given(next(self._found).made)
        if again:
            self._kept[first] = made
        elif first != index:
            del self._kept[first]
        if not self._steps and self._sync and self._whole:
            self._place.finish()
        return made

    def _begun(self) -> Iterator[Work]:
        # What is wrong with the device is told before the first tensor, and nothing is begun before it is asked for.
        self._uploads = Uploads(self._place, cast=self._cast, window=self._window, threads=self._threads)
        firsts = [
            index for index, first, _ in self._steps if index == first and not self._cores[index].is_meta
        ]
        works = self._works(firsts, self._cores, self._wanted, self._which, self._into)
        return self._uploads.results(works, sync=self._sync and not self._whole)

    @staticmethod
    def _works(
        firsts: Sequence[int],
        cores: Sequence[_rustload.Tensor],
        wanted: Sequence[Wanted],
        which: Sequence[int],
        into: Sequence[Any] | None,
    ) -> Iterator[Work]:
        # No method: a maker that is dropped must go at once, and it has this.
        for index in firsts:
            work = _work(cores[index], wanted[which[index]])
            if into is not None:
                work.made = into[index]
            yield work

    def close(self) -> None:
        """Ends the copies that are on their way."""
        self._closed = True
        uploads = self._uploads
        if uploads is not None:
            uploads.close()
