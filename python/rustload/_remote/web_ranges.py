"""Files of web servers. Every answer is checked."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from urllib3 import exceptions as failures

from rustload._common.waiting import in_parallel
from rustload._remote.ranges import (
    ObjectRanges,
    attempt,
    changed,
    identity_of,
    warn_of_no_version,
    wrong_length,
)
from rustload._remote.web import StatusError, repeated
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustload._remote.web import Web

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")
_PLAIN = {"Accept-Encoding": "identity"}


def open_web(web: Web, url: str, name: str) -> HttpRanges:
    """A file of a web server, which has `name` in messages.

    Raises:
        OSError: It does not exist, or has no known size.
    """
    file: HttpRanges = attempt(name, lambda: HttpRanges(web, url, name))
    if file.identity is None:
        warn_of_no_version(name)
    return file


class HttpRanges(ObjectRanges):
    """A file of a web server. Every answer is checked: its status, range, length and version."""

    def __init__(self, web: Web, url: str, name: str) -> None:
        """Asks the server for the size and the version.

        Raises:
            OSError: The size is unknown.
        """
        self._web, self._url, self.name, self.home = web, url, name, None
        size, self._version = self._describe()
        if size is None:
            raise _error("RemoteSize", f"{name}: the store does not say how long it is")
        self.size = size
        self.identity = identity_of(name, size, self._version, url)

    def _describe(self) -> tuple[int | None, tuple[str, str] | None]:
        """The size and the version, as the answer to HEAD says; where a server has no such answer, the head of that to GET."""
        try:
            found = repeated(lambda: self._head("HEAD"), is_first=True)
        except StatusError:
            found = None, None
        # Some servers have no content for HEAD, and say that it has 0 bytes.
        return found if found[0] else repeated(lambda: self._head("GET"), is_first=True)

    def _head(self, method: str) -> tuple[int | None, tuple[str, str] | None]:
        with self._web.answered(method, self._url, self.name, _PLAIN) as answer:
            headers = answer.headers
            size = headers.get("Content-Length", "")
            keys = [key for key in ("ETag", "Last-Modified") if key in headers]
            version = (keys[0], headers[keys[0]]) if keys else None
            is_known = re.fullmatch("[0-9]{1,18}", size) is not None and _is_plain(headers)
            return int(size) if is_known else None, version

    def _fetch(self, ranges: list[tuple[int, int]]) -> list[Any]:
        return in_parallel(lambda one: repeated(lambda: self._get(*one)), ranges)

    def _get(self, start: int, length: int) -> bytes:
        end = start + length - 1
        wanted = {**_PLAIN, "Range": f"bytes={start}-{end}"}
        with self._web.answered("GET", self._url, self.name, wanted) as answer:
            headers = answer.headers
            self._check_version(headers)
            found = _CONTENT_RANGE.fullmatch(headers.get("Content-Range", ""))
            if answer.status != 206 or found is None:
                is_page = headers.get("Content-Type", "").startswith("text/html")
                raise _error(
                    "RemoteRange",
                    f"{self.name}: the server answered a request for a range with status {answer.status}",
                    "it is a page: end the URL of a folder with a slash" if is_page else None,
                )
            if not _is_plain(headers):
                raise _error("RemoteRange", f"{self.name}: the server compressed a range")
            if found[3] not in ("*", str(self.size)):
                raise changed(self.name)
            if (int(found[1]), int(found[2])) != (start, end):
                text = f"{self.name}: bytes {found[1]} to {found[2]} came for {start} to {end}"
                raise _error("RemoteRange", text)
            part = answer.read(length, decode_content=False)
            if len(part) < length and "Content-Length" not in headers and "Transfer-Encoding" not in headers:
                raise failures.ProtocolError("the answer ends with the connection, which broke")
            # At the end of the answer nothing more comes; one that was cut is an error here, if it states its length.
            if more := answer.read(1, decode_content=False):
                raise wrong_length(self.name, start, length, length + len(more))
            return part

    def _check_version(self, headers: Mapping[str, str]) -> None:
        """Checks that an answer is about the object that was opened.

        Raises:
            FormatError: It is about another one, or does not say so any more.
        """
        if self._version is None:
            return
        key, version = self._version
        if key not in headers:
            text = f"{self.name}: the server said {key} when it was opened, and does not now: it may be another object"
            raise _error("FileChanged", text)
        if headers[key] != version:
            raise changed(self.name)

    def _is_same(self) -> bool:
        return True  # every answer was checked


def _is_plain(headers: Mapping[str, str]) -> bool:
    return headers.get("Content-Encoding", "identity") in ("identity", "")
