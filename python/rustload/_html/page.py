"""The frame of HTML for notebooks: escaped text, tables, and one `<div>` with a style of its own, without JavaScript.

Every text from a file passes `text`. A frame is at most `PAGE_BYTES_MAX` long, whatever the file has.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from rustload.errors import _clipped, _printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

PAGE_BYTES_MAX = 50_000
"""The most bytes of the HTML of one object."""
_RESERVED_BYTES = 4_000
"""The bytes that are kept for closing tags, and for lines that say what was cut."""
NAME_CHARS_MAX = 160
"""The most characters of a name."""

# Colours come from the page around it, so that it fits light and dark themes; only the accents differ.
_STYLE = """<style>
.rustload-repr{--rl-accent:#0b6e8a;--rl-good:#1a7f37;--rl-warn:#9a6700;--rl-bad:#cf222e;font-size:13px;line-height:1.5;
max-width:62em;overflow-x:auto}
html[theme=dark] .rustload-repr,html[data-theme=dark] .rustload-repr,body[data-jp-theme-light=false] .rustload-repr,
body.vscode-dark .rustload-repr{--rl-accent:#56c4e0;--rl-good:#57c269;--rl-warn:#dba642;--rl-bad:#ff7b72}
@media (prefers-color-scheme:dark){html:not([data-theme=light]) body:not([data-jp-theme-light=true]):not(.vscode-light)
.rustload-repr{--rl-accent:#56c4e0;--rl-good:#57c269;--rl-warn:#dba642;--rl-bad:#ff7b72}}
.rustload-repr .rustload-text{display:none}
.rustload-repr .rustload-body{display:block!important}
.rustload-repr .h{border-bottom:1px solid rgba(128,128,128,.4);padding-bottom:3px;margin-bottom:4px}
.rustload-repr summary{cursor:pointer}
.rustload-repr details details,.rustload-repr details>.r,.rustload-repr details>p,
.rustload-repr details>table{margin-left:1.3em!important}
.rustload-repr .r,.rustload-repr summary.g{display:flex;gap:1em}
.rustload-repr summary.g::before{content:"\\25B8";flex:none;width:.3em;opacity:.7}
.rustload-repr details[open]>summary.g::before{content:"\\25BE"}
.rustload-repr details>.r{padding-left:1.3em}
.rustload-repr .n{flex:1;min-width:14em;overflow-wrap:anywhere;unicode-bidi:isolate;font-family:monospace}
.rustload-repr .g>.n{font-weight:600}
.rustload-repr .d{color:var(--rl-accent);min-width:5.5em}
.rustload-repr .s{min-width:9em;font-family:monospace}
.rustload-repr .b{min-width:5.5em;text-align:right}
.rustload-repr .m{opacity:.7}
.rustload-repr .e{min-width:8em}
.rustload-repr .k{min-width:14em;overflow-wrap:anywhere}
.rustload-repr p{margin:2px 0}
.rustload-repr table{border-collapse:collapse;margin:2px 0}
.rustload-repr td,.rustload-repr th{vertical-align:top;padding:0 1.2em 0 0;border:0;background:none;
overflow-wrap:break-word;unicode-bidi:isolate}
.rustload-repr .x{display:inline-block;width:10em;height:.6em;background:rgba(128,128,128,.25)}
.rustload-repr .x>i{display:block;height:100%;background:var(--rl-accent)}
.rustload-repr .good{color:var(--rl-good);font-weight:600}
.rustload-repr .warn{color:var(--rl-warn);font-weight:600}
.rustload-repr .bad{color:var(--rl-bad);font-weight:600}
</style>"""


class Budget:
    """The bytes that are left for the HTML of one object."""

    def __init__(self) -> None:
        """All of them but those of the style."""
        self._left = PAGE_BYTES_MAX - len(_STYLE) - _RESERVED_BYTES

    def take(self, part: str) -> bool:
        """Takes the bytes of a part; False if they are more than are left, and then nothing is taken."""
        size = len(part.encode(errors="replace"))
        if size > self._left:
            return False
        self._left -= size
        return True


def text(value: str, most: int = NAME_CHARS_MAX) -> str:
    """Text from a file: clipped, with control characters spelled out, and escaped for HTML, attributes included."""
    return html.escape(_printable(_clipped(value, most)), quote=True)


def frame(title: str, remark: str, fallback: str, body: Sequence[str]) -> str:
    """The HTML of one object.

    Args:
        title: What it is, as plain text.
        remark: What follows the title, as plain text.
        fallback: The text that is shown where styles are removed.
        body: The parts below the title, as HTML.
    """
    return (
        f'<div class="rustload-repr">{_STYLE}<pre class="rustload-text">{text(fallback, 400)}</pre>'
        f'<div class="rustload-body" style="display:none"><div class="h"><b>{text(title)}</b> '
        f'<span class="m">{text(remark, 400)}</span></div>{"".join(body)}</div></div>'
    )


def details(summary: str, inside: str, *, is_open: bool = False) -> str:
    """A part that can be folded; both arguments are HTML."""
    return f"<details{' open' if is_open else ''}><summary>{summary}</summary>{inside}</details>"


def table(
    rows: Iterable[Sequence[str]], budget: Budget, *, numbers: Collection[int] = (), head: Sequence[str] = ()
) -> tuple[str, bool]:
    """A table, and whether all rows were within the budget.

    Alignment and layout are in each element: notebooks' own rules for tables would win over a style sheet.

    Args:
        rows: The rows, as cells in HTML.
        budget: What the rows take their bytes from.
        numbers: The columns of numbers, which are aligned to the right.
        head: The titles of the columns, as HTML.
    """

    def line(cells: Sequence[str], tag: str) -> str:
        sides = ("right;white-space:nowrap" if column in numbers else "left" for column in range(len(cells)))
        inside = (
            f'<{tag} style="text-align:{side}">{cell}</{tag}>'
            for side, cell in zip(sides, cells, strict=True)
        )
        return f"<tr>{''.join(inside)}</tr>"

    shown = [line(head, "th")] if head else []
    complete = True
    for row in rows:
        part = line(row, "td")
        complete = budget.take(part)
        if not complete:
            break
        shown.append(part)
    return f'<table style="table-layout:auto">{"".join(shown)}</table>', complete
