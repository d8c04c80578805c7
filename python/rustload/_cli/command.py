"""The command line's arguments and exit codes: one command for each task, and `schema`, which describes their JSON."""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import rustload
from rustload._cli.convert_arguments import add_convert
from rustload._cli.diff_arguments import add_diff
from rustload._cli.exit_codes import BROKEN_PIPE, INTERRUPTED, READ_FAILED, USAGE
from rustload._cli.scan_arguments import add_scan
from rustload._cli.schema import add_schema, print_schema
from rustload._cli.stats_arguments import add_stats
from rustload._cli.view_arguments import add_view
from rustload._common.terminal import print_messages, terminal_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rustload._scan.policy import Policy

__all__ = ["main"]

EPILOG = """\
exit codes:
  0    everything was read
  2    wrong usage
  3    something could not be read (the rest is shown all the same), or the
       output could not be written
"""

COMMANDS = ("info", "view", "diff", "stats", "convert", "scan", "doctor", "schema")


class Parser(argparse.ArgumentParser):
    """A parser that prints errors in the format of all other errors of the command."""

    # Suggestions for a misspelled or missing command.
    hints: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        """Prints the message and exits with code 2."""
        print_messages([f"rustload: error: {message}", *self.hints, f"  see: {self.prog} --help"])
        self.exit(USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        argv: The arguments; None takes those of the process.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    parser.hints = _hints(given)
    if sys.stdout is None:
        return _write_failed("stdout is closed")
    collects = gc.isenabled()
    # A command makes many small objects, few of them in cycles, and ends soon: garbage collection only costs time.
    gc.disable()
    try:
        try:
            code = _run(parser.parse_args(given), parser)
        finally:
            if collects:
                gc.enable()
            # Also after --help and --version, which raise SystemExit.
            sys.stdout.flush()
    except BrokenPipeError:
        _redirect_stdout_to_devnull()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        # Not about an input path: those errors are reported by the subcommand.
        _redirect_stdout_to_devnull()
        return _write_failed((error.strerror or str(error)).lower())
    return code


def _write_failed(why: str) -> int:
    print_messages([f"rustload: error: the output could not be written: {why}"])
    return READ_FAILED


def _redirect_stdout_to_devnull() -> None:
    """Redirects stdout to /dev/null, because Python flushes it again at exit, which would fail."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _hints(given: Sequence[str]) -> Sequence[str]:
    """Suggestions if the first argument is a misspelled command, or a path without a command."""
    from rustload._common.similar import similar

    words = [word for word in given if not word.startswith("-")]
    if not words or words[0] in COMMANDS:
        return ()
    near = similar(words[0], COMMANDS, 1)
    if near:
        return (f"  did you mean: rustload {near[0]}",)
    if not (os.path.lexists(words[0]) or "." in words[0]):
        return ()
    import shlex

    return (f"  did you mean: rustload info {shlex.quote(words[0])}",)


def _run(args: argparse.Namespace, parser: Parser) -> int:
    if args.command == "doctor":
        from rustload._cli import doctor

        return doctor.run(
            args.paths, json=args.json, color=args.color, io=args.io, measure=args.measure, clean=args.clean
        )
    if args.command == "scan":
        from rustload._cli import scan

        return scan.run(args, _policy(args))
    if args.command == "schema":
        return print_schema(args.name)
    if args.command == "convert":
        from rustload._cli import convert

        args.dst = args.dst or args.output
        return convert.run(args)
    if args.command == "diff":
        from rustload._cli import diff

        return diff.run(args)
    if args.command == "view":
        from rustload._cli import view

        return view.run(args)
    if args.command == "stats":
        from rustload._cli import stats

        return stats.run(args)
    if args.hashes and not args.cyclonedx:
        parser.error("--hashes needs --cyclonedx")
    if args.cyclonedx and args.filter is not None:
        parser.error("--cyclonedx takes no --filter: a bill of materials has everything")
    if args.cyclonedx:
        from rustload._cli import cyclonedx

        return cyclonedx.run(args.paths, hashes=args.hashes)
    from rustload._cli import info

    shown = info.View(args.tensors, args.filter, args.depth, args.sort)
    return info.run(args.paths, json=args.json, color=args.color, view=shown)


def _policy(args: argparse.Namespace) -> Policy | None:
    """The policy that the arguments of `scan` state; None without any. Exits with code 2 if it is not valid."""
    if not (args.allow or args.policy or args.fail_on or args.baseline or args.exclude):
        return None
    from rustload._cli.report_error import report_error
    from rustload._scan.policy import Policy

    try:
        policy = Policy.from_file(args.policy) if args.policy else Policy()
        return Policy(
            allow=(*policy.allow, *args.allow),
            fail_on=args.fail_on or policy.fail_on,
            baseline=args.baseline,
            exclude=(*policy.exclude, *args.exclude),
        )
    except (OSError, ValueError) as error:
        report_error(error)
        raise SystemExit(USAGE) from None


def _parser() -> Parser:
    # The formatters get the width here, because they would import `shutil` to find it out, also where no help is printed.
    width = terminal_columns(80) - 2
    formatter = functools.partial(argparse.RawDescriptionHelpFormatter, width=width)
    parser = Parser(
        prog="rustload",
        description="Looks into PyTorch and safetensors checkpoints and converts them without running anything in them.",
        formatter_class=functools.partial(argparse.HelpFormatter, width=width),
    )
    parser.add_argument("--version", action="version", version=f"rustload {rustload.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    info = commands.add_parser(
        "info",
        help="show what a checkpoint holds",
        description="Shows what checkpoints hold: format, sizes, dtypes, and the tree of names with\n"
        "repeated layers folded. Reads metadata only, never the tensors, and imports\n"
        "neither torch nor NumPy.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    info.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        type=_file,
        help="a file, a directory of shards, or an index file; each is shown by itself",
    )
    info.add_argument(
        "--tensors", action="store_true", help="list every tensor, one per line, in place of the tree"
    )
    info.add_argument(
        "--filter",
        metavar="PATTERN",
        help="only tensors whose names match: * stands for any characters, dots too",
    )
    info.add_argument("--depth", metavar="N", type=_depth, help="show at most N levels of the tree")
    info.add_argument(
        "--sort",
        choices=("file", "name", "size"),
        default="file",
        help="the order of tensors and of rows in the tree (the default is file)",
    )
    formats = info.add_mutually_exclusive_group()
    formats.add_argument(
        "--json",
        action="store_true",
        help="print everything as one JSON document (see docs/reference/cli.md)",
    )
    formats.add_argument(
        "--cyclonedx",
        action="store_true",
        help="print a CycloneDX bill of materials with the models (see docs/guides/pipelines.md)",
    )
    info.add_argument(
        "--hashes", action="store_true", help="with --cyclonedx: read the files, and give their SHA-256"
    )
    add_view(commands, formatter, _file)
    diff = add_diff(commands, formatter)
    stats = add_stats(commands, formatter)
    add_convert(commands, formatter)
    scan = add_scan(commands, formatter)
    doctor = _add_doctor(commands, formatter)
    add_schema(commands, formatter)
    for command in (info, diff, stats, scan, doctor):
        command.add_argument(
            "--color",
            choices=("auto", "always", "never"),
            default="auto",
            help="auto (the default) colours terminals, unless NO_COLOR is set",
        )
    return parser


def _depth(text: str) -> int:
    """A number of levels from 1 on."""
    if not (text.isascii() and text.isdigit()) or int(text[:9]) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on, not {text!r}")
    return int(text[:9])


def _file(path: str) -> str:
    """Rejects `-`: only `scan` reads standard input, because the others need a seekable file."""
    if path == "-":
        raise argparse.ArgumentTypeError(
            "- (standard input) works only with rustload scan: pass a file (./- for one of that name)"
        )
    return path


def _add_doctor(
    commands: argparse._SubParsersAction[Parser], formatter: Callable[..., argparse.HelpFormatter]
) -> Parser:
    doctor = commands.add_parser(
        "doctor",
        help="say how a checkpoint would be read here, and why",
        description="Says how the files of checkpoints would be read on this machine, and why: the\n"
        "file system, what is in the page cache, how fast a short probe reads, and what\n"
        "the machine has.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    doctor.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        type=_file,
        help="a file, a directory of shards, or an index file",
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
        "--clean",
        action="store_true",
        help="remove what killed writers have left beside these paths and no process holds",
    )
    doctor.add_argument(
        "--json",
        action="store_true",
        help="print everything as one JSON document (see docs/reference/cli.md)",
    )
    return doctor
