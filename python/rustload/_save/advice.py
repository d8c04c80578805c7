"""The next step after an error of `convert`, in its own arguments."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from rustload.errors import UnsupportedError, _Note, _pass, _Remedy, _say

if TYPE_CHECKING:
    from collections.abc import Iterator

_FULL = (
    _say("the whole target is reserved first: write to another disk"),
    _pass("dtype", "to write less", value="bfloat16"),
    _pass("select", "to write a part"),
)
_DENIED = (_pass("dst", "in a folder that you may write to"),)
_ON_TARGET = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL) | dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS), _DENIED
)


def leave_out(name: str) -> _Remedy:
    """The remedy that leaves a tensor out."""
    return _pass("rename", "to leave it out", value={name: None})


@contextlib.contextmanager
def advising(*, writing: bool) -> Iterator[None]:
    """Replaces the advice on errors, of reading or of writing, that have a remedy in an argument of `convert`."""
    try:
        yield
    except UnsupportedError as error:
        if error.member is not None:
            remedies = [leave_out(error.member)]
            if error.code == "NotSafetensors" and "complex" in str(error):
                remedies.insert(0, _pass("dtype", "to cast it", value={error.member: "complex64"}))
            error.__notes__ = [_Note(remedies)]
        raise
    except OSError as error:
        if writing and error.errno in _ON_TARGET:
            error.__notes__ = [_Note(_ON_TARGET[error.errno])]
        raise
