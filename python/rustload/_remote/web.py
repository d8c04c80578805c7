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

__all__ = ["answered", "repeated"]

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
            if _origin(target) == _origin(first):
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
            target = _redirected(first, answer.url, location, name)
    raise _error("Io", f"{name}: the server redirects more than {REDIRECTS_MAX} times")


def _own_options(fs: Any, headers: Mapping[str, str]) -> dict[str, Any]:
    """The user's options of a request, with these headers, and the timeouts."""
    options = dict(fs.kwargs)
    options["headers"] = {**options.get("headers", {}), **headers}
    options["allow_redirects"] = False
    if "timeout" not in options and "timeout" not in fs.client_kwargs:
        from aiohttp import ClientTimeout

        seconds = _timeout_seconds()
        options["timeout"] = ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)
    return options


def _timeout_seconds() -> float:
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


def _origin(url: Any) -> tuple[str, str | None, int | None]:
    return url.scheme, url.host, url.port


def _redirected(first: Any, source: Any, location: str, name: str) -> Any:
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
    if _origin(target) == _origin(first) and first.user and not target.user:
        target = target.with_user(first.user).with_password(first.password)
    return target


async def repeated(request: Callable[[], Awaitable[Result]], *, is_first: bool = False) -> Result:
    """The result of a request that changes nothing, which is sent again after a failure that may pass.

    Args:
        request: Sends the request.
        is_first: Whether the server has not answered before: then a host that cannot be reached is an error at once.
    """
    from aiohttp import ServerTimeoutError

    number = 0
    while True:
        try:
            return await request()
        except Exception as error:
            if isinstance(error, ServerTimeoutError):
                number = max(number, len(RETRY_SECONDS) - 1)  # it took long already: once more
            seconds = _seconds_before_retry(error, number, is_first=is_first)
            if seconds is None:
                raise
        await asyncio.sleep(seconds)
        number += 1


def _seconds_before_retry(error: Exception, number: int, *, is_first: bool) -> float | None:
    """How long to wait before a request is sent again for which this error came; None if it is not sent again."""
    import aiohttp

    if number >= len(RETRY_SECONDS):
        return None
    seconds = RETRY_SECONDS[number] * random.uniform(0.5, 1.5)  # no secret
    if isinstance(error, aiohttp.ClientResponseError):
        wanted = _retry_after(error.headers.get("Retry-After", "") if error.headers else "")
        is_retried = error.status in RETRIED_STATUSES and wanted <= RETRY_AFTER_SECONDS_MAX
        return max(seconds, wanted) if is_retried else None
    if isinstance(error, aiohttp.ClientConnectorError) and (
        is_first or isinstance(error, aiohttp.ClientSSLError)
    ):
        return None
    is_cut = isinstance(error, (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError))
    return seconds if is_cut else None


def _retry_after(text: str) -> float:
    """The seconds that a `Retry-After` states, as a number or as a date; 0 if it states neither."""
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return 0.0
