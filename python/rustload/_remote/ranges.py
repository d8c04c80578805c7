"""What the sources have in common: they check what they got, and their errors show no secrets."""

from __future__ import annotations

import errno
import sys
from abc import ABC, abstractmethod

from rustload._remote.urls import name_of
from rustload.errors import RustloadError, RustloadWarning, _error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any

    from rustload._remote.folder import ObjectFolder

_CODES = ("Io", "RemoteRange", "RemoteScheme", "RemoteSize", "Value")
"""The codes of rustload's own errors here that are not a `RustloadError`."""


_CREDENTIALS = "check the credentials, and that they allow to read this object"
_AGAIN = "try again later: it is the store's failure"

_STATUSES: tuple[tuple[Collection[int], str, str], ...] = (
    ((401, 403, 407), "the store refuses access", _CREDENTIALS),
    ((429,), "the store asks for fewer requests", "try again later, or with credentials"),
    (range(400, 500), "the store refuses the request", "check the URL"),
    (range(sys.maxsize), "the store failed", _AGAIN),
)
"""What statuses of answers mean, and what to do; the first that has the status counts."""

_KINDS: tuple[tuple[tuple[str, ...], str, str], ...] = (
    (
        ("Certificate", "SSL"),
        "no secure connection to the store could be made",
        "check the clock and the certificates of this machine, and what its proxy does",
    ),
    (
        ("Connector", "ConnectError", "ConnectionRefused", "EndpointConnection", "NewConnection"),
        "the store cannot be reached",
        "check the name of its host, and the network",
    ),
    (
        ("Timeout",),
        "the store did not answer in time",
        "try again, or set RUSTLOAD_REMOTE_TIMEOUT to more seconds",
    ),
    (("Connection", "Payload", "Disconnected", "Protocol"), "the connection to the store broke", "try again"),
    (("",), "the store failed", _AGAIN),
)
"""What exceptions mean, by words of the names of their classes, which libraries share."""


_warned: set[str] = set()
"""The servers that were warned of."""


class ObjectRanges(ABC):
    """An object in a store, as `rustload.Ranges`.

    Attributes:
        name: Its URL without secrets.
        size: The number of bytes.
        identity: The name and the version; None if the store has no versions.
        home: The folder that it is in; None if that is not known.
    """

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
    from rustload._common.waiting import interruptible

    try:
        return interruptible(call, name)
    except Exception as cause:  # noqa: BLE001  # stores raise anything
        error = failed(name, cause)
    raise error


def identity_of(name: str, size: int, version: tuple[str, str] | None, path: str) -> str | None:
    """What an object is, of this name, size, version and whole path; None without a version.

    The name lacks the query, which may choose the object, and is kept on the disk by `resume=True`, so it has no secrets.
    """
    if version is None:
        return None
    import re
    from hashlib import sha256  # a tenth of the time that `import rustload` takes

    public = re.sub(r"://[^/?#]*@", "://", path)  # without user information
    return f"{name} {size} {'='.join(version)} {sha256(public.encode('utf-8', 'surrogatepass')).hexdigest()}"


def warn_of_no_version(name: str) -> None:
    """Warns, once for each server, of objects that cannot be told from what replaces them."""
    import warnings

    server = "/".join(name.split("/")[:3])
    if server not in _warned:
        _warned.add(server)
        text = f"{server} states no version (such as an ETag): an object replaced by one of its size is not noticed"
        warnings.warn(RustloadWarning(text), stacklevel=2)


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
        return _error("Io", "", "check the URL", errno=errno.ENOENT, path=name_of(name))
    if isinstance(error, PermissionError):
        return _error("Io", "", _CREDENTIALS, errno=errno.EACCES, path=name_of(name))
    text, note = _cause(error, status)
    return _error("Io", f"{name}: {text}", note)


def _cause(error: Exception, status: object) -> tuple[str, str]:
    """What went wrong between this process and the store, and what to do."""
    if isinstance(status, int):
        text, note = next((text, note) for those, text, note in _STATUSES if status in those)
        return f"{text} (status {status})", note
    kinds = " ".join(one.__name__ for one in type(error).__mro__)
    text, note = next((text, note) for words, text, note in _KINDS if any(word in kinds for word in words))
    return f"{text} ({type(error).__name__})", note
