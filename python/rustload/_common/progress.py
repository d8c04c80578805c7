"""The argument `progress=`: a progress bar on stderr, lines of text on a non-TTY, or a callback.

The values: None or False (no output); True (on a TTY or in a notebook a bar; otherwise ten lines); or a
callback `(bytes done, total bytes, name of the finished tensor)`.
"""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload.errors import _error, _printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Progress: TypeAlias = "bool | Callable[[int, int, str], object] | None"
Report: TypeAlias = "Callable[[int, str], None]"

_REFRESH_SECONDS = 0.1
"""Seconds between two updates of a bar."""
_LOG_LINES = 10
"""The number of lines that are written if stderr is a non-TTY."""
_BAR_COLUMNS = 30
_TEXT_COLUMNS_MAX = 110
"""The most columns of a bar, with its texts."""


def checked_progress(progress: Any) -> Any:
    """Returns `progress` unchanged if it is valid.

    Raises:
        TypeError: It is neither None, a bool nor a callable.
    """
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise _error("Type", f"is None, True or a callable, not {progress!r}", argument="progress")
    return progress


@contextlib.contextmanager
def reporting(progress: Progress, total: int, what: str = "loading") -> Iterator[Report]:
    """Opens a progress display for one operation of `total` bytes, and closes it also if the operation fails.

    Yields:
        A function `(bytes finished since the last call, tensor name)`, which is almost free without a display. It propagates
        what the user's callback raises.
    """
    checked_progress(progress)
    done = 0
    if progress is None or progress is False:
        yield lambda _nbytes, _name: None
        return
    if callable(progress):
        callback: Callable[[int, int, str], object] = progress

        def report(nbytes: int, name: str) -> None:
            nonlocal done
            done += nbytes
            callback(done, total, name)

        yield report
        return
    display = _Forgiving(total, what)
    shown = 0.0

    def draw(nbytes: int, name: str) -> None:
        nonlocal done, shown
        done += nbytes
        now = time.monotonic()
        if now - shown >= _REFRESH_SECONDS or done >= total:
            shown = now
            display.tell(lambda on: on.show(done, name))

    from rustload._common.waiting import saying

    finished = False
    try:
        display.tell(lambda on: on.show(0, ""))
        with saying(lambda text: display.tell(lambda on: on.wait(done, text))):
            yield draw
        finished = True
    finally:
        display.tell(lambda on: on.end(done, finished=finished))


class _Forgiving:
    """The display for stderr as it is, which ends at its first error: what cannot be shown does not end the work."""

    def __init__(self, total: int, what: str) -> None:
        self._display: _TextBar | _LogLines | None = None
        with contextlib.suppress(Exception):  # a stream may raise anything
            self._display = _display_for(total, what)

    def tell(self, act: Callable[[_TextBar | _LogLines], None]) -> None:
        """Calls `act` with the display, unless that has ended."""
        if self._display is not None:
            try:
                act(self._display)
            except Exception:  # noqa: BLE001  # as above
                self._display = None


def _display_for(total: int, what: str) -> _TextBar | _LogLines | None:
    if sys.stderr is None:
        return None
    # A notebook is not a TTY, and redraws a line after a carriage return.
    is_notebook = type(sys.stderr).__module__.partition(".")[0] == "ipykernel"
    return (_TextBar if is_notebook or sys.stderr.isatty() else _LogLines)(total, what)


class _TextBar:
    """A text bar on a TTY, redrawn in place."""

    def __init__(self, total: int, what: str) -> None:
        from rustload._common.terminal import terminal_columns

        self._total, self._what, self._length = total, what, 0
        # One column less than the terminal has: a full line would wrap.
        self._columns = min(terminal_columns(_TEXT_COLUMNS_MAX + 1, sys.stderr) - 1, _TEXT_COLUMNS_MAX)

    def show(self, done: int, name: str) -> None:
        from rustload._common.columns import clip, columns_of, pad

        share = min(done / self._total, 1.0) if self._total else 1.0
        bar = "#" * round(share * _BAR_COLUMNS)
        text = f"{self._what} [{bar:<{_BAR_COLUMNS}}] {share:4.0%} {_mib(done)} of {_mib(self._total)} {_label(name)}"
        text = clip(text, self._columns)
        sys.stderr.write("\r" + pad(text, self._length))
        sys.stderr.flush()
        self._length = columns_of(text)

    def wait(self, done: int, text: str) -> None:
        self.show(done, text)

    def end(self, done: int, *, finished: bool) -> None:
        self.show(done, "")
        sys.stderr.write("\n" if finished else " stopped\n")
        sys.stderr.flush()


class _LogLines:
    """A line per tenth of the total, for a non-TTY such as a log file."""

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what, self._next = total, what, 0

    def show(self, done: int, name: str) -> None:
        step = done * _LOG_LINES // self._total if self._total else _LOG_LINES
        if step >= self._next:
            self._next = step + 1
            self._say(done, _label(name))

    def wait(self, done: int, text: str) -> None:
        self._say(done, _printable(text))

    def end(self, done: int, *, finished: bool) -> None:
        if not finished:
            self._say(done, "stopped")

    def _say(self, done: int, text: str) -> None:
        sys.stderr.write(f"{self._what}: {_mib(done)} of {_mib(self._total)} {text}".rstrip() + "\n")
        sys.stderr.flush()


def _mib(nbytes: int) -> str:
    return f"{nbytes / (1 << 20):.1f} MiB"


def _label(name: str) -> str:
    """The name of a tensor, as a display shows it."""
    return _printable(name)[:60]
