"""Text output for terminals and pipes: colours, bars, and escaped names from files.

On a terminal every line fits its width. Elsewhere rows are never split, because other programs parse them.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from typing import TYPE_CHECKING, TextIO

from rustload._common.columns import clip, columns_of, wrap
from rustload.errors import _printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

BAR_COLUMNS = 24
# The columns of running text where there is no terminal.
DEFAULT_COLUMNS = 120
# What a runner of GitHub Actions takes for the start of a command: `::` with only blanks before it, and `##[` anywhere in a
# line. It compares by the rules of a language, which pass over some characters.
_COMMAND = re.compile(r"^(?P<lead>[^0-9A-Za-z\n]*?):(?=[^ -~]*:)|#(?=[^ -~]*#[^ -~]*\[)", re.MULTILINE)
_EIGHTHS = " ▏▎▍▌▋▊▉█"


class Page:
    """Buffers lines of text for a stream; detects whether the stream has colours and Unicode."""

    # The columns of the terminal, for tests; None detects them.
    width: int | None = None

    def __init__(self, stream: TextIO, color: str) -> None:
        """Detects colours, encoding and width of the stream.

        Args:
            stream: The destination.
            color: `"always"`, `"never"`, or `"auto"`: colours on a terminal, unless `NO_COLOR` is set (no-color.org).
        """
        self._stream = stream
        self._lines: list[str] = []
        on_terminal = stream.isatty()
        colored = on_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._color = color == "always" or (color == "auto" and colored)
        self._unicode = (stream.encoding or "").lower().replace("-", "") in ("utf8", "utf16", "utf32")
        self._fits = on_terminal or self.width is not None
        self._width = self.width or (
            terminal_columns(DEFAULT_COLUMNS, stream) if on_terminal else DEFAULT_COLUMNS
        )
        self.times = "×" if self._unicode else "x"  # noqa: RUF001 - the sign for "times"

    def line(self, text: str = "") -> None:
        """Adds a line."""
        self._lines.append(text.rstrip() + "\n")

    def flush(self) -> None:
        """Writes all lines; characters that the stream cannot encode are escaped."""
        encoding = self._stream.encoding or "utf-8"
        # Line by line: an unbuffered stream (python -u) loses the end of a long text when the reader closes the pipe.
        for line in self._lines:
            self._stream.write(_without_commands(line).encode(encoding, "backslashreplace").decode(encoding))
        self._lines.clear()

    def safe(self, text: str) -> str:
        """Text from a file, escaped for terminals and for the stream's encoding."""
        text = _printable(text)
        encoding = self._stream.encoding or "utf-8"
        return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)

    def must_split(self, columns: int) -> bool:
        """Whether a row of so many columns has to be split, because the terminal has fewer."""
        return self._fits and columns > self._width

    def room(self, taken: int) -> int | None:
        """The columns of a terminal's line that are left if so many are taken, at least 10; None without a terminal."""
        return max(self._width - taken, 10) if self._fits else None

    def cells(self, cells: Sequence[tuple[str, str]], indent: int, gap: str = "  ") -> None:
        """Adds cells (SGR code, text), on as few lines as possible, indented by `indent` columns."""
        columns = max(self._width - indent, 10)
        line, length = "", 0
        for code, text in cells:
            for piece in [text] if columns_of(text) <= columns else wrap(text, columns):
                if line and length + len(gap) + columns_of(piece) > columns:
                    self.line(" " * indent + line)
                    line, length = "", 0
                length += (len(gap) if line else 0) + columns_of(piece)
                line += (gap if line else "") + self.paint(code, piece)
        if line:
            self.line(" " * indent + line)

    def text(self, spans: Sequence[tuple[str, str]], indent: int = 2) -> None:
        """Adds running text of spans (SGR code, text), which a space separates; on a terminal it is wrapped."""
        if not self.must_split(indent + sum(columns_of(text) + 1 for _, text in spans) - 1):
            self.line(" " * indent + " ".join(self.paint(code, text) for code, text in spans))
            return
        self.cells([(code, word) for code, text in spans for word in text.split()], indent, gap=" ")

    def title(self, text: str) -> None:
        """Adds a title, such as a checkpoint's path."""
        for line in wrap(text, self._width) if self.must_split(columns_of(text)) else [text]:
            self.line(self.paint("1", line))

    def heading(self, text: str, remark: str = "") -> None:
        """Adds a section's title."""
        self.line()
        if self.must_split(columns_of(text) + (len(remark) + 3 if remark else 0)):
            self.title(text)
            if remark:
                self.cells([("2", f"({remark})")], 2)
            return
        self.line(self.paint("1", text) + (self.dim(f" ({remark})") if remark else ""))

    def field(self, name: str, value: str, code: str = "") -> None:
        """Adds a line of a name and a value, which has the colour of an SGR code."""
        lines = [value]
        if self.must_split(14 + columns_of(value)):
            lines = wrap(value, max(self._width - 14, 10)) or [""]
        for at, line in enumerate(lines):
            self.line((f"  {self.dim(name.ljust(10))}  " if at == 0 else " " * 14) + self.paint(code, line))

    def clipped(self, text: str, taken: int = 0) -> str:
        """The text, cut to fit a line of which two columns and `taken` more are in use."""
        return clip(text, max(self._width - 2 - taken, 13))

    def fitted(self, text: str, taken: int = 0) -> str:
        """As `clipped` on a terminal, and the text unchanged elsewhere."""
        return self.clipped(text, taken) if self._fits else text

    def hanging(self, cells: Sequence[tuple[str, str]], text: str) -> None:
        """Adds cells (SGR code, text) followed by text, which a terminal shows wrapped with a hanging indent."""
        lead = "  " + "  ".join(self.paint(code, cell) for code, cell in cells)
        if not self._fits:
            self.line(f"{lead}  {text}")
            return
        width = 2 * len(cells) + sum(columns_of(cell) for _, cell in cells)
        hang = width + 2
        columns = self._width - hang
        if columns < 40:
            if width > self._width:
                self.cells([(code, cell.rstrip()) for code, cell in cells], 2)
            else:
                self.line(lead)
            hang, columns, lead = 6, max(self._width - 6, 20), ""
        lines = wrap(text, columns)
        if lead:
            self.line("  ".join([lead, *lines[:1]]))
        for line in lines[1:] if lead else lines:
            self.line(" " * hang + line)

    def bar(self, share: float) -> str:
        """A bar of a fixed width, filled to the fraction `share`."""
        if not self._unicode:
            return ("#" * round(share * BAR_COLUMNS)).ljust(BAR_COLUMNS, ".")
        # A share above zero shows at least one eighth.
        eighths = max(round(share * BAR_COLUMNS * 8), 1 if share else 0)
        full, rest = divmod(eighths, 8)
        bar = "█" * full + (_EIGHTHS[rest] if rest else "")
        return self.paint("36", bar) + self.dim("·" * (BAR_COLUMNS - len(bar)))

    def branches(self, lasts: tuple[bool, ...]) -> str:
        """The branch characters in front of a node of a tree."""
        down, tee, end = ("│  ", "├─ ", "└─ ") if self._unicode else ("|  ", "|- ", "`- ")
        lasts = lasts[-self._levels_drawn(lasts) - 1 :]
        above = "".join("   " if last else down for last in lasts[1:-1])
        return self.dim(above + (end if lasts[-1] else tee)) if len(lasts) > 1 else ""

    def indent(self, lasts: tuple[bool, ...]) -> int:
        """The columns of `branches`."""
        return 3 * self._levels_drawn(lasts)

    def _levels_drawn(self, lasts: tuple[bool, ...]) -> int:
        """The levels of a node that are drawn as branches; on a terminal only as many of the inner ones as half a line holds."""
        levels = len(lasts) - 1
        return min(levels, max(self._width // 6, 1)) if self._fits else levels

    def dtype(self, text: str) -> str:
        """A dtype's name."""
        return self.paint("36", text)

    def strong(self, text: str) -> str:
        """Bold text."""
        return self.paint("1", text)

    def dim(self, text: str) -> str:
        """Dimmed text."""
        return self.paint("2", text)

    def paint(self, code: str, text: str) -> str:
        """Text in a colour, by its SGR code; an empty code is not a colour."""
        return f"\x1b[{code}m{text}\x1b[0m" if self._color and code and text else text


def terminal_columns(default: int, stream: TextIO | None = None) -> int:
    """The columns of the terminal that `stream` (None: stdout) writes to, or `default` without one; `COLUMNS` overrides both.

    As `shutil.get_terminal_size`; importing that takes longer than most commands run, because it imports archive formats.
    """
    try:
        columns = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        columns = 0
    if columns > 0:
        return columns
    try:
        file = sys.__stdout__ if stream is None else stream
        return os.get_terminal_size(file.fileno()).columns or default  # type: ignore[union-attr]  # None: as below
    except (AttributeError, ValueError, OSError):  # stdout is None, closed or no terminal
        return default


def print_json(document: object) -> None:
    """Prints a JSON document to stdout, indented as in all commands."""
    import json

    for part in json.JSONEncoder(indent=1).iterencode(document):
        # In JSON, these characters are part of a string, which no line begins with.
        sys.stdout.write(part.replace("##[", "\\u0023#[") if _on_github() else part)
    sys.stdout.write("\n")


def message_line(text: str) -> str:
    """A line for stderr of a text, with what comes from files escaped."""
    return _without_commands(f"{_printable(text)}\n")


def text_of(show: Callable[[Page], None]) -> str:
    """What a function adds to a page, without colours."""
    out = io.StringIO()
    page = Page(out, "never")
    show(page)
    page.flush()
    return out.getvalue().rstrip("\n")


def print_messages(lines: Iterable[str]) -> None:
    """Prints lines to stderr, with text from files in them escaped. A stderr that cannot be written ends no work."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        page = Page(sys.stderr, "never")
        for line in lines:
            page.line(page.safe(line))
        page.flush()


def _on_github() -> bool:
    return bool(os.environ.get("GITHUB_ACTIONS"))


def _without_commands(text: str) -> str:
    """The text of which GitHub Actions takes no line for a command: names from files must not set variables or hide findings."""
    if not _on_github():
        return text
    return _COMMAND.sub(lambda found: "\\x23" if found["lead"] is None else f"{found['lead']}\\x3a", text)


def count(number: int, noun: str) -> str:
    """`1 tensor`, `2,000 tensors`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
