"""HTML of the statistics of many tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rustload._common.terminal import count
from rustload._html.page import Budget, details, frame, table, text

if TYPE_CHECKING:
    from rustload._common.statistics import Statistics

__all__ = ["StatisticsByName"]

FIRST_ROWS = 12
"""The rows that are shown before those that can be unfolded."""
_HEAD = ("name", "min", "max", "mean", "std", "NaN", "zeros")
_NUMBERS = range(1, len(_HEAD))


class StatisticsByName(dict[str, "Statistics"]):
    """Statistics by name, with a short text and a table for notebooks."""

    def __repr__(self) -> str:
        """How many there are."""
        return f"<Statistics of {count(len(self), 'tensor')}>"

    def _repr_html_(self) -> str:
        budget = Budget()
        rows = [_row(name, found) for name, found in self.items()]
        first, complete = table(rows[:FIRST_ROWS], budget, numbers=_NUMBERS, head=_HEAD)
        body = [first]
        rest = rows[FIRST_ROWS:]
        if rest and complete:
            inside, complete = table(rest, budget, numbers=_NUMBERS, head=_HEAD)
            body.append(details(f"<b>more</b> ({len(rest):,})", inside))
        if not complete:
            body.append('<p class="m">not all is shown: see .items()</p>')
        return frame("Statistics", count(len(self), "tensor"), repr(self), body)


def _row(name: str, found: Statistics) -> list[str]:
    numbers = ("-" if one is None else f"{one:.4g}" for one in (found.min, found.max, found.mean, found.std))
    nan = f'<span class="bad">{found.nan:,}</span>' if found.nan else "0"
    return [f'<div class="k">{text(name)}</div>', *numbers, nan, f"{found.zeros:,}"]
