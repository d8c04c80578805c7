"""`Stream`: an iterator over many tensors, which are made ahead of the consumer within a bound of memory (back pressure)."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self, final

from rustload._common.progress import reporting
from rustload._common.sizes import sizes_once
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from rustload._checkpoint.producers import Producer
    from rustload._common.progress import Progress, Report
    from rustload._tensor.handle import LazyTensor


@final
class Stream(Iterator[tuple[str, Any]]):
    """An iterator over pairs of name and tensor, which are made in the background; `Checkpoint.stream` returns it.

    >>> import rustload
    >>> with rustload.open("model.pt").stream(dtype="bfloat16") as stream:
    ...     print(stream, len(stream))
    ...     name, tensor = next(stream)
    ...     print(name, len(stream))
    <Stream 0 of 4 tensors given> 4
    q.weight 3
    >>> list(stream)
    []

    Each tensor comes once, and `len` is the number of tensors left. Nothing is read before the first `next`. The stream ends
    after the last tensor, with an error, by `close`, at the end of `with`, when it is dropped, or when the interpreter exits;
    then its threads are stopped and results that were not taken are freed.

    Threads may share a stream: each pair goes to one of them, an error is raised in one of them, and then the stream ends for the
    others. A stream that was started before a fork works in the parent only.
    """

    # No `__del__`: a dropped producer stops by itself, and a KeyboardInterrupt inside `__del__` would be lost.
    _given: Sequence[str]
    _names: list[str]
    _taken: int
    _ended: bool
    _is_cut: bool
    _lock: threading.RLock
    _busy: bool
    _producer: Producer | None
    _process: int | None
    _progress: Progress
    _sizes: list[int]
    # A generator, which ends as one whose work is not done if the stream is dropped.
    _display: AbstractContextManager[Report] | None
    _report: Report

    def __init__(self) -> None:
        """Not for users: `Checkpoint.stream` creates streams.

        Raises:
            TypeError: Always.
        """
        raise TypeError("streams are made by a checkpoint: rustload.open(path).stream()")

    @classmethod
    def _of(
        cls,
        producer: Producer,
        tensors: Sequence[LazyTensor],
        names: Sequence[str],
        progress: Progress = None,
    ) -> Self:
        """A stream of the producer's tensors. `names` are those of the results."""
        made = cls.__new__(cls)
        # One thread at a time calls `next`. The lock is reentrant because a signal handler or the progress callback may use the
        # stream.
        made._lock = threading.RLock()
        made._busy = made._ended = made._is_cut = False
        made._producer, made._process, made._taken = producer, None, 0
        made._given, made._names = names, [names[index] for index in producer.order]
        made._progress = progress
        made._sizes = sizes_once(tensors[index]._core for index in producer.order) if progress else []
        made._display = None
        return made

    @property
    def names(self) -> list[str]:
        """All names in the order of the stream, those of tensors already taken included."""
        return list(self._names)

    def __len__(self) -> int:
        """The number of tensors left; 0 once the stream has ended."""
        return 0 if self._ended else len(self._names) - self._taken

    def __iter__(self) -> Self:
        """The stream itself."""
        return self

    def __next__(self) -> tuple[str, Any]:
        """Waits for the next pair of name and tensor.

        Raises:
            StopIteration: The stream has ended.
            ValueError: It was started before a fork (code `Forked`), its own progress callback calls `next`, or Python ends.
            KeyboardInterrupt: Ctrl-C, within a tenth of a second.
            RustloadError: As for `LazyTensor.materialize`; the message or a note names the tensor. The stream ends.
        """
        taken = self._take(many=False)
        if not taken:
            raise StopIteration
        return taken[0]

    def _rest(self) -> dict[str, Any]:
        """All tensors that are left, by name, in the order that was given; faster for thousands of tensors on a GPU."""
        found: dict[str, Any] = {}
        while taken := self._take(many=True):
            found.update(taken)
        return {name: found[name] for name in self._given if name in found}

    def _take(self, *, many: bool) -> list[tuple[str, Any]]:
        """Waits for the next pair, or with `many` for all that are made by then; empty after the last. Errors as for `next`."""
        self._claim()
        taken = self._take_alone(many=many)
        if not taken and self._is_cut:
            # Not all tensors came. Python ends other threads soon, without a word.
            if threading.current_thread() is not threading.main_thread():
                time.sleep(_AT_EXIT_SECONDS)
            raise _error("Value", "the stream was closed, as Python ends")
        return taken

    def _take_alone(self, *, many: bool) -> list[tuple[str, Any]]:
        with self._lock:
            if self._busy:
                raise _error(
                    "Value",
                    "the stream is busy: its own callback or a signal handler cannot call next",
                )
            producer = self._producer
            if producer is None or self._ended:
                return []
            try:
                self._busy = True
                if self._taken == 0:
                    for key in [key for key, started in list(_started.items()) if started() is None]:
                        _started.pop(key, None)
                    _started[id(self)] = weakref.ref(self)
                    if self._progress:
                        self._display = reporting(self._progress, sum(self._sizes))
                        self._report = self._display.__enter__()
                tensors = producer.next(many=many)
                first = self._taken
                self._taken = end = first + len(tensors)
                if self._display is not None:
                    for position in range(first, end):
                        self._report(self._sizes[position], self._names[position])
            except StopIteration as error:
                self._end()
                # `next` would hand it on, and end the loop as if all tensors had come.
                raise RuntimeError("a callback of the stream raised StopIteration") from error
            except BaseException:
                self._end()
                raise
            finally:
                self._busy = False
            # The stream may have been closed concurrently. Finished tensors are returned nevertheless.
            if not tensors or self._ended:
                self._end()
            # The stream keeps no reference, so the consumer's memory is free as soon as it drops a tensor.
            return list(zip(self._names[first:end], tensors, strict=True))

    def _is_own(self) -> bool:
        """Whether this process may use the stream; the first use decides.

        To be asked before a lock is taken: in a child that was forked while another thread held the lock, nobody releases it.
        """
        if self._process is None:
            self._process = os.getpid()
        return self._process == os.getpid()

    def _claim(self) -> None:
        """As `_is_own`.

        Raises:
            ValueError: The stream was started before a fork (code `Forked`).
        """
        if not self._is_own():
            raise _error("Forked", "the stream was started before the process forked")

    def close(self) -> None:
        """Stops the threads, waits for them, and frees results that were not taken. Idempotent."""
        producer = self._producer
        if producer is None or not self._is_own():
            return
        self._ended = True
        # Before taking the lock, because another thread may hold it while it waits in `next`.
        producer.close()
        with self._lock:
            if not self._busy:
                self._end()

    def _cut(self) -> None:
        """As `close`, which waits for a thread in `next` only for a while."""
        self._is_cut = self._ended = True
        if (producer := self._producer) is not None:
            producer.close()
        if self._lock.acquire(timeout=_AT_EXIT_SECONDS):
            self._lock.release()
            self.close()

    def _end(self) -> None:
        """Closes the producer and the display."""
        self._ended = True
        _started.pop(id(self), None)
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.close()
        finally:
            display, self._display = self._display, None
            if display is not None:
                is_done = self._taken == len(self._names)
                display.__exit__(*((None,) * 3 if is_done else (GeneratorExit, GeneratorExit(), None)))

    def __enter__(self) -> Self:
        """The stream itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        """The number of tensors taken, and whether the stream has ended; reads nothing."""
        ended = ", ended" if self._ended else ""
        return f"<Stream {self._taken} of {len(self._names)} tensors given{ended}>"

    def __reduce__(self) -> NoReturn:
        """Not picklable; always raises TypeError."""
        raise TypeError("a stream cannot be pickled; create one where it is used")


# Streams that have not ended, by `id`. References without a callback, in which a KeyboardInterrupt would be lost.
_started: dict[int, weakref.ref[Stream]] = {}

# How long the end of Python and threads that still use a stream wait for each other.
_AT_EXIT_SECONDS = 5.0


@atexit.register
def _close_all() -> None:
    """Ends the threads of streams: none may be in a call of Python, such as `read` of a file object, when Python ends."""
    for started in list(_started.values()):
        stream = started()
        if stream is not None and stream._is_own():
            stream._cut()
