"""`DiffReport`: what `diff` returns, and how it is printed.

As text, names that differ in one number only are one line: `layers.{0..31}.weight`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from rustload._common.columns import columns_of
from rustload._common.json_values import Finite, plain
from rustload._common.table import NAME_COLUMNS_MAX, TableRow, show_table
from rustload._common.terminal import Page, count, text_of
from rustload._rustload import spell_numbers
from rustload.errors import _no_truth

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# The most lines of a list; --json has all.
LINES_SHOWN_MAX = 40
# The most names in a line of values that only one checkpoint has.
NAMES_SHOWN_MAX = 8
T = TypeVar("T")
_NUMBER = re.compile(r"(?<![^.])\d{1,18}(?![^.])")


class TensorDiff(NamedTuple):
    """A tensor that is in both checkpoints, and differs.

    Attributes:
        name: Its name.
        dtypes: Its dtype in each.
        shapes: Its shape in each.
        compared_as: The dtype in which the elements were compared: their own, or what both were cast to. None if they were not.
        total: The number of elements.
        different: The elements whose bytes differ.
        distant: Those of them that are not close: neither within `atol` and `rtol`, nor both NaN, nor both zero.
        first: The index of the first element that is not close; of the first whose bytes differ if all are close; else None.
        nan: The elements that are NaN in one checkpoint only.
        max_absolute: The largest absolute difference of two numbers.
        max_relative: The largest difference in proportion to the magnitude of the number in the second checkpoint, where that
            is not zero.
        relative_l2: The norm of the difference in proportion to that of the first tensor, ‖a - b‖ / ‖a‖, in float64. Elements
            that are NaN or infinite in one of the tensors are left out of this and the next two. Infinite if only ‖a‖ is 0.
            None if no element was compared, none differs or none is finite, and for packed dtypes.
        rms: The root of the mean squared difference.
        cosine: The cosine of the angle between both as vectors: 1 if they differ in scale only. Of complex numbers, its real
            part. None also if a norm is 0.
    """

    name: str
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    compared_as: str | None = None
    total: int = 0
    different: int = 0
    distant: int = 0
    first: tuple[int, ...] | None = None
    nan: int = 0
    max_absolute: Finite = 0.0
    max_relative: Finite = 0.0
    relative_l2: float | None = None
    rms: float | None = None
    cosine: float | None = None


class ValueDiff(NamedTuple):
    """A value that is not a tensor, and differs.

    Attributes:
        name: Its dotted name, as for `rustload show`.
        a: The value in the first checkpoint, as text, which may be cut; None if it has none of that name.
        b: The value in the second one.
    """

    name: str
    a: str | None
    b: str | None


class DiffReport(NamedTuple):
    """What differs between two checkpoints.

    Attributes:
        a: The first one's path, or what `repr` says of it.
        b: The second one's.
        prefix_a: What was removed from all names of the first, because the second lacks it: `"model."`; or empty.
        prefix_b: What was removed from all names of the second.
        data: Whether elements were compared.
        only_a: Names that only the first has.
        only_b: Names that only the second has.
        changed: Tensors that differ: in dtype or shape, or in elements that are not close. The worst is first: those whose
            elements were not compared, those with NaN or infinities in one checkpoint only, then by `relative_l2`.
        close: Tensors whose bytes differ and whose elements are all close; with `cast=True`, also those of two dtypes that are
            equal after a cast.
        equal: The number of tensors that do not differ, as far as they were compared.
        notes: What was not compared, and names that one file has as another tensor's.
        seconds: How long it took.
        values: Values that are not tensors and differ, or that only one has; they do not make `same` False. None if they were
            not compared: of selections of tensors, with `select` or `key`, and of distributed checkpoints without `data`.
    """

    a: str
    b: str
    prefix_a: str
    prefix_b: str
    data: bool
    only_a: list[str]
    only_b: list[str]
    changed: list[TensorDiff]
    close: list[TensorDiff]
    equal: int
    notes: list[str]
    seconds: float
    values: list[ValueDiff] | None = None

    @property
    def same(self) -> bool:
        """Whether both have the same names, and no tensor differs: as far as it was compared, see `data` and `values`."""
        return not (self.only_a or self.only_b or self.changed)

    def __bool__(self) -> NoReturn:
        """Not defined, as every report would be true.

        Raises:
            TypeError: Always.
        """
        raise _no_truth(self, ".same")

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, as in the JSON of the command line, which has None for an infinite difference."""
        return {"same": self.same, **plain(self)}

    def __repr__(self) -> str:
        """The last line of the text."""
        return f"<DiffReport {self.a!r} {self.b!r} {' '.join(text for _, text in _verdict(self))}>"

    def __str__(self) -> str:
        """The report as text, as the command line prints it."""
        return text_of(lambda page: show(page, self))

    def _repr_html_(self) -> str:
        """HTML for notebooks: the last line of the text, and the lists; names that differ in one number only are one row."""
        from rustload._html.reports import report_html

        names = {"only_a": self.only_a, "only_b": self.only_b}
        tensors = {"changed": self.changed, "close": self.close}
        lists: dict[str, Sequence[Sequence[str]]] = {
            **{title: _folded((name, "") for name in found) for title, found in names.items()},
            **{
                title: _folded((one.name, _sentence(_found(one))) for one in found)
                for title, found in tensors.items()
            },
            "values": [(one.name, f"{_or_none(one.a)} / {_or_none(one.b)}") for one in self.values or ()],
            "notes": [(note,) for note in self.notes],
        }
        hint = _cast_hint(self, "cast=True")
        texts = [*_prefixes(self), *([hint] if hint else []), " ".join(text for _, text in _verdict(self))]
        summary = f"{self.a}  {self.b}: {'; '.join(texts)}"
        counts = {title: len(getattr(self, title) or ()) for title in lists}
        return report_html("DiffReport", summary, lists, counts=counts)


def _or_none(value: str | None) -> str:
    return "none" if value is None else value


def show(page: Page, report: DiffReport, *, data: str = "data=True", cast: str = "cast=True") -> None:
    """Adds a report to a page; `data` and `cast` are the arguments that it names, as the reader would pass them."""
    a, b = page.safe(report.a), page.safe(report.b)
    page.title(f"{a}  {b}")
    for text in _prefixes(report):
        page.text([("", page.safe(text))])
    for title, names in ((f"only in {a}", report.only_a), (f"only in {b}", report.only_b)):
        if names:
            page.heading(title, count(len(names), "tensor"))
            _table(page, "31", _folded((name, _Found()) for name in names))
    for title, code, found in (("different", "31", report.changed), ("close", "33", report.close)):
        if found:
            page.heading(title, count(len(found), "tensor"))
            _table(page, code, _folded((one.name, _found(one)) for one in found))
    _values(page, report)
    if report.notes:
        page.heading("notes")
        for note in report.notes:
            page.line(f"  {page.fitted(page.safe(note))}")
    if not report.same or report.close or report.notes or report.values:
        page.line()
    if hint := _cast_hint(report, cast):
        page.text([("33", hint)])
    page.text(_verdict(report, data))


def _prefixes(report: DiffReport) -> list[str]:
    """What was removed from the names."""
    both = ((report.a, report.prefix_a), (report.b, report.prefix_b))
    return [f"all names of {path} without {prefix!r}" for path, prefix in both if prefix]


def _verdict(report: DiffReport, data: str = "data=True") -> list[tuple[str, str]]:
    """The last line, as spans (SGR code, text)."""
    others = (
        f"; {count(len(report.values), 'other value')} differ{'s' * (len(report.values) == 1)}"
        if report.values
        else ""
    )
    unread = [] if report.data or not report.equal else [("33", f"no element was compared: pass {data}")]
    both = report.equal + len(report.changed) + len(report.close)
    if report.same:
        what = "same names, dtypes and shapes"
        if report.data:
            what = "same elements" if not report.close else "same elements, or close ones"
        word = ("33", "same structure:") if unread else ("32", "same:")
        return [word, ("", f"{count(both, 'tensor')}, {what}{others}{';' * bool(unread)}"), *unread]
    parts = [f"{len(report.changed):,} of {count(both, 'tensor')}"] if report.changed else []
    parts += [
        f"{number:,} {what}"
        for number, what in (
            (len(report.only_a), "only in the first"),
            (len(report.only_b), "only in the second"),
            (len(report.close), "close"),
            (report.equal, "equal" if report.data else "with the same dtype and shape"),
        )
        if number
    ]
    return [("31", "different:"), ("", f"{', '.join(parts)}{others}{';' * bool(unread)}"), *unread]


def _cast_hint(report: DiffReport, cast: str) -> str:
    """What to do about tensors that differ in dtype, and as far as is known in nothing else; empty without any."""
    number = sum(
        one.shapes[0] == one.shapes[1] and one.distant == 0 and (one.compared_as is not None) == report.data
        for one in report.changed
    )
    if not number:
        return ""
    what = f"{cast} ignores that" if report.data else f"{cast} compares their elements after a cast"
    return f"{count(number, 'tensor')} differ{'s' * (number == 1)} in dtype only: {what}"


class _Found(NamedTuple):
    """What differs, for a row of a table.

    Attributes:
        words: What is not a column.
        cells: The columns, by their titles; None if no element was compared.
    """

    words: tuple[str, ...] = ()
    cells: tuple[str, ...] | None = None


_COLUMNS = ("differ", "of", "max abs", "max rel", "rel L2", "rms", "cosine", "first")
_LEFT_OUT = ("first", "rms", "max rel", "of")
"""The columns that a terminal has if it is wide enough: the first of these is left out first."""
NAMES_FIRST = 48
"""The columns that names take before such a column is shown."""


def _found(one: TensorDiff) -> _Found:
    words = []
    if one.dtypes[0] != one.dtypes[1]:
        words.append(f"{one.dtypes[0]} / {one.dtypes[1]}")
    if one.shapes[0] != one.shapes[1]:
        words.append(f"{list(one.shapes[0])} / {list(one.shapes[1])}")
    if one.compared_as is None:
        return _Found(tuple(words))
    if not one.different:
        return _Found((*words, f"equal as {one.compared_as}"))
    if one.dtypes[0] != one.dtypes[1]:
        words.append(f"compared as {one.compared_as}")
    if one.distant < one.different:
        words.append(f"{one.distant:,} not close" if one.distant else "all are close")
    if one.nan:
        words.append(f"{one.nan:,} NaN in one only")
    # Without other differences than NaN there is no distance to show; without a number but 0 in b none to compare with.
    is_nan = one.nan == one.different
    no_relative = is_nan or (one.max_absolute and not one.max_relative)
    cells = (
        f"{one.different:,}",
        f"{one.total:,}",
        "-" if is_nan else f"{one.max_absolute:.4g}",
        "-" if no_relative else f"{one.max_relative:.4g}",
        "-" if is_nan or one.relative_l2 is None else f"{one.relative_l2:.4g}",
        "-" if is_nan or one.rms is None else f"{one.rms:.4g}",
        "-" if is_nan or one.cosine is None else f"{one.cosine:.6g}",  # most are near 1
        "-" if one.first is None else str(list(one.first)),
    )
    return _Found(tuple(words), cells)


def _sentence(found: _Found) -> str:
    """What differs, in a few words."""
    if found.cells is None:
        return ", ".join(found.words)
    cells = dict(zip(_COLUMNS, found.cells, strict=True))
    share = f"{cells.pop('differ')} of {cells.pop('of')} elements differ"
    return ", ".join(
        [share, *found.words, *(f"{title} {cell}" for title, cell in cells.items() if cell != "-")]
    )


def _table(page: Page, code: str, lines: list[tuple[str, _Found]]) -> None:
    """The tensors: first those of which no element differs or was compared, then those with columns."""
    shown = lines[:LINES_SHOWN_MAX]
    names = [page.fitted(page.safe(label)) or '""' for label, _ in shown]
    columns = [found.cells for _, found in shown if found.cells is not None]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *columns, strict=True)]
    kept = [*range(len(_COLUMNS))]
    room = min(max(map(columns_of, names)), NAMES_FIRST) + 2
    for title in _LEFT_OUT:
        if page.must_split(room + sum(2 + widths[at] for at in kept)):
            kept.remove(_COLUMNS.index(title))

    def line(cells: Sequence[str]) -> str:
        return "  ".join(f"{cells[at]:>{widths[at]}}" for at in kept)

    with_cells, without = [], []
    for name, (_, (words, cells)) in zip(names, shown, strict=True):
        label, text = page.paint(code, name), ", ".join(words)
        if cells is None:
            without.append(TableRow(label, text, [("", text)]))
            continue
        more = [("33", text)] if text else []
        labelled = [("", f"{_COLUMNS[at]} {cells[at]}") for at in kept]
        with_cells.append(TableRow(label, line(cells), labelled, more))
    if without:
        show_table(page, without, widest=NAME_COLUMNS_MAX)
    if with_cells:
        show_table(page, with_cells, widest=NAME_COLUMNS_MAX, head=line(_COLUMNS))
    if len(lines) > len(shown):
        page.cells([("2", f"and {len(lines) - len(shown):,} more lines (--json has all)")], 2)


def _values(page: Page, report: DiffReport) -> None:
    """The values that are not tensors and differ; those that only one has are a line."""
    if not report.values:
        return
    page.heading("other values", "not tensors")
    both = [one for one in report.values if one.a is not None and one.b is not None]
    for one in both[:LINES_SHOWN_MAX]:
        page.hanging([("33", page.fitted(page.safe(one.name)))], page.safe(f"{one.a} / {one.b}"))
    if len(both) > LINES_SHOWN_MAX:
        page.cells([("2", f"and {len(both) - LINES_SHOWN_MAX:,} more (--json has all)")], 2)
    for path, names in (
        (report.a, [one.name for one in report.values if one.b is None]),
        (report.b, [one.name for one in report.values if one.a is None]),
    ):
        if names:
            listed = ", ".join(names[:NAMES_SHOWN_MAX])
            more = f" and {len(names) - NAMES_SHOWN_MAX:,} more" if len(names) > NAMES_SHOWN_MAX else ""
            page.text([("", page.safe(f"only in {path}:")), ("33", page.safe(listed)), ("", more.strip())])


def _folded(rows: Iterable[tuple[str, T]]) -> list[tuple[str, T]]:
    """The rows, with those one after another or apart that differ in one number of their name as one."""
    groups: dict[tuple[str, str, T], list[int]] = {}
    for name, what in rows:
        numbers = list(_NUMBER.finditer(name))
        # The innermost number that may vary is the first: that of a layer.
        if not numbers:
            groups[name, "", what] = []
            continue
        first = numbers[0]
        groups.setdefault((name[: first.start()], name[first.end() :], what), []).append(int(first[0]))
    lines = []
    for (before, after, what), numbers_of in groups.items():
        spelled = ""
        if len(numbers_of) == 1:
            spelled = str(numbers_of[0])
        elif numbers_of:
            spelled = "{" + spell_numbers(sorted(set(numbers_of))) + "}"
        lines.append((f"{before}{spelled}{after}", what))
    return lines
