"""The command line: `rustload info`.

Data goes to stdout, talk to stderr. Exit codes: 0 all is well, 2 wrong usage, 3 something could not be read, 130 stopped by
Ctrl-C, 141 the reader of stdout went away.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import rustload

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

USAGE, UNREAD, STOPPED, NO_READER = 2, 3, 130, 141

EPILOG = """\
exit codes:
  0    everything was read
  2    wrong usage
  3    something could not be read; the rest is shown all the same
"""


class Parser(argparse.ArgumentParser):
    """A parser whose complaints look like every other error of the command."""

    def error(self, message: str) -> NoReturn:
        """Prints the message and where to read more, and ends with exit code 2."""
        self.exit(USAGE, f"rustload: error: {message}\n  see: {self.prog} --help\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        argv: The arguments; None takes those of the process.
    """
    try:
        code = _run(_parser().parse_args(argv))
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at its end; let it have somewhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    except KeyboardInterrupt:
        return STOPPED
    return code


def _run(args: argparse.Namespace) -> int:
    if args.command == "doctor":
        from rustload._cli import doctor

        return doctor.run(args.paths, json=args.json, color=args.color, io=args.io, measure=args.measure)
    from rustload._cli import info

    return info.run(args.paths, json=args.json, color=args.color, tensors=args.tensors)


def _parser() -> Parser:
    parser = Parser(
        prog="rustload",
        description="Looks into PyTorch and safetensors checkpoints without running anything in them.",
    )
    parser.add_argument("--version", action="version", version=f"rustload {rustload.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    info = commands.add_parser(
        "info",
        help="show what a checkpoint holds",
        description="Shows what checkpoints hold: format, sizes, dtypes, and the tree of names with repeated layers folded.\n"
        "Reads metadata only, never the tensors, and imports neither torch nor NumPy.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    info.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a file, a directory of shards, or an index file; each is shown by itself",
    )
    info.add_argument(
        "--tensors", action="store_true", help="list every tensor, one per line, in place of the tree"
    )
    info.add_argument(
        "--json", action="store_true", help="print everything as one JSON document (see docs/cli.md)"
    )
    info.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (the default) colours terminals, unless NO_COLOR is set",
    )
    _add_doctor(commands)
    return parser


def _add_doctor(commands: argparse._SubParsersAction[Parser]) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="say how a checkpoint would be read here, and why",
        description="Says how the files of checkpoints would be read on this machine, and why: the file system, what is in the\n"
        "page cache, how fast a short probe reads, and what the machine has.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    doctor.add_argument(
        "paths", nargs="+", metavar="PATH", help="a file, a directory of shards, or an index file"
    )
    doctor.add_argument(
        "--io", choices=("auto", "buffered", "direct"), default="auto", help="as in rustload.open"
    )
    doctor.add_argument(
        "--no-measure",
        dest="measure",
        action="store_false",
        help="do not read up to 64 MiB of each of the first 4 files, in each way, to see how fast that is",
    )
    doctor.add_argument(
        "--json", action="store_true", help="print everything as one JSON document (see docs/cli.md)"
    )
    doctor.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="as for info")
