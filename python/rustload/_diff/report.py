"""`DiffReport`: what `diff` returns, and how it is printed.

As text, names that differ in one number only are one line: `layers.{0..31}.weight`.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from rustload._common.json_values import Finite, plain
from rustload._common.terminal import Page, count
from rustload._common.tree import spell_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["DiffReport", "TensorDiff", "show"]

# The most lines of a list; --json has all.
LINES_SHOWN_MAX = 40
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

    @property
    def same(self) -> bool:
        """Whether both have the same names, and no tensor differs: as far as it was compared, see `data`."""
        return not (self.only_a or self.only_b or self.changed)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, as in the JSON of the command line, which has None for an infinite difference."""
        return {"same": self.same, **plain(self)}

    def __repr__(self) -> str:
        """The last line of the text."""
        return f"<DiffReport {self.a!r} {self.b!r} {' '.join(text for _, text in _verdict(self))}>"

    def __str__(self) -> str:
        """The report as text, as the command line prints it."""
        out = io.StringIO()
        page = Page(out, "never")
        show(page, self)
        page.flush()
        return out.getvalue().rstrip("\n")

    def _repr_html_(self) -> str:
        """HTML for notebooks: the last line of the text, and the lists; names that differ in one number only are one row."""
        from rustload._html.reports import report_html

        names = {"only_a": self.only_a, "only_b": self.only_b}
        tensors = {"changed": self.changed, "close": self.close}
        lists: dict[str, Sequence[Sequence[str]]] = {
            **{title: _folded((name, "") for name in found) for title, found in names.items()},
            **{title: _folded((one.name, _what(one)) for one in found) for title, found in tensors.items()},
            "notes": [(note,) for note in self.notes],
        }
        texts = [*_prefixes(self), " ".join(text for _, text in _verdict(self))]
        summary = f"{self.a}  {self.b}: {'; '.join(texts)}"
        counts = {title: len(getattr(self, title)) for title in lists}
        return report_html("DiffReport", summary, summary, lists, fields="report.{}", counts=counts)


def show(page: Page, report: DiffReport) -> None:
    """Adds a report to a page."""
    a, b = page.safe(report.a), page.safe(report.b)
    page.title(f"{a}  {b}")
    for text in _prefixes(report):
        page.text([("", page.safe(text))])
    for title, names in ((f"only in {a}", report.only_a), (f"only in {b}", report.only_b)):
        _list(page, title, "31", ((name, "") for name in names), len(names))
    _list(page, "different", "31", ((one.name, _what(one)) for one in report.changed), len(report.changed))
    _list(page, "close", "33", ((one.name, _what(one)) for one in report.close), len(report.close))
    if report.notes:
        page.heading("notes")
        for note in report.notes:
            page.line(f"  {page.fitted(page.safe(note))}")
    if not report.same or report.close or report.notes:
        page.line()
    page.text(_verdict(report))


def _prefixes(report: DiffReport) -> list[str]:
    """What was removed from the names."""
    both = ((report.a, report.prefix_a), (report.b, report.prefix_b))
    return [f"all names of {path} without {prefix!r}" for path, prefix in both if prefix]


def _verdict(report: DiffReport) -> list[tuple[str, str]]:
    """The last line, as spans (SGR code, text)."""
    if report.same:
        what = "same names, dtypes and shapes"
        if report.data:
            what = "same elements" if not report.close else "same elements, or close ones"
        remark = [] if report.data else [("2", "(elements were not compared)")]
        return [
            ("32", "same:"),
            ("", f"{count(report.equal + len(report.close), 'tensor')}, {what}"),
            *remark,
        ]
    parts = [
        f"{len(names):,} {what}"
        for names, what in (
            (report.only_a, "only in the first"),
            (report.only_b, "only in the second"),
            (report.changed, "different"),
            (report.close, "close"),
        )
        if names
    ]
    return [("31", "different:"), ("", f"{', '.join(parts)}, {report.equal:,} equal")]


def _what(one: TensorDiff) -> str:
    """What differs, in a few words."""
    parts = []
    if one.dtypes[0] != one.dtypes[1]:
        parts.append(f"{one.dtypes[0]} / {one.dtypes[1]}")
    if one.shapes[0] != one.shapes[1]:
        parts.append(f"{list(one.shapes[0])} / {list(one.shapes[1])}")
    if one.compared_as is None:
        return ", ".join(parts)
    cast = f" as {one.compared_as}" if one.dtypes[0] != one.dtypes[1] else ""
    if not one.different:
        return ", ".join([*parts, f"equal{cast}"])
    share = f"{one.different:,} of {one.total:,} elements differ{cast}"
    if one.distant < one.different:
        share += f", {one.distant:,} of them not close" if one.distant else ", all are close"
    parts.append(share)
    if one.first is not None:
        parts.append(f"first at {list(one.first)}")
    if one.nan:
        parts.append(f"{one.nan:,} NaN in one only")
        if one.nan == one.different:
            return ", ".join(parts)  # all others are equal: there is no distance to show
    parts.append(f"max abs {one.max_absolute:.4g}")
    if (
        one.max_relative or not one.max_absolute
    ):  # otherwise no number in the second checkpoint is one to compare with
        parts.append(f"max rel {one.max_relative:.4g}")
    if one.relative_l2 is not None:
        parts.append(f"rel L2 {one.relative_l2:.4g}")
    if one.rms is not None:
        parts.append(f"rms {one.rms:.4g}")
    if one.cosine is not None:
        # Most are near 1.
        parts.append(f"cosine {one.cosine:.6g}")
    return ", ".join(parts)


def _list(page: Page, title: str, code: str, rows: Iterable[tuple[str, str]], number: int) -> None:
    if not number:
        return
    page.heading(title, count(number, "tensor"))
    lines = _folded(rows)
    for label, what in lines[:LINES_SHOWN_MAX]:
        page.hanging([(code, page.fitted(page.safe(label)))], what)
    if len(lines) > LINES_SHOWN_MAX:
        page.cells([("2", f"and {len(lines) - LINES_SHOWN_MAX:,} more lines (--json has all)")], 2)


def _folded(rows: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The rows, with those one after another or apart that differ in one number of their name as one."""
    groups: dict[tuple[str, str, str], list[int]] = {}
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
