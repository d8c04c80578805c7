"""The next step after an error of `convert`, in its own arguments."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from rustload.errors import RustloadError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["advising"]


@contextlib.contextmanager
def advising(*, writing: bool) -> Iterator[None]:
    """Replaces the advice on errors that have a remedy in an argument of `convert`.

    Args:
        writing: Whether the target is being written; else only the source is read.
    """
    try:
        yield
    except (RustloadError, OSError) as error:
        note = _advice(error) or (_advice_on_target(error) if writing else None)
        if note is not None:
            error.__notes__ = [note]
        raise


def _advice(error: BaseException) -> str | None:
    member = getattr(error, "member", None)
    leave_out = f"leave it out with rename={{{member!r}: None}}"
    match getattr(error, "code", None):
        case "NotSafetensors" if member is not None:
            cast = f"cast it with dtype={{{member!r}: 'complex64'}}, or " if "complex" in str(error) else ""
            return cast + leave_out
        case "MetaTensor":
            return f"the file has none of its elements: {leave_out}"
        case "FileChanged":
            return "convert it again once its writer is done"
        case "DuplicateName":
            return "change strip= or rename="
    if isinstance(error, UnsupportedError) and member is not None:
        return leave_out
    return None


def _advice_on_target(error: BaseException) -> str | None:
    match getattr(error, "errno", None):
        case errno.ENOSPC | errno.EDQUOT:
            return 'the whole target is reserved first: write to another disk, or less with dtype="bfloat16" or select='
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "give a dst= in a folder that you may write to"
    return None
