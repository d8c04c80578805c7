"""Reports warnings on stderr."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING

from rustload._common.terminal import print_messages
from rustload.errors import RustloadWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["report_warnings"]


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
