"""The command line: finds the command that is given, and runs it."""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import os
import re
import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

import rustload
from rustload._cli.arguments import add_manifest
from rustload._cli.exit_codes import BROKEN_PIPE, INTERRUPTED, READ_FAILED, USAGE
from rustload._common.terminal import message_line, print_messages, terminal_columns
from rustload._remote.urls import SCHEME, name_of, shown_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_python_format = warnings.formatwarning
_URL = re.compile(f"{SCHEME}://.*", re.DOTALL)
"""A URL in an argument, such as that of `--option=URL`."""

COMMANDS = {
    "info": "show what a checkpoint holds",
    "show": "show numbers of tensors, and other values",
    "view": "write a page that shows a checkpoint",
    "diff": "compare two checkpoints of any formats",
    "stats": "show what the numbers of tensors are like",
    "convert": "write a checkpoint as safetensors",
    "scan": "say what files would do when they are unpickled",
    "manifest": "write the digests of files",
    "verify": "compare files with their digests",
    "doctor": "say how a checkpoint would be read here, and why",
    "schema": "print the JSON schema of a command's --json",
    "completion": "print the completions of bash, zsh or fish",
}
"""The commands, each a module of this package with `add_arguments` and `run`, and what they do."""

OPENING = frozenset({"info", "show", "view", "diff", "stats", "convert", "scan"})
"""Those that open files, and so have `--manifest`, which means what `manifest=` of `rustload.open` does."""


class Parser(argparse.ArgumentParser):
    """A parser that prints errors in the format of all other errors of the command."""

    # Suggestions for a misspelled or missing command.
    hints: Sequence[str] = ()
    # What is parsed; URLs in it may have secrets.
    given: Sequence[str] = ()

    def _print_message(self, message: str, file: Any = None) -> None:
        """Prints the help or the version; argparse would ignore that it cannot be written."""
        print(message, end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Prints the message and exits with code 2."""
        lines = [f"rustload: error: {message}", *self.hints]
        for word in self.given:
            for spelled in (word, repr(word)[1:-1]):
                if url := _URL.search(spelled):
                    lines = [line.replace(url[0], name_of(url[0])) for line in lines]
        print_messages([*lines, f"  see: {self.prog} --help"])
        self.exit(USAGE)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code.

    Args:
        argv: The arguments; None takes those of the process.
    """
    given = sys.argv[1:] if argv is None else list(argv)
    if sys.stdout is None:
        return _write_failed("stdout is closed")
    collects = gc.isenabled()
    format_warning = warnings.formatwarning
    warnings.formatwarning = _format_warning
    # A command makes many small objects, few of them in cycles, and ends soon: garbage collection only costs time.
    gc.disable()
    try:
        try:
            if given[:1] == ["help"] or not given:
                given = [*given[1:2], "--help"]
            args, unknown = parser(given).parse_known_args(given)
            if unknown:
                args.refuse(f"unrecognized arguments: {' '.join(unknown)}{_near(unknown[0], args.options)}")
            with _saying_waits(given):
                code: int = args.run(args)
        finally:
            warnings.formatwarning = format_warning
            if collects:
                gc.enable()
            # Also after --help and --version, which raise SystemExit.
            sys.stdout.flush()
    except BrokenPipeError:
        _redirect_to_devnull(sys.stdout)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        # Not about an input path: those errors are reported by the subcommand.
        _redirect_to_devnull(sys.stdout)
        return _write_failed((error.strerror or str(error)).lower())
    finally:
        _flush_messages()
    return code


def _saying_waits(given: Sequence[str]) -> contextlib.AbstractContextManager[None]:
    """Says on stderr what is waited for, where an argument is a URL: of a store, or of a server that stalls."""
    if not any("://" in one for one in given):
        return contextlib.nullcontext()
    from rustload._common.waiting import saying

    return saying(lambda text: print_messages([f"rustload: {text}"]))


def _format_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as a line, as all messages; those of other packages as Python shows them, with their place in the source."""
    if issubclass(category, rustload.RustloadWarning):
        return message_line(f"rustload: warning: {message}")
    return _python_format(message, category, filename, lineno, line)


def _write_failed(why: str) -> int:
    print_messages([f"rustload: error: the output could not be written: {why}"])
    return READ_FAILED


def _flush_messages() -> None:
    """Flushes stderr, or leaves what cannot be written: from Python 3.14 on, the exit code would be that of this error."""
    try:
        if sys.stderr is not None:
            sys.stderr.flush()
    except (OSError, ValueError):
        _redirect_to_devnull(sys.stderr)


def _redirect_to_devnull(stream: TextIO) -> None:
    """Redirects a stream to /dev/null, because Python flushes it again at exit, which would fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _near(word: str, options: Mapping[str, str]) -> str:
    """The option that was meant, perhaps."""
    from rustload._common.similar import similar

    near = similar(word.partition("=")[0], [one for one in options.values() if one.startswith("--")], 1)
    return f" (did you mean: {near[0]})" if near and word.startswith("-") else ""


def _hints(given: Sequence[str]) -> Sequence[str]:
    """Suggestions if an argument is a file named as an option, or the first one a misspelled command, or a path without one."""
    from rustload._common.similar import similar

    for word in given:
        if word.startswith("-") and os.path.lexists(word):
            return (f"  did you mean the file: {_quoted(f'./{word}')}",)
    words = [word for word in given if not word.startswith("-")]
    if not words or words[0] in COMMANDS:
        return ()
    near = similar(words[0], COMMANDS, 1)
    if near:
        return (f"  did you mean: rustload {near[0]}",)
    if not (os.path.lexists(words[0]) or "." in words[0]):
        return ()
    return (f"  did you mean: rustload info {_quoted(shown_path(words[0]))}",)


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def parser(given: Sequence[str]) -> Parser:
    """The parser, with the arguments of the commands that are given: only their modules are imported."""
    # The formatters get the width here, because they would import `shutil` to find it out, also where no help is printed.
    width = terminal_columns(80) - 2
    formatter = functools.partial(argparse.RawDescriptionHelpFormatter, width=width)
    made = Parser(
        prog="rustload",
        description="Looks into PyTorch and safetensors checkpoints and converts them without running anything in them.",
        epilog="rustload help COMMAND shows the options of a command, and its exit codes.",
        formatter_class=functools.partial(argparse.HelpFormatter, width=width),
    )
    made.given, made.hints = given, _hints(given)
    made.add_argument("-V", "--version", action="version", version=f"rustload {rustload.__version__}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what, formatter_class=formatter)
        if name in given:
            module = importlib.import_module(f"rustload._cli.{name}")
            module.add_arguments(command)
            if name in OPENING:
                add_manifest(command)
            options = {one.dest: (one.option_strings or [str(one.metavar)])[-1] for one in command._actions}
            command.given, command.hints = given, made.hints
            command.set_defaults(run=module.run, refuse=command.error, options=options)
    return made
