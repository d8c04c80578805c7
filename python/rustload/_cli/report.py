"""Reports errors and warnings on stderr."""

from __future__ import annotations

import contextlib
import shlex
import warnings
from typing import TYPE_CHECKING, Literal, TypedDict

from rustload import _rustload
from rustload._common.json_values import plain
from rustload._common.patterns import is_literal, matching, no_match
from rustload._common.terminal import print_json, print_messages
from rustload._remote.urls import ENVIRONMENT
from rustload.errors import RustloadWarning, _for_python, _Note, _Remedy, _sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rustload import Checkpoint, Selection

_NO_OPTIONS: Mapping[str, str] = {}


class Header(TypedDict):
    """What every JSON document has.

    Attributes:
        schema: The version of the document: it increases when a key is removed or changes its meaning.
        rustload: The version of rustload.
    """

    schema: Literal[1]
    rustload: str


# "class" is not a name of a field.
_Class = TypedDict("_Class", {"class": str})


class Error(_Class):
    """Why something could not be read.

    Attributes:
        class: The class of the exception in Python.
        code: The stable code (docs/reference/errors.md); None for an error of the operating system without one.
        member: The member of the archive.
        offset: The byte offset in the member, or in the file.
        message: What is wrong.
        notes: What to try next.
    """

    code: str | None
    member: str | None
    offset: int | None
    message: str
    notes: list[str]


class Failed(TypedDict):
    """A checkpoint that could not be read.

    Attributes:
        path: As given; a URL without its secrets.
        error: Why.
    """

    path: str
    error: Error


def print_document(document: Mapping[str, object]) -> None:
    """Prints the JSON document of a command: the keys of its `Document`."""
    print_json(plain({"schema": 1, "rustload": _rustload.__version__, **document}))


def report_error(error: Exception, options: Mapping[str, str] = _NO_OPTIONS) -> Error:
    """Prints an error with its notes, in the words of the command's options, to stderr; returns it for the JSON document."""
    message = _message(error, options)
    notes = [_note(one, options) for one in getattr(error, "__notes__", [])]
    if isinstance(error, OSError) and error.strerror:
        message = error.strerror.lower()
        if error.filename is not None:
            message = f"{error.filename or repr('')}: {message}"
    print_messages([f"rustload: error: {message}", *(f"  note: {note}" for note in notes)])
    return {
        "class": type(error).__name__,
        "code": getattr(error, "code", None),
        "member": getattr(error, "member", None),
        "offset": getattr(error, "offset", None),
        "message": message,
        "notes": notes,
    }


def selected(
    checkpoint: Checkpoint, patterns: Sequence[str], options: Mapping[str, str], path: str
) -> Checkpoint | Selection:
    """The tensors that match one of the patterns; all without patterns. Patterns without a match are warnings on stderr.

    Args:
        checkpoint: The checkpoint.
        patterns: Names and patterns.
        options: The command's options by the names of arguments.
        path: The path of the checkpoint.

    Raises:
        TensorNotFoundError: A name is that of no tensor, or no tensor matches any pattern.
    """
    if not patterns:
        return checkpoint
    if not any(is_literal(one) or matching(checkpoint, one) for one in patterns):
        raise no_match("pattern", patterns, checkpoint)
    with report_warnings(options, path):
        return checkpoint.select(patterns)


@contextlib.contextmanager
def report_warnings(options: Mapping[str, str], path: str = "") -> Iterator[None]:
    """Prints the warnings of a block to stderr, a line each, when the block ends.

    Args:
        options: The command's options by the names of arguments.
        path: The checkpoint that they are about, if the command takes several.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RustloadWarning)
        yield
    about = f"{path}: " if path else ""
    print_messages(f"rustload: warning: {about}{_message(one.message, options)}" for one in caught)


def _message(problem: Exception | str, options: Mapping[str, str]) -> str:
    """The text of an error or a warning, with the option in place of the argument that it begins with."""
    argument = getattr(problem, "argument", None)
    option = options.get(argument or "")
    return option + str(problem).removeprefix(f"{argument}=") if option else str(problem)


def _note(note: str, options: Mapping[str, str]) -> str:
    """A note in the words of the command line."""
    return _sentence(note.remedies, lambda one: _worded(one, options)) if isinstance(note, _Note) else note


def _worded(remedy: _Remedy, options: Mapping[str, str]) -> str:
    act, name, value, why = remedy
    match act:
        case "call" if name == "scan":
            return f"run rustload scan {why}"
        case "list":
            return "list the names: rustload info"
        case "pass" if name == "remote" and isinstance(value, tuple):
            return f"set {ENVIRONMENT}={','.join(value)} to allow it"
        case "pass" if name in options:
            if isinstance(value, dict):
                value = shlex.quote(",".join(f"{old}={new or ''}" for old, new in value.items()))
            given = f" {value}" if isinstance(value, str) else ""
            return f"{'leave out' if value is False else 'pass'} {options[name]}{given} {why}".rstrip()
        case "pass" | "raise" | "call":
            return f"in Python, {_for_python(remedy)}"
    return name
