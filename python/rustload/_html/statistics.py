"""The statistics of many tensors, as text and as HTML."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from rustload._common.table import NAME_COLUMNS_MAX, TableRow, show_table
from rustload._common.terminal import count, text_of
from rustload._html.page import Budget, details, frame, table, text

if TYPE_CHECKING:
    from rustload._common.statistics import Statistics
    from rustload._common.terminal import Page

FIRST_ROWS = 12
"""The rows that are shown before those that can be unfolded."""
ROWS_MAX = 1000
"""The rows of the text."""
_HEAD = ("name", "min", "max", "mean", "std", "NaN", "zeros")
_RIGHT = range(1, len(_HEAD))


class StatisticsByName(dict[str, "Statistics"]):
    """Statistics by name, printed as a table."""

    def __repr__(self) -> str:
        """How many there are."""
        return f"<Statistics of {count(len(self), 'tensor')}>"

    def __str__(self) -> str:
        """A table, without the tensors after the first 1,000."""
        return text_of(self._show)

    def _show(self, page: Page) -> None:
        cells = [
            [*_numbers(found), f"{found.nan:,}", f"{found.zeros:,}"]
            for found in islice(self.values(), ROWS_MAX)
        ]
        titles = list(_HEAD[1:])
        widths = [max(map(len, column)) for column in zip(titles, *cells, strict=True)]
        lines = [
            "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
            for row in [titles, *cells]
        ]
        names = [page.safe(name) or '""' for name in islice(self, ROWS_MAX)]
        rows = [TableRow(name, line, ()) for name, line in zip(names, lines[1:], strict=True)]
        page.line(repr(self)[1:-1])
        if rows:
            show_table(page, rows, widest=NAME_COLUMNS_MAX, head=lines[0])
        if len(self) > ROWS_MAX:
            page.line(f"  and {len(self) - ROWS_MAX:,} more")

    def _repr_html_(self) -> str:
        budget = Budget()
        rows = [_row(name, found) for name, found in self.items()]
        first, complete = table(rows[:FIRST_ROWS], budget, numbers=_RIGHT, head=_HEAD)
        body = [first]
        rest = rows[FIRST_ROWS:]
        if rest and complete:
            inside, complete = table(rest, budget, numbers=_RIGHT, head=_HEAD)
            body.append(details(f"<b>more</b> ({len(rest):,})", inside))
        if not complete:
            body.append('<p class="m">not all is shown: see .items()</p>')
        return frame("Statistics", count(len(self), "tensor"), repr(self), body)


def _numbers(found: Statistics) -> list[str]:
    return ["-" if one is None else f"{one:.4g}" for one in (found.min, found.max, found.mean, found.std)]


def _row(name: str, found: Statistics) -> list[str]:
    nan = f'<span class="bad">{found.nan:,}</span>' if found.nan else "0"
    return [f'<div class="k">{text(name)}</div>', *_numbers(found), nan, f"{found.zeros:,}"]
