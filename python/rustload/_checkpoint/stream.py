"""`Stream`: many tensors, made ahead of whoever takes them, inside a window of memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self, final

from rustload._common.progress import reporting
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rustload._checkpoint.makers import Maker
    from rustload._common.progress import Progress
    from rustload._tensor.handle import LazyTensor

__all__ = ["Stream"]


class _Process:
    """Tells whether something was begun in this process, without asking the system each time."""

    forks = 0

    @classmethod
    def count(cls) -> None:
        cls.forks += 1


os.register_at_fork(after_in_child=_Process.count)


class _Display:
    """What shows a stream's progress. It ends with the stream, also where that is dropped."""

    __slots__ = ("_finish", "report")

    def __init__(self, progress: Progress, total: int) -> None:
        display = reporting(progress, total)
        self.report, self._finish = display.__enter__(), display.__exit__

    def end(self, *, is_done: bool) -> None:
        """Tells the display as a generator is told: that the work is done, or that nobody wants more."""
        finish: Any = self._finish
        self._finish = lambda *_: None
        finish(*((None,) * 3 if is_done else (GeneratorExit, GeneratorExit(), None)))

    def __del__(self) -> None:
        """Ends it."""
        if hasattr(self, "_finish"):
            self.end(is_done=False)


@final
class Stream(Iterator[tuple[str, Any]]):
    """Names and tensors, one pair after the other, made ahead of whoever takes them: what `Checkpoint.stream` gives.

    >>> import rustload
    >>> with rustload.open("model.pt").stream(dtype="bfloat16") as stream:
    ...     print(stream, len(stream))
    ...     name, tensor = next(stream)
    ...     print(name, len(stream))
    <Stream 0 of 4 tensors given> 4
    q.weight 3
    >>> list(stream)
    []

    An iterator: each tensor comes once, and `len` says how many are left. Nothing is read before the first is asked for. It ends
    after the last tensor, with an error, by `close`, at the end of `with`, or when it is dropped; then its threads have stopped
    and what was not taken is freed.

    Threads may share one: each pair goes to one of them, and an error to the one that meets it; then the others come to the end.
    A stream that was begun before a fork is the parent's.
    """

    # There is no `__del__`: what a maker holds stops by itself when it is dropped, and a Ctrl-C that came in one would be lost.
    __slots__ = (
        "_busy",
        "_display",
        "_ended",
        "_given",
        "_lock",
        "_maker",
        "_names",
        "_process",
        "_progress",
        "_sizes",
    )

    _names: list[str]
    _given: int
    _ended: bool
    _lock: threading.RLock
    _busy: bool
    _maker: Maker | None
    _process: int | None
    _progress: Progress
    _sizes: list[int]
    _display: _Display | None

    def __init__(self) -> None:
        """Not for users: `Checkpoint.stream` makes streams.

        Raises:
            TypeError: Always.
        """
        raise TypeError("streams are made by a checkpoint: rustload.open(path).stream()")

    @classmethod
    def _of(cls, maker: Maker, tensors: Sequence[LazyTensor], progress: Progress = None) -> Self:
        made = cls.__new__(cls)
        # One thread takes at a time. It may come back: in a signal's handler, in a callable of its own.
        made._lock = threading.RLock()
        made._busy = made._ended = False
        made._maker, made._process, made._given = maker, None, 0
        made._names = [tensors[index].name for index in maker.order]
        made._progress = progress
        made._sizes = [tensors[index].nbytes for index in maker.order] if progress else []
        made._display = None
        return made

    @property
    def names(self) -> list[str]:
        """All names in the order in which they come, those that were given too."""
        return list(self._names)

    def __len__(self) -> int:
        """How many are left; 0 once it has ended."""
        return 0 if self._ended else len(self._names) - self._given

    def __iter__(self) -> Self:
        """The stream itself."""
        return self

    def __next__(self) -> tuple[str, Any]:
        """The next name and tensor, waited for.

        Raises:
            StopIteration: It has ended.
            ValueError: It was begun before a fork (code `Forked`), or its own `progress=` asks it.
            KeyboardInterrupt: Ctrl-C, within a tenth of a second.
            RustloadError: As for `LazyTensor.materialize`; the message or a note names the tensor. The stream ends.
        """
        if self._process not in (None, _Process.forks):
            raise _make("Value", "Forked", "the stream was begun before the process forked")
        with self._lock:
            if self._busy:
                raise _make("Value", "Value", "the stream is at work: it cannot be asked by what it calls")
            maker = self._maker
            if maker is None or self._ended:
                raise StopIteration
            try:
                self._busy = True
                if self._process is None:
                    self._begin()
                made = maker.next()
                if made is not None:
                    given = self._given
                    self._given = given + 1
                    if self._display is not None:
                        self._display.report(self._sizes[given], self._names[given])
            except BaseException:
                self._end()
                raise
            finally:
                self._busy = False
            # It may have been closed meanwhile. What was made is given all the same.
            if made is None or self._ended:
                self._end()
            if made is None:
                raise StopIteration
            # Nothing of it stays here while the next is made: the consumer has it, or has let go of it.
            return self._names[given], made

    def _begin(self) -> None:
        self._process = _Process.forks
        if self._progress:
            self._display = _Display(self._progress, sum(self._sizes))

    def close(self) -> None:
        """Ends it: stops its threads, waits for them, and frees what was not taken. It may be closed again."""
        maker = self._maker
        if maker is None or self._process not in (None, _Process.forks):
            return
        self._ended = True
        # First of all: another thread may have the lock, and wait.
        maker.close()
        with self._lock:
            if not self._busy:
                self._end()

    def _end(self) -> None:
        """Lets go of everything."""
        self._ended = True
        maker, self._maker = self._maker, None
        if maker is None:
            return
        try:
            maker.close()
        finally:
            display, self._display = self._display, None
            if display is not None:
                display.end(is_done=self._given == len(self._names))

    def __enter__(self) -> Self:
        """The stream itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        """How many tensors were given, and whether it has ended; reads nothing."""
        ended = ", ended" if self._ended else ""
        return f"<Stream {self._given} of {len(self._names)} tensors given{ended}>"

    def __reduce__(self) -> NoReturn:
        """Streams do not pickle."""
        raise TypeError("a stream does not pickle; make one where it is used")
