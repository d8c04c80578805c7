"""Requests to web servers, through the session of fsspec's file system: redirects, timeouts and retries.

It imports aiohttp only after fsspec has made its file system, which needs it.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from contextlib import AsyncExitStack, asynccontextmanager
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

__all__ = [
    "REDIRECTS_MAX",
    "REDIRECT_STATUSES",
    "answered",
    "origin",
    "redirected",
    "repeated",
    "repeated_here",
    "timeout_seconds",
]

Result = TypeVar("Result")

TIMEOUT = "RUSTLOAD_REMOTE_TIMEOUT"
"""The environment variable with the seconds without a byte after which a request has failed."""

TIMEOUT_SECONDS = 30.0

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0)
"""The pauses before a request is sent again, give or take a half."""

RETRY_AFTER_SECONDS_MAX = 60.0
"""A server that asks for a longer pause is not asked again."""

RETRIED_STATUSES = (429, 502, 503, 504)

REDIRECT_STATUSES = (301, 302, 303, 307, 308)

REDIRECTS_MAX = 10

CONNECTION_OPTIONS = ("ssl", "server_hostname", "proxy", "proxy_auth", "proxy_headers", "timeout")
"""The options of a request that say how to connect; all others may hold secrets."""


@asynccontextmanager
async def answered(
    fs: Any, method: str, url: str, name: str, headers: Mapping[str, str]
) -> AsyncIterator[Any]:
    """The answer of a web server, after redirects.

    A redirect is checked before it is followed. Only requests to the scheme, host and port of the URL have what the user gave for
    them: headers, cookies, credentials and parameters.

    Args:
        fs: The file system, which has the session and the options of the user.
        method: `"HEAD"` or `"GET"`.
        url: The URL.
        name: A name for messages.
        headers: Headers of this request, which hold no secrets.

    Raises:
        OSError: There are too many redirects.
        ValueError: A redirect leads from https to a URL without encryption, or to no URL of the web.
    """
    session = await fs.set_session()
    first = target = fs.encode_url(url)
    async with AsyncExitStack() as stack:
        elsewhere: Any = None
        for _ in range(REDIRECTS_MAX + 1):
            if origin(target) == origin(first):
                options = _own_options(fs, headers)
                if target is not first:
                    options.pop("params", None)
                answer = await stack.enter_async_context(session.request(method, target, **options))
            else:
                elsewhere = elsewhere or await stack.enter_async_context(_session_without_secrets(session))
                options = {
                    key: value for key, value in _own_options(fs, {}).items() if key in CONNECTION_OPTIONS
                }
                options.update(headers=headers, allow_redirects=False)
                answer = await stack.enter_async_context(elsewhere.request(method, target, **options))
            location = answer.headers.get("Location")
            if answer.status not in REDIRECT_STATUSES or location is None:
                yield answer
                return
            target = redirected(first, answer.url, location, name)
    raise _error("Io", f"{name}: the server redirects more than {REDIRECTS_MAX} times")


def _own_options(fs: Any, headers: Mapping[str, str]) -> dict[str, Any]:
    """The user's options of a request, with these headers, and the timeouts."""
    options = dict(fs.kwargs)
    options["headers"] = {**options.get("headers", {}), **headers}
    options["allow_redirects"] = False
    if "timeout" not in options and "timeout" not in fs.client_kwargs:
        from aiohttp import ClientTimeout

        seconds = timeout_seconds()
        options["timeout"] = ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)
    return options


def timeout_seconds() -> float:
    """The seconds without a byte after which a request has failed.

    Raises:
        ValueError: The environment variable is no such number.
    """
    text = os.environ.get(TIMEOUT) or str(TIMEOUT_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < 1e9:
        raise _error("Value", f"{TIMEOUT} is a number of seconds, not {text!r}")
    return seconds


def _session_without_secrets(session: Any) -> Any:
    """A session for other hosts, through the same connector: it has no headers, cookies and credentials of the user."""
    from aiohttp import ClientSession

    # A session of the user's own class may lack some.
    kept = {
        name: getattr(session, name)
        for name in ("connector", "timeout", "trust_env")
        if hasattr(session, name)
    }
    return ClientSession(**kept, connector_owner=kept.get("connector") is None)


def origin(url: Any) -> tuple[str, str | None, int | None]:
    """The scheme, host and port of a URL, which share secrets."""
    return url.scheme, url.host, url.port


def redirected(first: Any, source: Any, location: str, name: str) -> Any:
    """The URL to which a server redirects; on the host of the first URL, it has the credentials of that.

    Raises:
        ValueError: It is not followed.
    """
    from yarl import URL

    target = source.join(URL(location))
    if target.scheme not in ("http", "https") or not target.host:
        raise _error("RemoteScheme", f"{name}: the server redirects to what is not a URL of the web")
    if (source.scheme, target.scheme) == ("https", "http"):
        text = f"{name}: the server redirects to a URL whose scheme, 'http', has no encryption"
        note = "open that URL with remote=('http',) if you trust the network"
        raise _error("RemoteScheme", text, note)
    if origin(target) == origin(first) and first.user and not target.user:
        target = target.with_user(first.user).with_password(first.password)
    return target


async def repeated(request: Callable[[], Awaitable[Result]], *, is_first: bool = False) -> Result:
    """The result of a request that changes nothing, which is sent again after a failure that may pass.

    Args:
        request: Sends the request.
        is_first: Whether the server has not answered before: then a host that cannot be reached is an error at once.
    """
    pauses = _Pauses(is_first=is_first)
    while True:
        try:
            return await request()
        except Exception as error:
            seconds = pauses.after(error)
            if seconds is None:
                raise
        await asyncio.sleep(seconds)


def repeated_here(request: Callable[[], Result]) -> Result:
    """As `repeated`, for a request that this thread waits for."""
    pauses = _Pauses(is_first=False)
    while True:
        try:
            return request()
        except Exception as error:
            seconds = pauses.after(error)
            if seconds is None:
                raise
        time.sleep(seconds)


class _Pauses:
    """The pauses before one request is sent again."""

    def __init__(self, *, is_first: bool) -> None:
        self._is_first = is_first
        self._number = 0

    def after(self, error: Exception) -> float | None:
        """How long to wait before the request is sent again for which this error came; None if it is not sent again.

        Errors of aiohttp and urllib3 are told by the names of their classes.
        """
        kinds = {one.__name__ for one in type(error).__mro__}
        if kinds & {"ServerTimeoutError", "ReadTimeoutError", "ConnectTimeoutError"}:
            self._number = max(self._number, len(RETRY_SECONDS) - 1)  # it took long already: once more
        if self._number >= len(RETRY_SECONDS):
            return None
        seconds = RETRY_SECONDS[self._number] * random.uniform(0.5, 1.5)  # no secret
        self._number += 1
        status, headers = getattr(error, "status", None), getattr(error, "headers", None)
        if isinstance(status, int):
            wanted = _retry_after(headers.get("Retry-After", "") if headers else "")
            is_retried = status in RETRIED_STATUSES and wanted <= RETRY_AFTER_SECONDS_MAX
            return max(seconds, wanted) if is_retried else None
        is_unreachable = bool(kinds & {"ClientConnectorError", "NewConnectionError"})
        if kinds & {"ClientSSLError", "SSLError"} or (self._is_first and is_unreachable):
            return None
        cut = {"ClientConnectionError", "ClientPayloadError", "ProtocolError", "NewConnectionError"}
        timeouts = {"ReadTimeoutError", "ConnectTimeoutError"}
        return seconds if kinds & (cut | timeouts) else None


def _retry_after(text: str) -> float:
    """The seconds that a `Retry-After` states, as a number or as a date; 0 if it states neither."""
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return 0.0
