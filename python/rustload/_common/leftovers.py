"""What writers that were killed have left beside their targets: found by name, told by the lock from what is in use, removed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from rustload import _rustload
from rustload._common.files import head_of
from rustload.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind: TypeAlias = Literal["lock", "part", "resume", "publication"]
_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("part", re.compile(r"\.(?P<name>.+?)(?P<tag>\.[0-9a-f]{16})?\.part")),
    ("resume", re.compile(r"\.(?P<name>.+)\.resume")),
    ("lock", re.compile(r"\.(?P<name>.+\.safetensors)\.lock")),
)
_TOKEN = re.compile(rb"[0-9a-f]{16}")
"""What a file named `token` has in a staged folder."""
_STEPS = "publish"
"""The file of a staged folder whose files a writer has begun to move to the target."""
_PLAN = b"rustload resume "
"""How a file named `plan` begins in a folder that is kept to be resumed."""


class Leftover(NamedTuple):
    """A hidden file or folder of a writer.

    Attributes:
        path: Where it is.
        kind: What it is; a publication is a part or resume whose files a writer has begun to move.
        nbytes: Its size, or that of what is in it.
        held: Whether a writer has its target now; None if the file system does not say.
        removed: Whether it was removed.
    """

    path: str
    kind: Kind
    nbytes: int
    held: bool | None
    removed: bool


def leftovers(path: str, *, remove: bool) -> list[Leftover]:
    """What is left in a folder and, of writers of that folder, beside it; or in the folder of a file.

    Args:
        path: The folder or file.
        remove: Whether to remove what no writer holds. What is kept to be resumed is removed, too. A publication is completed
            before, or undone where a file of others has a name that it needs.
    """
    whole = os.path.abspath(path)
    above, name = os.path.split(whole)
    found = list(_in(above, None if not os.path.isdir(whole) else name))
    if os.path.isdir(whole):
        found += _in(whole, None)
    return [_examine(folder, entry, kind, target, remove=remove) for folder, entry, kind, target in found]


def _in(folder: str, only: str | None) -> Iterator[tuple[str, str, Kind, str]]:
    """The leftovers in a folder: folder, entry, kind, and the target's name as it is in hidden names."""
    with contextlib.suppress(OSError):
        for entry in sorted(os.listdir(folder)):
            for kind, pattern in _PATTERNS:
                match, path = pattern.fullmatch(entry), os.path.join(folder, entry)
                if match and only in (None, match["name"]) and _is_ours(path, kind, match):
                    is_publication = os.path.isfile(os.path.join(path, _STEPS))
                    yield folder, entry, "publication" if is_publication else kind, match["name"]


def _is_ours(path: str, kind: Kind, match: re.Match[str]) -> bool:
    """Whether this user's writer can have made it."""
    try:
        # Windows tells no owner by a number.
        if os.path.islink(path) or (hasattr(os, "geteuid") and os.lstat(path).st_uid != os.geteuid()):
            return False
        if kind == "lock":
            return os.path.getsize(path) == 0
        if kind == "part" and not match["tag"]:
            # Other programs have files of such names.
            return _TOKEN.fullmatch(head_of(os.path.join(path, "token"), 20)) is not None
        if kind == "resume":
            return head_of(os.path.join(path, "plan"), len(_PLAN)) == _PLAN
    except (OSError, FormatError):
        return False
    return True


def _examine(folder: str, entry: str, kind: Kind, target: str, *, remove: bool) -> Leftover:
    path, lock = (os.path.join(folder, name) for name in (entry, f".{target}.lock"))
    nbytes = _size(path)
    is_settled = not remove or kind != "publication" or _settled(path)
    with _locked(lock, make=remove) as held:
        removed = remove and held is False and is_settled and _removed(path)
    return Leftover(path, kind, nbytes, held, removed)


def _settled(path: str) -> bool:
    """Completes or undoes a publication; whether that was possible."""
    try:
        _rustload.finish_publication(path)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _locked(lock: str, *, make: bool) -> Iterator[bool | None]:
    """Has the lock of a target meanwhile, as its writers do. Says whether another one has it; None if that cannot be told.

    On Windows, which has no flock(2), it is never told.
    """
    try:
        import fcntl
    except ImportError:
        yield None
        return
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_CREAT if make else 0)
    try:
        descriptor = os.open(lock, flags, 0o666)
    except FileNotFoundError:
        yield False
        return
    except OSError:
        yield None
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield True
    except OSError:
        yield None
    else:
        # The holder before may have removed it, and another writer have a new one.
        is_same = os.path.samestat(os.fstat(descriptor), os.lstat(lock)) if os.path.lexists(lock) else False
        yield False if is_same else None
        if make and is_same:
            with contextlib.suppress(OSError):
                os.unlink(lock)
    finally:
        os.close(descriptor)


def _size(path: str) -> int:
    total = 0
    with contextlib.suppress(OSError):
        total = os.lstat(path).st_size
        for folder, _, names in os.walk(path):
            total += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
    return total


def _removed(path: str) -> bool:
    with contextlib.suppress(OSError):
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    return not os.path.lexists(path)
