"""A table of names: a name, then columns. On a narrow terminal, the columns are below the name."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rustload._common.columns import columns_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rustload._common.terminal import Page

# The fewest columns of a table for names; on a terminal with less room for them, the other columns are below the names.
NAME_COLUMNS_MIN = 16
# The columns for names that a few long names may not widen on a terminal; those have a line of their own.
NAME_COLUMNS_USUAL = 28
# The most columns for names where there is no terminal; after longer names, the other columns are not aligned.
NAME_COLUMNS_MAX = 160
# How far what is below a name is indented.
ROW_INDENT = 5


class TableRow(NamedTuple):
    """A row of a table.

    Attributes:
        name: The name, with its colours and branches.
        columns: What follows the name, with colours; aligned with the other rows.
        cells: The same as cells (SGR code, text), for terminals on which the columns do not fit.
        more: Cells after the columns; those that do not fit a terminal's line are below it.
        indent: How far the name is indented by branches.
    """

    name: str
    columns: str
    cells: Sequence[tuple[str, str]]
    more: Sequence[tuple[str, str]] = ()
    indent: int = 0


def show_table(page: Page, rows: Sequence[TableRow], *, widest: int, head: str = "") -> None:
    """Adds rows to a page.

    Args:
        page: The page.
        rows: At least one row.
        widest: The most columns for names on a terminal, where a longer name has a line of its own.
        head: The titles of the columns, aligned with them; below the names, columns with titles stay aligned if they fit.
    """
    widths = [columns_of(row.name) for row in rows]
    longest = max(widths)
    width = min(longest, widest)
    columns_width = max(columns_of(row.columns) for row in rows)
    # Most names; the few that are longer must not move the columns of all rows below them.
    usual = sorted(widths)[(len(rows) - 1) * 9 // 10]
    if page.must_split(2 + min(usual, NAME_COLUMNS_MIN) + 2 + columns_width):
        _show_below(page, rows, head, columns_width)
        return
    left = page.room(2 + 2 + columns_width)
    if left is None:
        width = min(longest, NAME_COLUMNS_MAX)
    else:
        width = min(width, left, max(usual + 6, NAME_COLUMNS_USUAL))
    if head:
        page.line(page.dim(f"  {' ' * width}  {head}"))
    for row, name_width in zip(rows, widths, strict=True):
        name = row.name
        if name_width <= width:
            name += " " * (width - name_width)
        elif left is not None:
            page.line(f"  {name}")
            name = " " * width
        _show_columns(page, f"  {name}  {row.columns}", row)


def _show_below(page: Page, rows: Sequence[TableRow], head: str, columns_width: int) -> None:
    """Each name on a line of its own: its columns below it, aligned if they have titles and fit, else as cells."""
    is_aligned = bool(head) and not page.must_split(ROW_INDENT + columns_width)
    if is_aligned:
        page.line(page.dim(" " * ROW_INDENT + head))
    for row in rows:
        page.line(f"  {row.name}")
        if is_aligned:
            _show_columns(page, " " * ROW_INDENT + row.columns, row)
        else:
            page.cells([*row.cells, *row.more], ROW_INDENT + min(row.indent, 9))


def _show_columns(page: Page, line: str, row: TableRow) -> None:
    """A line of columns, with as many of the further cells as fit; the others are below."""
    more = list(row.more)
    while more and not page.must_split(columns_of(line) + 2 + columns_of(more[0][1])):
        line += f"  {page.paint(*more.pop(0))}"
    page.line(line)
    page.cells(more, ROW_INDENT)
