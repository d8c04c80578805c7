"""What the sources have in common: they check what they got, and their errors show no secrets."""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from rustload._common.waiting import interruptible
from rustload._remote.urls import name_of
from rustload.errors import RustloadError, _error

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload._remote.folder import ObjectFolder

__all__ = ["ObjectRanges", "attempt", "changed", "failed", "wrong_length"]


_CODES = ("Io", "RemoteRange", "RemoteScheme", "RemoteSize", "Value")
"""The codes of rustload's own errors here that are not a `RustloadError`."""


class ObjectRanges(ABC):
    """An object in a store, as `rustload.Ranges`.

    Attributes:
        name: Its URL without secrets.
        size: The number of bytes.
        identity: The name and the version; None if the store has no versions.
        home: The folder that it is in; None if that is not known.
    """

    __slots__ = ("home", "identity", "name", "size")

    name: str
    size: int
    identity: str | None
    home: ObjectFolder | None

    def __repr__(self) -> str:
        """The name and the size."""
        return f"<{type(self).__name__} {self.name!r}, {self.size} bytes>"

    def read_ranges(self, ranges: list[tuple[int, int]], /) -> list[Any]:
        """The bytes of each range, which is a pair of offset and length.

        Raises:
            FormatError: The object is another one than at first.
            OSError: It cannot be read.
        """
        found = attempt(self.name, lambda: self._fetch(ranges))
        for (offset, length), part in zip(ranges, found, strict=True):
            if memoryview(part).nbytes != length:
                raise wrong_length(self.name, offset, length, memoryview(part).nbytes)
        return list(found)

    def check_unchanged(self) -> None:
        """Asks the store whether it is still the same version.

        Raises:
            FormatError: It is not.
            OSError: The store cannot be asked.
        """
        if not attempt(self.name, self._is_same):
            raise changed(self.name)

    @abstractmethod
    def _fetch(self, ranges: list[tuple[int, int]]) -> list[Any]:
        """The bytes of each range."""

    @abstractmethod
    def _is_same(self) -> bool:
        """Whether the object is the one that was opened."""


def attempt(name: str, call: Callable[[], Any]) -> Any:
    """The result of `call`; an error of the store is raised outside of the handler, so that it has no context with secrets."""
    try:
        return interruptible(call)
    except Exception as cause:  # noqa: BLE001  # stores raise anything
        error = failed(name, cause)
    raise error


def changed(name: str) -> BaseException:
    """The error for an object that is another one than at first."""
    return _error("FileChanged", f"{name}: the object was replaced after it was opened")


def wrong_length(name: str, offset: int, wanted: int, found: int) -> BaseException:
    """The error for an answer of another length than asked for."""
    return _error("RemoteRange", f"{name}: {found} byte(s) came for {wanted} at {offset}")


def failed(name: str, error: Exception) -> BaseException:
    """The error for an exception of the store. Its text may show a URL with a signature, so only its class is repeated."""
    if isinstance(error, RustloadError) or (
        type(error) in (OSError, ValueError) and getattr(error, "code", None) in _CODES
    ):
        return error
    if isinstance(error, ImportError) and error.name == "obstore":
        return _error("RemoteUnavailable", "obstore is not installed", "pip install obstore")
    status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        made: Any = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name_of(name))
    elif isinstance(error, PermissionError):
        made = PermissionError(errno.EACCES, os.strerror(errno.EACCES), name_of(name))
    else:
        text = f"{type(error).__name__}, status {status}" if isinstance(status, int) else type(error).__name__
        if isinstance(error, TimeoutError):
            text = f"the store did not answer in time ({type(error).__name__})"
        return _error("Io", f"{name}: {text}")
    made.code = "Io"
    return made  # type: ignore[no-any-return]
