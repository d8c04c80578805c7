"""Progress of long work: silent unless asked for, a bar or lines on stderr, or calls of the user's own function.

`progress=` is None or False (silent), True (a bar: rich's where rich is installed, plain text otherwise), or a callable that gets
the bytes done, the bytes in total, and the name of the tensor that was finished.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Progress", "Report", "checked_progress", "reporting"]

Progress: TypeAlias = "bool | Callable[[int, int, str], object] | None"
Report: TypeAlias = "Callable[[int, str], None]"

_TICK = 0.1
"""Seconds between two updates of a terminal."""
_STEPS = 10
"""Lines that a run writes where stderr is no terminal."""
_WIDTH = 30


class _Face(Protocol):
    """Something that shows progress."""

    def show(self, done: int, name: str) -> None:
        """Shows how far it has come."""

    def end(self, done: int, *, finished: bool) -> None:
        """Leaves the terminal as it was, after the last line."""


def checked_progress(progress: Any) -> Any:
    """`progress` itself.

    Raises:
        TypeError: It is neither None, a bool nor a callable.
    """
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise _make("Type", "Type", f"progress= is None, True or a callable, not {progress!r}")
    return progress


@contextlib.contextmanager
def reporting(progress: Progress, total: int, what: str = "loading") -> Iterator[Report]:
    """Opens the display for one piece of work, and closes it however the work ends.

    Args:
        progress: As the user gave it.
        total: Bytes that the whole work has.
        what: A word for the bar.

    Yields:
        A function to be called with the bytes that were finished now and the tensor's name; it costs next to nothing when
        nobody watches. What the user's callable raises comes out of it.
    """
    checked_progress(progress)
    done = 0
    if progress is None or progress is False:
        yield lambda _nbytes, _name: None
        return
    if callable(progress):
        told: Callable[[int, int, str], object] = progress

        def tell(nbytes: int, name: str) -> None:
            nonlocal done
            done += nbytes
            told(done, total, name)

        yield tell
        return
    face = _face(total, what)
    shown = 0.0

    def draw(nbytes: int, name: str) -> None:
        nonlocal done, shown
        done += nbytes
        now = time.monotonic()
        if now - shown >= _TICK or done >= total:
            shown = now
            face.show(done, name)

    finished = False
    try:
        face.show(0, "")
        yield draw
        finished = True
    finally:
        face.end(done, finished=finished)


def _face(total: int, what: str) -> _Face:
    terminal = sys.stderr.isatty()
    if terminal and importlib.util.find_spec("rich") is not None:
        return _Rich(total, what)
    return _Line(total, what) if terminal else _Lines(total, what)


class _Rich:
    """rich's bar."""

    def __init__(self, total: int, what: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[name]}", markup=True),
        )
        # Drawn by our calls alone: a thread of rich's own would have to be stopped in a forked child.
        self._bars = Bars(*columns, console=Console(stderr=True), auto_refresh=False)
        self._task = self._bars.add_task(what, total=max(total, 1), name="")
        self._bars.start()

    def show(self, done: int, name: str) -> None:
        from rich.markup import escape

        self._bars.update(self._task, completed=done, name=escape(_printable(name)), refresh=True)

    def end(self, done: int, *, finished: bool) -> None:
        if finished:
            self.show(done, "")
        self._bars.stop()


class _Line:
    """One line of a terminal, written over."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what, self._length = total, what, 0

    def show(self, done: int, name: str) -> None:
        share = min(done / self._total, 1.0) if self._total else 1.0
        bar = "#" * round(share * _WIDTH)
        text = f"{self._what} [{bar:<{_WIDTH}}] {share:4.0%} {_mib(done)} of {_mib(self._total)} {_printable(name)}"
        text = text[:110]
        sys.stderr.write("\r" + text.ljust(self._length))
        sys.stderr.flush()
        self._length = len(text)

    def end(self, done: int, *, finished: bool) -> None:
        self.show(done, "")
        sys.stderr.write("\n" if finished else " stopped\n")
        sys.stderr.flush()


class _Lines:
    """A line for every tenth of the work, for logs."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what, self._next = total, what, 0

    def show(self, done: int, name: str) -> None:
        step = done * _STEPS // self._total if self._total else _STEPS
        if step >= self._next:
            self._next = step + 1
            self._say(done, _printable(name))

    def end(self, done: int, *, finished: bool) -> None:
        if not finished:
            self._say(done, "stopped")

    def _say(self, done: int, text: str) -> None:
        sys.stderr.write(f"{self._what}: {_mib(done)} of {_mib(self._total)} {text}".rstrip() + "\n")
        sys.stderr.flush()


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"


def _printable(name: str) -> str:
    """A file's name for a tensor must not steer the terminal."""
    return "".join(char if char.isprintable() else "?" for char in name)[:60]
