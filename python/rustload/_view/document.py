"""The data of the page: what `rustload info --json` prints, in columns, with the tree of names, the scan and statistics.

A name is a path in a tree of parts, and every property of tensors is a column in the order of that tree, so that 20,000 tensors
take about 300 kB. Texts from the file are printable and clipped; numbers that JavaScript cannot represent are texts.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._common import tree
from rustload._describe.describe import short_text
from rustload._view.palette import colour_of
from rustload.errors import _clipped, _printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rustload._common.statistics import Statistics
    from rustload._describe.describe import Described, DescribedTensor
    from rustload._scan.report import FileReport, ScanReport

__all__ = ["BINS", "SCHEMA", "document", "folded_tree"]

SCHEMA = 1
"""Version of the data; the page that reads it is in the same file."""
BINS = 48
"""The bins of a histogram."""
HEIGHT_MAX = 63
"""The height of the highest bar of a histogram."""
LABEL_CHARS_MAX = 400
"""The most characters of a part of a name."""
TEXT_CHARS_MAX = 2000
"""The most characters of a text, such as a value of the metadata."""
ITEMS_MAX = 2000
"""The most items of a list; the page says how many are left out."""
EXACT_MAX = 1 << 53
"""The largest integer up to which JavaScript's numbers are exact."""
PARAMETER, TIED, REPEATS, STRIDED = 1, 2, 4, 8
"""The flags of a tensor: a parameter; tied; of an earlier name; its strides are not those of C order."""
LEVELS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"
"""The characters for the heights of bars."""


def document(
    described: Described,
    scanned: ScanReport | str | None = None,
    statistics: Mapping[str, Statistics] | None = None,
) -> dict[str, Any]:
    """The data of the page.

    Args:
        described: What `describe` returned.
        scanned: The report of a scan; a text that says why not; None if none was requested.
        statistics: The statistics of tensors by name; None if none were asked for.
    """
    files = [{"name": _text(os.path.basename(path)), "size": _size(path)} for path in described["files"]]
    names = _Names(described)
    return {
        "schema": SCHEMA,
        "rustload": _rustload.__version__,
        "name": _text(os.path.basename(described["path"].rstrip("/")) or described["path"]),
        "format": described["format"],
        "files": files,
        "elements": _number(described["elements"]),
        "nbytes": _number(described["nbytes"]),
        "storage_nbytes": _number(described["storage_nbytes"]),
        "dtypes": described["dtypes"],
        **names.columns(),
        "tied": [[names.numbers[name] for name in group] for group in described["tied"]],
        "values": _items([_value(found) for found in described["values"]]),
        "opaque": _items(
            [
                [_text(found.class_name), found.count, [_text(at) for at in found.at]]
                for found in described["opaque"]
            ]
        ),
        "globals": _items([_text(name) for name in described["globals"]]),
        "metadata": _items([[_text(key), _text(value)] for key, value in described["metadata"].items()]),
        "notes": _items([_text(note) for note in described["notes"]]),
        "scan": _scan(scanned),
        "stats": None if statistics is None else _statistics(names.in_order, statistics),
    }


def folded_tree(described: Described, *, folded: bool = True) -> tree.Node:
    """The tree of names; tensors of several names count once towards the sums."""
    tied = {name for group in described["tied"] for name in group}
    return tree.build(
        (
            (
                entry["name"],
                tree.Leaf(entry["dtype"], tuple(entry["shape"]), entry["nbytes"], entry["name"] in tied),
                0 if entry["repeats"] else entry["nbytes"],
            )
            for entry in described["tensors"]
        ),
        folded=folded,
    )


class _Names:
    """The tree of names in columns, parents before their children, and the tensors in that order.

    Attributes:
        in_order: The entries of the tensors.
        numbers: The number of each tensor by its name.
    """

    def __init__(self, described: Described) -> None:
        entries = {entry["name"]: entry for entry in described["tensors"]}
        self._tied = {name for group in described["tied"] for name in group}
        self._labels: dict[str, int] = {}
        self._folds: dict[str, int] = {}
        # Of each node: the label, the number of children, whether it is a tensor; and its fold: 0 for none.
        self._nodes: list[int] = []
        self._fold: list[int] = []
        self.in_order: list[DescribedTensor] = []
        self.numbers: dict[str, int] = {}
        root = folded_tree(described, folded=False)
        self._roots = len(root.children)
        stack = self._with_folds(root, "")
        while stack:
            node, name, fold = stack.pop()
            label = self._labels.setdefault(node.label, len(self._labels))
            self._nodes += (label, len(node.children) * 2 + (node.leaf is not None))
            self._fold.append(fold)
            if node.leaf is not None:
                self.numbers[name] = len(self.in_order)
                self.in_order.append(entries[name])
            if node.children:
                stack += self._with_folds(node, name + ".")

    def _with_folds(self, parent: tree.Node, prefix: str) -> list[tuple[tree.Node, str, int]]:
        """The children from the last to the first, with their names and folds. A fold is the number of its label."""
        folds: dict[int, int] = {}
        if len(parent.children) > 1:
            for label, members in tree.fold_groups(parent.children):
                number = self._folds.setdefault(label, len(self._folds)) + 1
                folds |= dict.fromkeys(map(id, members), number)
        return [(child, prefix + child.label, folds.get(id(child), 0)) for child in reversed(parent.children)]

    def columns(self) -> dict[str, Any]:
        dtypes: dict[str, int] = {}
        kinds: dict[tuple[Any, ...], int] = {}
        kind_of, flags = [], []
        for entry in self.in_order:
            strides = None if entry["contiguous"] else tuple(entry["strides"])
            key = (
                dtypes.setdefault(entry["dtype"], len(dtypes)),
                tuple(entry["shape"]),
                strides,
                entry["nbytes"],
            )
            kind_of.append(kinds.setdefault(key, len(kinds)))
            flags.append(
                PARAMETER * entry["parameter"]
                + TIED * (entry["name"] in self._tied)
                + REPEATS * entry["repeats"]
                + STRIDED * (strides is not None)
            )
        return {
            "labels": [_text(label, LABEL_CHARS_MAX) for label in self._labels],
            "roots": self._roots,
            "nodes": self._nodes,
            "folds": list(self._folds),
            "fold": _runs(self._fold),
            "dtype_names": list(dtypes),
            "colours": [colour_of(dtype) for dtype in dtypes],
            "kinds": [
                [dtype, _numbers(shape), strides and _numbers(strides), _number(nbytes)]
                for dtype, shape, strides, nbytes in kinds
            ],
            "kind": kind_of,
            "file": _runs([entry["storage"][0] for entry in self.in_order]),
            "storage": _runs([entry["storage"][1] for entry in self.in_order]),
            "offset": _runs([entry["storage_offset"] for entry in self.in_order]),
            "flags": _runs(flags),
        }


def _runs(numbers: Iterable[int]) -> list[int | str]:
    """The differences of neighbours, in runs: difference, length, difference, length, ..."""
    out: list[int | str] = []
    before, last, length = 0, 0, 0
    for number in numbers:
        difference, before = number - before, number
        if length and difference == last:
            length += 1
            continue
        if length:
            out += (_number(last), length)
        last, length = difference, 1
    return [*out, _number(last), length] if length else out


def _number(number: int) -> int | str:
    """The number; as text where JavaScript would round it."""
    return number if -EXACT_MAX <= number <= EXACT_MAX else str(number)


def _numbers(numbers: Iterable[int]) -> list[int | str]:
    return [_number(number) for number in numbers]


def _text(text: str, most: int = TEXT_CHARS_MAX) -> str:
    """A text from a file: printable, without its middle if it is long."""
    return _printable(_clipped(text, most))


def _items(items: list[Any]) -> dict[str, Any]:
    """A list for the page, cut, with the number of all its items."""
    return {"count": len(items), "items": items[:ITEMS_MAX]}


def _size(path: str) -> int | None:
    """The size of a file; None for one that is not on disk."""
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return None


def _value(found: Mapping[str, Any]) -> list[str]:
    """Name, type and text of a value beside the tensors."""
    if "length" in found:
        text = f"{found['length']:,} {'item' if found['length'] == 1 else 'items'}"
    else:
        value = found["value"]
        # A value that JSON cannot represent is a str already.
        text = value if found["type"] != "str" and isinstance(value, str) else short_text(value)
    return [_text(found["name"], LABEL_CHARS_MAX), found["type"], _text(text)]


def _scan(report: ScanReport | str | None) -> dict[str, Any] | None:
    if report is None or isinstance(report, str):
        return None if report is None else {"verdict": "unknown", "error": _text(report), "files": []}
    return {
        "verdict": report.verdict,
        "complete": report.complete,
        "files": [_scanned(file) for file in report.files[:ITEMS_MAX]],
    }


def _scanned(file: FileReport) -> dict[str, Any]:
    findings = [
        {
            "code": found.code,
            "severity": found.severity,
            "where": _text(
                " ".join(
                    part
                    for part in (found.member, "" if found.offset is None else f"byte {found.offset:,}")
                    if part
                )
            ),
            "what": _text(_what(found.module, found.name, found.arguments, found.message)),
            "times": found.times,
        }
        for found in file.findings
    ]
    return {
        "name": _text(os.path.basename(file.path or "bytes")),
        "status": file.status,
        "verdict": file.verdict,
        "complete": file.coverage.complete,
        "findings": _items(findings),
    }


def _what(module: str | None, name: str | None, arguments: str | None, message: str) -> str:
    full = ".".join(part for part in (module, name) if part)
    return message if arguments is None else f"{full}{arguments}: {message.removeprefix(full).lstrip()}"


def _statistics(in_order: Sequence[Mapping[str, Any]], found: Mapping[str, Statistics]) -> dict[str, Any]:
    """The statistics of each tensor: counts, extremes and moments, and the histogram as a text of heights."""
    rows = []
    for entry in in_order:
        one = found[entry["name"]]
        numbers = [_short(number) for number in (one.min, one.max, one.mean, one.std)]
        counts = (one.total, one.nan, one.infinite, one.zeros, one.subnormal)
        bars = "" if one.histogram is None else _bars(one.histogram.counts)
        rows.append([*counts, *numbers, bars])
    return {"sampled": any(one.sampled for one in found.values()), "rows": rows}


def _bars(counts: Sequence[int]) -> str:
    """Heights from 0 to `HEIGHT_MAX`, a character each; a bin that is not empty is at least 1."""
    most = max(counts, default=0) or 1
    return "".join(LEVELS[-(-count * HEIGHT_MAX // most)] for count in counts)


def _short(number: float | None) -> float | int | str | None:
    """A number of six digits; as text where JSON has none."""
    if number is None or isinstance(number, int):
        return None if number is None else _number(number)
    rounded = float(f"{number:.6g}")
    return rounded if abs(rounded) < float("inf") else str(rounded)
