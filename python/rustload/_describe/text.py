"""Shows what a checkpoint holds as text, as `rustload info` prints it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Literal, NamedTuple

from rustload._common import tree
from rustload._common.columns import columns_of, pad
from rustload._common.memory import usable_text
from rustload._common.sizes import format_bytes
from rustload._common.table import TableRow, show_table
from rustload._common.terminal import BAR_COLUMNS, Page, count
from rustload._describe.describe import TEXT_SHOWN_MAX_CHARS, value_text
from rustload._scan.text import VERDICT_COLORS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rustload._checkpoint.opaque_class import OpaqueClass
    from rustload._describe.describe import (
        ContainerValue,
        Described,
        DescribedTensor,
        PlainValue,
        Scanned,
    )
    from rustload._describe.needed import Needed

# The most lines of each list below the tree; --json has all.
LINES_SHOWN_MAX = 12
# The most values to list.
VALUES_SHOWN_MAX = 20
# The most names that a scan is about to show.
NAMES_SHOWN_MAX = 3


class View(NamedTuple):
    """The selection and layout of the tensors to show.

    Attributes:
        listed: Whether to list all tensors in place of the tree.
        pattern: A name or a glob pattern: only tensors that match; None for all.
        depth: The most levels of the tree; None for all.
        sort: The order of the tensors, or of the rows in each level of the tree.
    """

    listed: bool = False
    pattern: str | None = None
    depth: int | None = None
    sort: Literal["file", "name", "size"] = "file"


def show(page: Page, report: Described, view: View) -> None:
    """Prints a report as text."""
    page.title(page.safe(report["path"]))
    files = report["files"]
    of_files = f" in {len(files)} files" if len(files) > 1 else ""
    page.field("format", report["format"] + of_files)
    of_all = (
        f" of {report['tensors_in_all']:,} match {page.safe(report['filter'])}" if "filter" in report else ""
    )
    page.field("tensors", f"{len(report['tensors']):,}{of_all}")
    page.field("elements", f"{report['elements']:,}" + rounded(report["elements"]))
    page.field("size", format_bytes(report["nbytes"]) + _storages(report))
    if "memory" in report:
        page.field("memory", _memory(report["memory"]))
    if "scan" in report and report["scan"]["verdict"] != "inert":
        code = VERDICT_COLORS[report["scan"]["verdict"]]
        page.field("scan", page.safe(scan_text(report["scan"])), code)
        page.field("", page.safe(f"rustload scan {shlex.quote(report['path'])} says where"))
    if report["dtypes"]:
        page.heading("dtypes")
        _dtypes(page, report)
    if report["quantized"]:
        page.heading("quantized", "open(path, dequantize=True) has the weights")
        lines = [
            (
                f"{seen['scheme']}, {seen['bits']} bits",
                f"{seen['weights']:,} weight{'s' * (seen['weights'] > 1)}, {format_bytes(seen['stored_nbytes'])}",
                f"{format_bytes(seen['nbytes'])} as {seen['dtype']}",
            )
            for seen in report["quantized"]
        ]
        widths = [max(len(line[at]) for line in lines) for at in range(2)]
        _first_lines(page, [f"{a:{widths[0]}}  {b:{widths[1]}}  {c}" for a, b, c in lines])
    if report["tensors"]:
        page.heading("tensors")
        (_list if view.listed else _tree)(page, report, view)
    if report["tied"]:
        page.heading("tied", "names that share a storage")
        identities = {entry["name"]: _identity(entry) for entry in report["tensors"]}
        _entries(page, [_group(page, group, identities) for group in report["tied"]])
    if report["values"]:
        page.heading("values", "at the top, beside tensors")
        _plain_values(page, report["values"])
    if report["unread"]:
        page.heading("values", "beside tensors, not read: rustload show PATH NAME does")
        _names(page, report["unread"])
    if report["opaque"]:
        page.heading("kept as data", "values of classes that were not built")
        _entries(page, [_class(page, found) for found in report["opaque"]])
    if report["globals"]:
        page.heading("named by the pickle", "nothing of it was imported or called")
        _names(page, report["globals"])
    if report["metadata"]:
        page.heading("metadata")
        width = min(max(columns_of(page.safe(key)) for key in report["metadata"]), 30)
        _first_lines(
            page,
            [
                f"{pad(page.safe(key), width)}  {page.safe(value)}"
                for key, value in report["metadata"].items()
            ],
        )
    if report["notes"]:
        page.heading("notes")
        _entries(page, [page.safe(note) for note in report["notes"]])


def _memory(found: Needed) -> str:
    fits = {True: "fits", False: "does not fit", None: "may fit"}[found["fits"]]
    return f"{format_bytes(found['needed'])} as {found['dtype']}: {fits}, {usable_text(found['usable'], found['bound'])}"


def scan_text(scanned: Scanned) -> str:
    """The verdict of a scan, and what it is about: `would execute (posix.system)`."""
    names = scanned["names"]
    more = f" and {len(names) - NAMES_SHOWN_MAX:,} more" if len(names) > NAMES_SHOWN_MAX else ""
    about = f" ({', '.join(names[:NAMES_SHOWN_MAX])}{more})" if names else ""
    return scanned["verdict"] + about


def rounded(number: int) -> str:
    """A large number rounded, as in model names: ` (7.2 B)`."""
    for unit, power in (("T", 1e12), ("B", 1e9), ("M", 1e6)):
        if number >= power:
            return f" ({number / power:.1f} {unit})"
    return ""


def _storages(report: Described) -> str:
    """The size of the storages, if it differs from that of the tensors."""
    if report["storage_nbytes"] == report["nbytes"] or "filter" in report:
        return ""
    return f", in storages of {format_bytes(report['storage_nbytes'])}"


def _dtypes(page: Page, report: Described) -> None:
    total = report["nbytes"] or 1
    width = max(len(seen["dtype"]) for seen in report["dtypes"])
    for seen in report["dtypes"]:
        share = seen["nbytes"] / total
        tensors = count(seen["tensors"], "tensor")
        if page.must_split(width + BAR_COLUMNS + len(tensors) + 25):
            page.cells(
                [
                    ("36", seen["dtype"]),
                    ("", format_bytes(seen["nbytes"])),
                    ("", _percent(share)),
                    ("2", tensors),
                ],
                2,
            )
            continue
        page.line(
            f"  {page.dtype(seen['dtype'].ljust(width))}  {page.bar(share)} {format_bytes(seen['nbytes']):>11}"
            f" {_percent(share):>6}  {page.dim(tensors)}"
        )


def _percent(share: float) -> str:
    if 0 < share < 0.001:
        return "<0.1%"
    # 100.0% is printed only for exactly all.
    return f"{min(share * 100, 99.9) if share < 1 else 100:.1f}%"


def tree_of(report: Described) -> tree.Node:
    """The tree of names; tensors of several names count once towards the sums."""
    tied = {name for group in report["tied"] for name in group}
    return tree.build(
        (
            entry["name"],
            tree.Leaf(entry["dtype"], tuple(entry["shape"]), entry["nbytes"], entry["name"] in tied),
            0 if entry["repeats"] else entry["nbytes"],
        )
        for entry in report["tensors"]
    )


def _tree(page: Page, report: Described, view: View) -> None:
    root = tree_of(report)
    if view.sort != "file":
        (tree.sort_by_size if view.sort == "size" else tree.sort_by_name)(root)
    rows = []
    for node, lasts in tree.walk(root, view.depth):
        indent = page.indent(lasts)
        times = f"  {page.times}{node.times}" if node.times > 1 and node.leaf else ""
        label = page.fitted(page.safe(node.label) or '""', indent + len(times))
        name = page.branches(lasts) + (label if node.leaf else page.strong(label))
        remark = "  tied" if node.leaf and node.leaf.tied else ""
        if node.times > 1:
            remark += f"  {format_bytes(node.own // node.times)} each"
        if node.leaf:
            what, shape = node.leaf.dtype, str(list(node.leaf.shape))
        else:
            what, shape = _inside(page, node), None
        size = format_bytes(tree.shown_nbytes(node))
        rows.append(Row(name + times, what, shape, size, remark, indent))
    _table(page, rows, widest=64)


class Row(NamedTuple):
    """A line of the table of tensors.

    Attributes:
        name: The name, with its colours and branches.
        content: The dtype; for a group, the number of tensors in it.
        shape: The shape; None for a group.
        nbytes: The size as text.
        remark: Text after the columns.
        indent: How far the name is indented by branches.
    """

    name: str
    content: str
    shape: str | None
    nbytes: str
    remark: str
    indent: int = 0


def _table(page: Page, rows: list[Row], *, widest: int) -> None:
    """Prints rows in columns; on a narrow terminal, the other columns are below the name."""
    dtypes = max((len(row.content) for row in rows if row.shape is not None), default=0)
    shapes = max((len(row.shape) for row in rows if row.shape is not None), default=0)
    groups = max((len(row.content) for row in rows if row.shape is None), default=0)
    columns = max(dtypes + 2 + shapes, groups)
    shapes = columns - dtypes - 2
    shown = []
    for row in rows:
        if row.shape is None:
            inside, what = page.dim(row.content.ljust(columns)), [("2", row.content)]
        else:
            inside = f"{page.dtype(row.content.ljust(dtypes))}  {row.shape:<{shapes}}"
            what = [("36", row.content), ("", row.shape)]
        remarks = [("2", remark) for remark in row.remark.split("  ") if remark]
        text = f"{inside} {row.nbytes:>11}{page.dim(row.remark)}"
        cells = [*what, ("", row.nbytes), *remarks]
        shown.append(TableRow(row.name, text, cells, indent=row.indent))
    show_table(page, shown, widest=widest)


def _inside(page: Page, node: tree.Node) -> str:
    """The number of tensors in a group: `32 × 9 tensors` if it is folded."""  # noqa: RUF002 - as it is shown
    if node.times == 1 or node.tensors % node.times:
        return count(node.tensors, "tensor")
    return f"{node.times} {page.times} {count(node.tensors // node.times, 'tensor')}"


def _list(page: Page, report: Described, view: View) -> None:
    tensors, tied = report["tensors"], {name for group in report["tied"] for name in group}
    if view.sort == "size":
        tensors = sorted(tensors, key=lambda entry: -entry["nbytes"])
    elif view.sort == "name":
        tensors = sorted(tensors, key=lambda entry: tree.natural_key(entry["name"]))
    rows = []
    for entry in tensors:
        # The full name, for other programs; cut only where it is longer than a terminal's line.
        name = page.fitted(page.safe(entry["name"]) or '""')
        remark = "  tied" if entry["name"] in tied else ""
        size = format_bytes(entry["nbytes"])
        rows.append(Row(name, entry["dtype"], str(entry["shape"]), size, remark))
    _table(page, rows, widest=80)


def _identity(entry: DescribedTensor) -> str:
    """A key that is equal for names of the same tensor."""
    return str([entry["storage"], entry["storage_offset"], entry["dtype"], entry["shape"], entry["strides"]])


def _group(page: Page, names: list[str], identities: dict[str, str]) -> str:
    """Names that share a storage: `a`, `= b`, `= c`."""
    shown = [page.fitted(page.safe(name) or '""', 2) for name in names[:LINES_SHOWN_MAX]]
    # What --filter left out is not known.
    kinds = {identities.get(name) for name in names}
    is_one = len(kinds) == 1 and None not in kinds
    words = [f"= {name}" for name in shown] if is_one else [f"{name}," for name in shown]
    words = [shown[0], *words[1:]] if is_one else [*words[:-1], shown[-1]]
    if len(names) > len(shown):
        words.append(f"and {len(names) - len(shown):,} more")
    return " ".join(words) + ("  (different parts)" if len(kinds) > 1 and None not in kinds else "")


def _class(page: Page, found: OpaqueClass) -> str:
    at = [page.safe(name) or "the root" for name in found.at[:3]]
    more = found.count - len(at)
    where = f"  at {', '.join(at)}" + (f" and {more} more" if more > 0 else "") if at else ""
    return f"{page.safe(found.class_name)}  {found.count:,}x{where}"


def _plain_values(page: Page, values: Sequence[PlainValue | ContainerValue]) -> None:
    names = [page.safe(found["name"][:TEXT_SHOWN_MAX_CHARS]) or '""' for found in values]
    width = min(max(map(columns_of, names[:VALUES_SHOWN_MAX])), 30)
    lines = []
    for name, found in zip(names, values, strict=True):
        if "value" not in found:
            what = f"{found['type']} of {found['length']:,}"
        else:
            what = value_text(found)
        lines.append(f"{pad(name, width)}  {page.safe(what)}")
    _first_lines(page, lines, most=VALUES_SHOWN_MAX)


def _first_lines(page: Page, lines: list[str], *, most: int = LINES_SHOWN_MAX) -> None:
    """Prints the first few lines, cut, and the number of the others."""
    for line in lines[:most]:
        page.line(f"  {page.clipped(line)}")
    _others(page, len(lines) - most)


def _entries(page: Page, entries: list[str]) -> None:
    """Prints the first few entries, whole, and the number of the others."""
    for entry in entries[:LINES_SHOWN_MAX]:
        page.text([("", entry)])
    _others(page, len(entries) - LINES_SHOWN_MAX)


def _names(page: Page, names: list[str]) -> None:
    """Prints the first few names as running text, and the number of the others."""
    most = LINES_SHOWN_MAX * 3
    page.text([("", ", ".join(page.fitted(page.safe(name), 1) for name in names[:most]))])
    _others(page, len(names) - most)


def _others(page: Page, number: int) -> None:
    if number > 0:
        page.cells([("2", f"and {number:,} more (--json has all)")], 2)
