"""The arguments of `rustload scan`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_scan"]

P = TypeVar("P", bound=argparse.ArgumentParser)

EPILOG = """\
exit codes:
  0    all files are inert: nothing but data, all of it looked at
  1    a file is unknown or would execute, and --allow, --policy, --fail-on and
       --baseline do not accept that
  2    wrong usage, or a policy that is not valid
  3    something could not be read, there was nothing to scan, or the output
       could not be written

1 comes before 3: a file that fails counts more than one that could not be
read. Output that could not be written comes first.
"""


def add_scan(commands: argparse._SubParsersAction[P], formatter: Callable[..., argparse.HelpFormatter]) -> P:
    """Adds the command."""
    scan = commands.add_parser(
        "scan",
        help="say what files would do when they are unpickled",
        description="Says what files would do in a reader that runs pickles: inert, unknown, or\n"
        "would execute. Runs nothing, reads no tensors, and imports neither torch nor\n"
        "NumPy.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    add = scan.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a file, a directory of which all files are scanned, or - for standard input",
    )
    add("-q", "--quiet", action="store_true", help="leave out what is inert or holds no pickle")
    add(
        "--allow",
        action="append",
        default=[],
        metavar="MODULE.NAME",
        help="accept this class or function; * stands for any characters; may be repeated",
    )
    add(
        "--policy",
        metavar="FILE",
        help="a TOML file with allow, exclude and fail_on (see docs/reference/scan.md)",
    )
    add(
        "--fail-on",
        choices=("unknown", "would-execute"),
        help="the verdict from which on the exit code is 1 (the default is unknown)",
    )
    add(
        "--baseline",
        metavar="FILE",
        help="an earlier output of --json: what it has does not make the exit code 1",
    )
    add(
        "--exclude",
        action="append",
        default=[],
        metavar="NAME",
        help="leave out files and directories of this name, such as .git, in directories; may be repeated",
    )
    add(
        "--pass-if-empty",
        action="store_true",
        help="exit with 0, not with 3, if there is nothing that a scan looks into",
    )
    formats = scan.add_mutually_exclusive_group()
    formats.add_argument(
        "--json",
        action="store_true",
        help="print everything as one JSON document (see docs/reference/scan.md)",
    )
    formats.add_argument(
        "--sarif",
        action="store_true",
        help="print a SARIF 2.1.0 log for code scanning (see docs/guides/pipelines.md)",
    )
    add("--sarif-file", metavar="FILE", help="write the SARIF log to a file, beside the other output")
    return scan
