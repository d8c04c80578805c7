"""Requests to web servers, by urllib3: what the user gave for them, redirects, timeouts and retries."""

from __future__ import annotations

import contextlib
import os
import random
import ssl
import time
from base64 import b64encode
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote_to_bytes, urlencode, urljoin, urlsplit

from urllib3 import BaseHTTPResponse, HTTPHeaderDict, PoolManager
from urllib3 import exceptions as failures
from urllib3.util import parse_url

from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from urllib3.util.url import Url

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

OPTIONS = ("auth", "cookies", "headers", "params", "ssl", "timeout")
"""The options of a user; `client_kwargs` may have them too."""

CONNECTIONS_KEPT = 128
"""Of each host: 16 threads, of which each sends 8 requests at once."""

LEFT_MAX = 64 << 10
"""The most bytes of an answer that are read for nothing, so that its connection can be used again."""

_pools: dict[tuple[int, object], PoolManager] = {}
"""The connections of a process, by how certificates are checked. A forked child has its own."""


class StatusError(Exception):
    """An answer whose status is that of a failure.

    Attributes:
        status: The status.
        headers: The headers of the answer.
    """

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status, self.headers = status, headers


class Web:
    """Sends requests with what a user gave for them, which may be secrets."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Checks the options.

        Raises:
            TypeError: One is of another type.
            ValueError: One is not known.
        """
        own = _mapping(options, "client_kwargs")
        given = {**own, **options}
        given.pop("client_kwargs", None)
        unknown = sorted(given.keys() - set(OPTIONS), key=str)
        if unknown:
            text = (
                f"has {unknown[0]!r}, which is not known for http:// and https://: {', '.join(OPTIONS)} are"
            )
            raise _error(
                "Value", text, "pass fsspec.open(url, ...) in place of the URL", argument="storage_options"
            )
        self._headers = HTTPHeaderDict()
        for one in (own, options):
            for key, value in _mapping(one, "headers").items():
                self._headers[key] = value
        cookies = {**_mapping(own, "cookies"), **_mapping(options, "cookies")}
        if cookies:
            self._headers["Cookie"] = "; ".join(f"{key}={value}" for key, value in cookies.items())
        auth = given.get("auth")
        if auth is not None:
            if not isinstance(auth, tuple) or len(auth) < 2 or not all(isinstance(one, str) for one in auth):
                raise _error("Type", "has an 'auth' that is no user and password", argument="storage_options")
            self._headers["Authorization"] = _basic(f"{auth[0]}:{auth[1]}".encode())
        self._params = {**_mapping(own, "params"), **_mapping(options, "params")}
        self._ssl = given.get("ssl", True)
        if not isinstance(self._ssl, (bool, ssl.SSLContext)):
            raise _error("Type", "has an 'ssl' that is no SSLContext or bool", argument="storage_options")
        self._timeout = given.get("timeout")
        if self._timeout is not None and (
            isinstance(self._timeout, bool)
            or not isinstance(self._timeout, (int, float))
            or not 0 < self._timeout < 1e9
        ):
            raise _error("Type", "has a 'timeout' that is no number of seconds", argument="storage_options")

    @contextlib.contextmanager
    def answered(
        self, method: str, url: str, name: str, headers: Mapping[str, str]
    ) -> Iterator[BaseHTTPResponse]:
        """The answer of a web server, after redirects.

        A redirect is checked before it is followed. Only requests to the scheme, host and port of the URL have what the user gave
        for them: headers, cookies, credentials and parameters.

        Args:
            method: `"HEAD"` or `"GET"`.
            url: The URL.
            name: A name for messages.
            headers: Headers of this request, which hold no secrets.

        Raises:
            OSError: There are too many redirects.
            StatusError: The status is that of a failure.
            ValueError: A redirect leads from https to a URL without encryption, or to no URL of the web.
        """
        first = parse_url(url)
        target = url.partition("#")[0]
        if self._params:
            target += ("&" if "?" in target else "?") + urlencode(self._params)
        seconds = _timeout_seconds() if self._timeout is None else self._timeout
        for _ in range(REDIRECTS_MAX + 1):
            answer = self._pool().request(
                method,
                target,
                headers=self._sent(first, parse_url(target), headers),
                preload_content=False,
                redirect=False,
                retries=False,
                timeout=seconds,
            )
            with _closed(answer):
                location = answer.headers.get("Location")
                if answer.status not in REDIRECT_STATUSES or location is None:
                    if answer.status >= 400:
                        raise StatusError(answer.status, answer.headers)
                    yield answer
                    return
                target = _redirected(target, location, name)
        raise _error("Io", f"{name}: the server redirects more than {REDIRECTS_MAX} times")

    def _sent(self, first: Url, target: Url, headers: Mapping[str, str]) -> HTTPHeaderDict:
        """The headers of a request: those of the user go to the origin of the first URL only."""
        is_own = _origin(target) == _origin(first)
        sent = self._headers.copy() if is_own else HTTPHeaderDict()
        for key, value in headers.items():
            sent[key] = value
        auth = target.auth or (first.auth if is_own else None)
        if auth:
            sent["Authorization"] = _basic(unquote_to_bytes(auth))
        return sent

    def _pool(self) -> PoolManager:
        key = (os.getpid(), self._ssl)
        found = _pools.get(key)
        if found is None:
            context = self._ssl if isinstance(self._ssl, ssl.SSLContext) else ssl.create_default_context()
            if self._ssl is False:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            found = _pools.setdefault(key, PoolManager(maxsize=CONNECTIONS_KEPT, ssl_context=context))
        return found


def _mapping(options: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = options.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise _error("Type", f"has {key!r} that is no mapping", argument="storage_options")
    return found


def _basic(user: bytes) -> str:
    return f"Basic {b64encode(user if b':' in user else user + b':').decode()}"


@contextlib.contextmanager
def _closed(answer: BaseHTTPResponse) -> Iterator[None]:
    """Ends with the connection free for the next request, or closed if much is left to read, or something failed."""
    try:
        yield
        left = getattr(answer, "length_remaining", None)
        if left is not None and left <= LEFT_MAX:
            with contextlib.suppress(failures.HTTPError):
                answer.read(decode_content=False)
    finally:
        answer.close()


def _timeout_seconds() -> float:
    text = os.environ.get(TIMEOUT) or str(TIMEOUT_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0
    if not 0 < seconds < 1e9:
        raise _error("Value", f"{TIMEOUT} is a number of seconds, not {text!r}")
    return seconds


def _origin(url: Url) -> tuple[str | None, str | None, int | None]:
    return url.scheme, url.host, url.port or {"http": 80, "https": 443}.get(url.scheme or "")


def _redirected(source: str, location: str, name: str) -> str:
    """The URL to which a server redirects.

    Raises:
        ValueError: It is not followed.
    """
    # Headers are read as Latin-1; those that are not ASCII are UTF-8 in practice.
    target = urljoin(source, location.encode("latin-1", "replace").decode("utf-8", "replace")).partition("#")[
        0
    ]
    parts = urlsplit(target)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _error("RemoteScheme", f"{name}: the server redirects to what is not a URL of the web")
    if (urlsplit(source).scheme, parts.scheme) == ("https", "http"):
        text = f"{name}: the server redirects to a URL whose scheme, 'http', has no encryption"
        note = "open that URL with remote=('http',) if you trust the network"
        raise _error("RemoteScheme", text, note)
    return target


def repeated(request: Callable[[], Result], *, is_first: bool = False) -> Result:
    """The result of a request that changes nothing, which is sent again after a failure that may pass.

    Args:
        request: Sends the request.
        is_first: Whether the server has not answered before: then a host that cannot be reached is an error at once.
    """
    number = 0
    while True:
        try:
            return request()
        except Exception as error:
            is_refused = isinstance(error, failures.NewConnectionError)
            timed_out = isinstance(error, failures.TimeoutError) and not is_refused
            if timed_out:
                number = max(number, len(RETRY_SECONDS) - 1)  # it took long already: once more, and soon
            seconds = _seconds_before_retry(error, number, is_first=is_first)
            if seconds is None:
                raise
            if timed_out:
                seconds = min(seconds, RETRY_SECONDS[0])
        time.sleep(seconds)
        number += 1


def _seconds_before_retry(error: Exception, number: int, *, is_first: bool) -> float | None:
    """How long to wait before a request is sent again for which this error came; None if it is not sent again."""
    if number >= len(RETRY_SECONDS):
        return None
    seconds = RETRY_SECONDS[number] * random.uniform(0.5, 1.5)  # no secret
    if isinstance(error, StatusError):
        wanted = _retry_after(error.headers.get("Retry-After", ""))
        is_retried = error.status in RETRIED_STATUSES and wanted <= RETRY_AFTER_SECONDS_MAX
        return max(seconds, wanted) if is_retried else None
    if isinstance(error, failures.NewConnectionError):
        return None if is_first else seconds
    return seconds if isinstance(error, (failures.ProtocolError, failures.TimeoutError)) else None


def _retry_after(text: str) -> float:
    """The seconds that a `Retry-After` states, as a number or as a date; 0 if it states neither."""
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - time.time(), 0.0)
    except (ValueError, TypeError, OverflowError):
        return 0.0
