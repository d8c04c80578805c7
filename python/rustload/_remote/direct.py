"""Ranges of a web server's file by urllib3, each in the thread that asks for it, where the user gave nothing but headers.

aiohttp copies each byte several times in the one thread of its loop, under the lock of the interpreter. urllib3 receives an
answer into its place, so that several arrive at once and at the rate of the link.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rustload._remote.web import REDIRECT_STATUSES, REDIRECTS_MAX, origin, redirected, timeout_seconds
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["AT_ONCE", "Direct", "direct"]

AT_ONCE = 16
"""The most requests of one call that are under way."""

CONNECTIONS_MAX = 64
"""The most connections to a host that are kept."""

_pools: dict[int, Any] = {}
"""The connections of this process: a forked child must not use its parent's."""


class StatusError(Exception):
    """An answer with a status of failure.

    Attributes:
        status: The status.
        headers: The headers of the answer.
    """

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status, self.headers = status, headers


def direct(fs: Any, url: str, name: str) -> Direct | None:
    """A way to ask for ranges of a file without the session of the file system.

    Args:
        fs: fsspec's file system for web servers.
        url: The URL of the file.
        name: A name for messages.

    Returns:
        None if the user gave options other than headers, the server gave cookies, or urllib3 is not installed.
    """
    try:
        import urllib3  # noqa: F401
        from fsspec.implementations.http import HTTPFileSystem, get_client
    except ImportError:
        return None
    first = fs.encode_url(url)
    session = getattr(fs, "_session", None)
    is_plain = (
        type(fs) is HTTPFileSystem
        and fs.get_client is get_client
        and fs.kwargs.keys() <= {"headers"}
        and fs.client_kwargs.keys() <= {"headers"}
        and first.user is None
        and not len(getattr(session, "cookie_jar", ()))
    )
    if not is_plain:
        return None
    return Direct(first, name, {**fs.client_kwargs.get("headers", {}), **fs.kwargs.get("headers", {})})


class Direct:
    """The ranges of a file at a URL."""

    __slots__ = ("_first", "_headers", "_name")

    def __init__(self, first: Any, name: str, headers: Mapping[str, str]) -> None:
        """The URL, a name for messages, and headers for its scheme, host and port alone."""
        self._first, self._name, self._headers = first, name, headers

    def get(self, start: int, length: int, check: Callable[[int, Mapping[str, str]], None]) -> Any:
        """The bytes of a range, or one more where the answer is longer.

        Args:
            start: The offset of the first one.
            length: Their number.
            check: Raises unless status and headers are those of the right answer.

        Raises:
            OSError: There are too many redirects.
            ValueError: A redirect leads from https to a URL without encryption, or to no URL of the web.
        """
        import urllib3

        seconds = timeout_seconds()
        own = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "identity"}
        target = self._first
        for _ in range(REDIRECTS_MAX + 1):
            is_own = origin(target) == origin(self._first)
            answer = _pool().request(
                "GET",
                str(target),
                headers={**self._headers, **own} if is_own else own,
                timeout=urllib3.Timeout(connect=seconds, read=seconds),
                preload_content=False,
                redirect=False,
                retries=False,
            )
            try:
                location = answer.headers.get("Location")
                if answer.status not in REDIRECT_STATUSES or location is None:
                    if answer.status >= 400:
                        raise StatusError(answer.status, answer.headers)
                    check(answer.status, answer.headers)
                    # Mostly two reads: of all bytes, and of none. One that was cut short is an error of the second.
                    parts, left = [], length + 1
                    while left and (part := answer.read(left, decode_content=False)):
                        parts.append(part)
                        left -= len(part)
                    if left:
                        answer.release_conn()
                    return parts[0] if len(parts) == 1 else b"".join(parts)
                target = redirected(self._first, target, location, self._name)
                answer.drain_conn()
                answer.release_conn()
            finally:
                # Without effect on a connection that was released.
                answer.close()
        raise _error("Io", f"{self._name}: the server redirects more than {REDIRECTS_MAX} times")


def _pool() -> Any:
    """The connections of this process."""
    import urllib3

    process = os.getpid()
    if process not in _pools:
        _pools[process] = urllib3.PoolManager(maxsize=CONNECTIONS_MAX)
    return _pools[process]
