"""`rustload stats`: what the numbers of tensors are like, as text or JSON."""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import rustload
from rustload._cli.arguments import REPEATED, SOURCE, add_color, add_json, file, number
from rustload._cli.exit_codes import GATE_FAILED, READ_FAILED
from rustload._cli.report import Failed, print_document, report_error, selected
from rustload._common.statistics import Statistics
from rustload._common.table import ROW_INDENT, TableRow, show_table
from rustload._common.terminal import Page, count
from rustload._remote.urls import shown_path
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

# The columns of a histogram in a row, and the most for names; longer names have a line of their own.
HISTOGRAM_COLUMNS, NAME_COLUMNS_MAX = 20, 48
LEVELS = " ▁▂▃▄▅▆▇█"
ASCII_LEVELS = " .:-=+*%#"
NUMBERS = ("min", "max", "mean", "std")

EPILOG = """\
exit codes:
  0    everything was read, and nothing has what --fail-on names
  1    a tensor has what --fail-on names: nan, inf, or only zeros (zero)
  2    wrong usage
  3    something could not be read (the rest is shown all the same), or the
       output could not be written
"""


class Inspected(TypedDict):
    """What a tensor has beside its statistics.

    Attributes:
        name: Its name.
        dtype: Its dtype.
        shape: Its shape.
        faults: What of `--fail-on` it has.
    """

    name: str
    dtype: str
    shape: list[int]
    faults: Annotated[list[Literal["nan", "inf", "zero"]], {"uniqueItems": True}]


class WithStatistics(TypedDict):
    """A checkpoint.

    Attributes:
        path: As given; a URL without its secrets.
        tensors: The statistics of each tensor: the fields of `rustload.Statistics`, and what it is.
    """

    path: str
    tensors: list[Annotated[Statistics, Inspected]]


class Document(TypedDict):
    """What the numbers of tensors are like.

    Attributes:
        checkpoints: One for each path, in their order.
    """

    checkpoints: list[WithStatistics | Failed]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Reads tensors and shows what their numbers are like: extremes, mean, standard\n"
        "deviation, zeros, NaN and infinities. Reads a few MiB at a time, and imports\n"
        "neither torch nor NumPy."
    )
    parser.epilog = EPILOG
    add = parser.add_argument
    add("paths", nargs="+", metavar="PATH", type=file, help=SOURCE)
    add(
        "--select",
        dest="pattern",
        metavar="P",
        **REPEATED,
        help="only tensors whose names match: * is any characters, dots too, {0..7} a number of these; may be repeated",
    )
    add("--sample", metavar="N", type=number, help="read about N elements of each tensor, not all")
    add(
        "--bins",
        metavar="N",
        type=_bins,
        help="count the numbers in N bins from the smallest to the largest one, too",
    )
    add("--dequantize", action="store_true", help="look at the dequantized numbers of quantized tensors")
    add(
        "--fail-on",
        metavar="WHAT",
        type=_faults,
        default=(),
        help="exit with 1 if a tensor has this: nan, inf, zero (nothing else), or several with commas",
    )
    add_json(parser)
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Shows each path and returns the exit code."""
    documents: list[dict[str, Any]] = []
    code = failed = 0
    page = Page(sys.stdout, args.color)
    for position, given in enumerate(args.paths):
        path = shown_path(given)
        document: dict[str, Any] = {"path": path}
        try:
            with rustload.open(given, dequantize=args.dequantize, manifest=args.manifest) as checkpoint:
                chosen = selected(checkpoint, args.pattern, args.options, path)
                found = chosen.stats(sample=args.sample, bins=args.bins, dequantize=args.dequantize)
                rows = [
                    (name, str(chosen[name].dtype), list(chosen[name].shape), found[name]) for name in found
                ]
        except (RustloadError, OSError, ValueError, MemoryError) as error:
            code = READ_FAILED
            documents.append(document | {"error": report_error(error, args.options)})
            continue
        faults = {name: _faults_of(found[name], args.fail_on) for name in found}
        failed += sum(map(bool, faults.values()))
        tensors = [
            {"name": name, "dtype": dtype, "shape": shape, **found._asdict(), "faults": faults[name]}
            for name, dtype, shape, found in rows
        ]
        documents.append(document | {"tensors": tensors})
        if not args.json:
            if position:
                page.line()
            _show(page, path, rows, faults)
            page.flush()
    if args.json:
        print_document({"checkpoints": documents})
    return GATE_FAILED if failed else code


def _faults_of(found: Statistics, wanted: Sequence[str]) -> list[str]:
    """The faults in `wanted` that a tensor has."""
    has = {"nan": found.nan, "inf": found.infinite, "zero": 0 < found.total == found.zeros}
    return [fault for fault in wanted if has[fault]]


def _show(
    page: Page,
    path: str,
    rows: list[tuple[str, str, list[int], Statistics]],
    faults: dict[str, list[str]],
) -> None:
    page.title(page.safe(path))
    if rows:
        _table(page, rows, faults)
    read = sum(found.total for *_, found in rows)
    sampled = " in samples" if any(found.sampled for *_, found in rows) else ""
    bad = sum(found.finite < found.total for *_, found in rows)
    with_faults = f"; {count(bad, 'tensor')} with NaN or infinities" if bad else ""
    page.text([("", f"{count(len(rows), 'tensor')}, {read:,} numbers read{sampled}{with_faults}")])


def _table(
    page: Page, rows: list[tuple[str, str, list[int], Statistics]], faults: dict[str, list[str]]
) -> None:
    kinds = [f"{dtype}{shape}" for _, dtype, shape, _ in rows]
    of_kinds = max(map(len, kinds))
    numbers = [
        [*(_short(getattr(found, title)) for title in NUMBERS), _percent(found.zeros, found.total)]
        for *_, found in rows
    ]
    titles = [*NUMBERS, "zeros"]
    widths = [max(map(len, column)) for column in zip(titles, *numbers, strict=True)]
    width = of_kinds + sum(2 + one for one in widths)
    drawn = any(found.histogram for *_, found in rows)
    # Beside the numbers if a line has room for it.
    is_beside = drawn and not page.must_split(ROW_INDENT + width + 2 + HISTOGRAM_COLUMNS)
    shown = []
    for kind, cells, (name, _, _, found) in zip(kinds, numbers, rows, strict=True):
        label = page.fitted(page.safe(name) or '""')
        histogram = ("36", _drawn(page, found))
        counts = ((found.nan, "NaN"), (found.infinite, "infinite"), (found.subnormal, "subnormal"))
        notes = [f"{number:,} {what}" for number, what in counts if number]
        if 0 < found.total == found.zeros:
            notes = ["only zeros"]
        is_bad = found.finite < found.total or bool(faults[name])
        more = [("31" if is_bad else "2", ", ".join(notes))] if notes else []
        columns = page.dtype(kind.ljust(of_kinds)) + _aligned(cells, widths)
        if is_beside:
            columns += "  " + page.paint(*histogram)
        elif found.histogram is not None:
            more = [histogram, *more]
        labelled = [("", f"{title} {cell}") for title, cell in zip(titles, cells, strict=True)]
        all_cells = [("36", kind), *labelled, *([histogram] if is_beside else [])]
        shown.append(TableRow(label, columns, all_cells, more))
    show_table(page, shown, widest=NAME_COLUMNS_MAX, head=" " * of_kinds + _aligned(titles, widths))


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Cells at the right of columns of these widths."""
    return "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def _short(number: float | None) -> str:
    """A number with four digits; `-` for none."""
    if number is None:
        return "-"
    return str(number) if isinstance(number, int) and abs(number) < 10**10 else f"{number:.4g}"


def _percent(part: int, whole: int) -> str:
    if not part:
        return "0" if whole else "-"
    return f"{100 * part / whole:.4g}%"


def _drawn(page: Page, found: Statistics) -> str:
    """The histogram as bars in a fixed number of columns, without colour; bins that do not fit are drawn together."""
    if found.histogram is None:
        return " " * HISTOGRAM_COLUMNS
    counts = found.histogram.counts
    columns = min(HISTOGRAM_COLUMNS, len(counts))
    edges = [round(at * len(counts) / columns) for at in range(columns + 1)]
    sums = [sum(counts[low:high]) for low, high in itertools.pairwise(edges)]
    levels = LEVELS if page.times == "×" else ASCII_LEVELS  # noqa: RUF001 - the sign for "times"
    most = max(sums)
    bars = "".join(levels[math.ceil(number / most * (len(levels) - 1))] for number in sums)
    return bars.ljust(HISTOGRAM_COLUMNS)


def _bins(text: str) -> int:
    bins = number(text)
    if bins > 1 << 16:
        raise argparse.ArgumentTypeError(f"at most 65,536 bins, not {text}")
    return bins


def _faults(text: str) -> tuple[str, ...]:
    faults = tuple(text.split(","))
    for fault in faults:
        if fault not in ("nan", "inf", "zero"):
            raise argparse.ArgumentTypeError(f"nan, inf or zero, not {fault!r}")
    return faults
