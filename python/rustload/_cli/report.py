"""Reports errors and warnings on stderr."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Literal, TypedDict

from rustload import _rustload
from rustload._common.json_values import plain
from rustload._common.terminal import print_json, print_messages
from rustload.errors import RustloadWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["Error", "Failed", "Header", "print_document", "report_error", "report_warnings"]


class Header(TypedDict):
    """What every JSON document has.

    Attributes:
        schema: The version of the document: it increases when a key is removed or changes its meaning.
        rustload: The version of rustload.
    """

    schema: Literal[1]
    rustload: str


# "class" is no name of a field.
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


def report_error(error: Exception, reword: Callable[[str], str] | None = None) -> Error:
    """Prints an error with its notes to stderr and returns it as a dict for the JSON document.

    Args:
        error: The error.
        reword: Replaces arguments of functions in the texts by options of the command.
    """
    message, notes = str(error), list(getattr(error, "__notes__", []))
    if isinstance(error, OSError) and error.strerror:
        message = f"{error.filename}: {error.strerror.lower()}" if error.filename else error.strerror.lower()
    if reword is not None:
        message, notes = reword(message), [reword(note) for note in notes]
    print_messages([f"rustload: error: {message}", *(f"  note: {note}" for note in notes)])
    return {
        "class": type(error).__name__,
        "code": getattr(error, "code", None),
        "member": getattr(error, "member", None),
        "offset": getattr(error, "offset", None),
        "message": message,
        "notes": notes,
    }


@contextlib.contextmanager
def report_warnings(reword: Callable[[str], str] = str, path: str = "") -> Iterator[None]:
    """Prints the warnings of a block to stderr, a line each, when the block ends.

    Args:
        reword: Changes the text of a warning.
        path: The checkpoint that they are about, if the command takes several.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RustloadWarning)
        yield
    about = f"{path}: " if path else ""
    print_messages(f"rustload: warning: {about}{reword(str(warning.message))}" for warning in caught)
