"""`rustload diff`: compares the tensors of two checkpoints."""

from __future__ import annotations

import argparse
import sys
from typing import Annotated, Any, NotRequired, TypedDict

import rustload
from rustload._cli.arguments import REPEATED, SOURCE, add_color, add_json, file, keywords, rename
from rustload._cli.exit_codes import GATE_FAILED, READ_FAILED
from rustload._cli.report import Error, print_document, report_error, report_warnings
from rustload._common.terminal import Page
from rustload._diff.report import DiffReport, show
from rustload.errors import RustloadError

EPILOG = """\
exit codes:
  0    the same tensors: names, dtypes and shapes, and with --data all elements;
       other values that differ are listed
  1    different
  2    wrong usage
  3    something could not be read, or the output could not be written
"""


class Same(TypedDict):
    """What the JSON of a report has beside its fields.

    Attributes:
        same: Whether both have the same names, and no tensor differs.
    """

    same: bool


class Document(TypedDict):
    """What differs between two checkpoints: `report`, or `error` if one could not be read.

    Attributes:
        report: What differs.
        error: Why one could not be read.
    """

    report: NotRequired[Annotated[DiffReport, Same]]
    error: NotRequired[Error]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Compares the tensors of two checkpoints, whatever their formats and however\n"
        "they are divided among files. Reads metadata only, unless --data is given, and\n"
        "imports neither torch nor NumPy."
    )
    parser.epilog = EPILOG
    add = parser.add_argument
    add("a", metavar="A", type=file, help=SOURCE)
    add("b", metavar="B", type=file, help="another one")
    add("--data", action="store_true", help="compare every element, by its bytes")
    add(
        "--atol",
        type=_tolerance,
        default=0.0,
        metavar="X",
        help="elements that differ by at most X are close",
    )
    add(
        "--rtol", type=_tolerance, default=0.0, metavar="X", help="the same, in proportion to the number in B"
    )
    add("--cast", action="store_true", help="ignore different dtypes if elements are equal after a cast")
    add("--dequantize", action="store_true", help="compare quantized tensors as the numbers they stand for")
    add("--select", metavar="P", help="only names that match P; may be repeated", **REPEATED)
    add("--key", metavar="K", help="the key under which the tensors of A are nested")
    add("--strip", metavar="PREFIX", help="remove this prefix from names of A", **REPEATED)
    add("--rename", metavar="OLD=NEW", type=rename, help="rename a tensor or prefix of A", **REPEATED)
    add_json(parser)
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Compares the checkpoints and returns the exit code."""
    from rustload._diff.diff import diff

    document: dict[str, Any] = {}
    code = READ_FAILED
    try:
        with report_warnings(args.options):
            options = keywords(diff, args) | {
                "data": args.data or args.atol > 0 or args.rtol > 0,
                "rename": dict(args.rename) or None,
            }
            report = rustload.diff(args.a, args.b, **options)
    except (RustloadError, OSError, ValueError, TypeError, MemoryError) as error:
        document["error"] = report_error(error, args.options)
    else:
        code = 0 if report.same else GATE_FAILED
        document["report"] = report.to_dict()
    if args.json:
        print_document(document)
    elif code != READ_FAILED:
        page = Page(sys.stdout, args.color)
        show(page, report, data="--data", cast="--cast")
        page.flush()
    return code


def _tolerance(text: str) -> float:
    """A number from 0 on."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"a number from 0 on, not {text!r}")
    return number
