"""The folder through which the ranks of a machine share what they fetch from a store.

Only this user can enter it. It is removed when a rank is done with it; of ranks that were all killed, the next load removes it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import time
from typing import TYPE_CHECKING

from rustload._common.memory import headroom

try:
    import fcntl
except ImportError:  # Windows
    _HAS_LOCKS = False
else:
    _HAS_LOCKS = True

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "rustload-node-"
_LOCK = "lock"
_WINDOW_MAX_BYTES = 4 << 30
_YOUNG_SECONDS = 60.0
"""A folder that is not older may not have its lock yet."""


class NodeFolder:
    """A folder of this user, which is in use as long as the object exists.

    Attributes:
        path: Where it is.
        window: The bytes that the ranks may keep in it together.
    """

    def __init__(self, path: str) -> None:
        """Enters a folder that a rank of this machine has made.

        Raises:
            OSError: It is not there, or another user can enter it.
        """
        found = os.lstat(path)
        if (
            not stat.S_ISDIR(found.st_mode)
            or found.st_uid != os.geteuid()
            or stat.S_IMODE(found.st_mode) & 0o077
        ):
            raise PermissionError(f"{path} is not a folder of this user alone")
        self.path, self.window = path, _window(os.path.dirname(path))
        self._lock = _opened_lock(path)
        fcntl.flock(self._lock, fcntl.LOCK_SH)

    @classmethod
    def made(cls) -> NodeFolder:
        """A new folder: in memory, or with the temporary files if there is more room.

        Raises:
            OSError: There is no place for it, or the system has no flock(2).
        """
        if not _HAS_LOCKS:
            raise OSError("the system has no flock")
        base = max(("/dev/shm", tempfile.gettempdir()), key=_window)
        for path in _of_killed(base):
            shutil.rmtree(path, ignore_errors=True)
        return cls(tempfile.mkdtemp(prefix=_PREFIX, dir=base))

    def remove(self) -> None:
        """Removes the folder. Ranks that still use it fetch for themselves."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def _window(base: str) -> int:
    """The bytes that may be kept in a folder of `base`: of memory that is left an eighth, and of the file system half."""
    try:
        found = os.statvfs(base)
    except OSError:
        return 0
    free = found.f_bavail * found.f_frsize if os.access(base, os.W_OK | os.X_OK) else 0
    return min(_WINDOW_MAX_BYTES, headroom() // 8, free // 2)


def _opened_lock(folder: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(os.path.join(folder, _LOCK), flags, 0o600)


def _of_killed(base: str) -> Iterator[str]:
    """The folders of this user that no process holds."""
    with os.scandir(base) as entries:
        names = [entry.path for entry in entries if entry.name.startswith(_PREFIX)]
    for path in names:
        with contextlib.suppress(OSError):
            found = os.lstat(path)
            is_old = time.time() - found.st_mtime > _YOUNG_SECONDS
            if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode) or not is_old:
                continue
            lock = _opened_lock(path)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            finally:
                os.close(lock)
