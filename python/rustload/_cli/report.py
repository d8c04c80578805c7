"""Reports errors and warnings on stderr."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

from rustload._common.terminal import print_messages
from rustload.errors import RustloadWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["report_error", "report_warnings"]


def report_error(error: Exception, reword: Callable[[str], str] | None = None) -> dict[str, Any]:
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
    location = {name: getattr(error, name, None) for name in ("code", "member", "offset")}
    return {"class": type(error).__name__, **location, "message": message, "notes": notes}


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
