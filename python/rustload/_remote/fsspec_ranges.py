"""Objects that are read through a file system of fsspec."""

from __future__ import annotations

import re
import warnings
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from rustload._common.waiting import interruptible
from rustload._remote.ranges import ObjectRanges, changed, failed, wrong_length
from rustload._remote.web import answered, repeated
from rustload.errors import RustloadWarning, _error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

__all__ = ["FsspecRanges", "is_http", "is_hub", "open_file", "protocols"]

_VERSION_KEYS = (
    "ETag",
    "etag",
    "blob_id",
    "generation",
    "md5Hash",
    "content_md5",
    "VersionId",
    "Last-Modified",
    "LastModified",
    "last_modified",
    "mtime",
    "created",
)
"""What the file systems call the version of an object. `created` of the memory file system changes when a file is replaced."""

_warned: set[str] = set()
"""The servers that were warned of."""

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def open_file(fs: Any, path: str, name: str, info: dict[str, Any] | None = None) -> FsspecRanges:
    """A file of a file system.

    Args:
        fs: The file system.
        path: The file's path in it; a path in a repository of the Hub is pinned to a commit.
        name: A name for messages.
        info: What the file system said about it; None to ask.

    Raises:
        OSError: It does not exist, or has no known size.
    """
    kind: type[FsspecRanges] = HttpRanges if is_http(fs) else HfRanges if is_hub(fs) else FsspecRanges
    error: BaseException | None = None
    try:
        file = interruptible(lambda: kind(fs, path, name, info))
    except Exception as cause:  # noqa: BLE001  # stores raise anything
        error = failed(name, cause)
    if error is not None:
        raise error
    if file.identity is None:
        _warn_of_no_version(name)
    return file


def _warn_of_no_version(name: str) -> None:
    """Warns, once for each server, of objects that cannot be told from what replaces them."""
    server = "/".join(name.split("/")[:3])
    if server not in _warned:
        _warned.add(server)
        text = f"{server} states no version (such as an ETag): an object replaced by one of its size is not noticed"
        warnings.warn(RustloadWarning(text), stacklevel=2)


def protocols(fs: Any) -> tuple[str, ...]:
    """The schemes of a file system."""
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def is_http(fs: Any) -> bool:
    """Whether it is fsspec's file system for web servers."""
    return "http" in protocols(fs) and hasattr(fs, "set_session")


def is_hub(fs: Any) -> bool:
    """Whether it is the file system of huggingface_hub."""
    return "hf" in protocols(fs) and hasattr(fs, "resolve_path")


class FsspecRanges(ObjectRanges):
    """A file of any file system of fsspec."""

    __slots__ = ("_fs", "_path", "_version")

    def __init__(self, fs: Any, path: str, name: str, info: dict[str, Any] | None = None) -> None:
        """Asks the file system for the size and the version, unless `info` has them.

        Raises:
            OSError: The size is unknown.
        """
        self._fs, self._path, self.name, self.home = fs, path, name, None
        info = self._info() if info is None else info
        size = info.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise _error("RemoteSize", f"{name}: the store does not say how long it is")
        self.size = size
        self._version = _version(info)
        # The name lacks the query, which may choose the object, and is kept on the disk by `resume=True`, so it has no secrets.
        self.identity = f"{name} {size} {'='.join(self._version)} {_digest(path)}" if self._version else None

    def _info(self) -> dict[str, Any]:
        return dict(self._fs.info(self._path))

    def _fetch(self, ranges: list[tuple[int, int]]) -> list[Any]:
        if len(ranges) == 1:
            (start, length) = ranges[0]
            return [self._fs.cat_file(self._path, start=start, end=start + length)]
        starts = [start for start, _ in ranges]
        ends = [start + length for start, length in ranges]
        return list(self._fs.cat_ranges([self._path] * len(ranges), starts, ends, on_error="raise"))

    def _is_same(self) -> bool:
        # Otherwise the answer may be that of an earlier listing.
        self._fs.invalidate_cache(self._path)
        info = self._info()
        if info.get("size") != self.size or self._version is None:
            return info.get("size") == self.size
        # The answer may have other keys than the listing of the folder.
        key, version = self._version
        return info.get(key) is None or _text(info[key]) == version


class HfRanges(FsspecRanges):
    """A file of the Hugging Face Hub. In a repository, its path has the commit, whose files never change."""

    __slots__ = ("_file",)

    def __init__(self, fs: Any, path: str, name: str, info: dict[str, Any] | None = None) -> None:
        """As for other files."""
        super().__init__(fs, path, name, info)
        if self._is_pinned():
            self.identity = name
        self._file = fs.open(path, "rb", cache_type="none")

    def _fetch(self, ranges: list[tuple[int, int]]) -> list[Any]:
        return [self._file._fetch_range(start, start + length) for start, length in ranges]

    def _is_pinned(self) -> bool:
        return "@" in self._path and not self._path.startswith("buckets/")

    def _is_same(self) -> bool:
        return self._is_pinned() or super()._is_same()


class HttpRanges(FsspecRanges):
    """A file of a web server. Every answer is checked: its status, range, length and version."""

    __slots__ = ()

    def _info(self) -> dict[str, Any]:
        from fsspec.asyn import sync

        return dict(sync(self._fs.loop, self._describe))

    async def _describe(self) -> dict[str, Any]:
        """The size and the version, as the answer to HEAD says; where a server has no such answer, the head of that to GET."""
        found: dict[str, Any] = {}
        for method in ("HEAD", "GET"):
            try:
                found = await repeated(lambda: self._head(method), is_first=True)  # noqa: B023  # called at once
            except Exception as error:
                if method == "GET" or not hasattr(error, "status"):
                    raise
            if found.get("size") is not None:
                break
        return found

    async def _head(self, method: str) -> dict[str, Any]:
        async with self._answered(method, {}) as answer:
            answer.raise_for_status()
            size = answer.headers.get("Content-Length", "")
            is_plain = answer.headers.get("Content-Encoding", "identity") in ("identity", "")
            versions = {
                key: answer.headers[key] for key in ("ETag", "Last-Modified") if key in answer.headers
            }
            return {"size": int(size) if size.isdecimal() and is_plain else None, **versions}

    def _answered(self, method: str, headers: dict[str, str]) -> AbstractAsyncContextManager[Any]:
        headers = {**headers, "Accept-Encoding": "identity"}
        return answered(self._fs, method, self._path, self.name, headers)

    def _fetch(self, ranges: list[tuple[int, int]]) -> list[Any]:
        import asyncio

        from fsspec.asyn import sync

        async def fetch_all() -> list[Any]:
            requests = (partial(self._get, start, length) for start, length in ranges)
            return list(await asyncio.gather(*map(repeated, requests)))

        return list(sync(self._fs.loop, fetch_all))

    async def _get(self, start: int, length: int) -> bytearray:
        end = start + length - 1
        async with self._answered("GET", {"Range": f"bytes={start}-{end}"}) as answer:
            answer.raise_for_status()
            self._check_version(answer.headers)
            found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != 206 or found is None:
                is_page = answer.headers.get("Content-Type", "").startswith("text/html")
                raise _error(
                    "RemoteRange",
                    f"{self.name}: the server answered a request for a range with status {answer.status}",
                    "it is a page: end the URL of a folder with a slash" if is_page else None,
                )
            if found[3] not in ("*", str(self.size)):
                raise changed(self.name)
            if (int(found[1]), int(found[2])) != (start, end):
                raise wrong_length(self.name, start, length, int(found[2]) + 1 - int(found[1]))
            parts = bytearray()
            async for part in answer.content.iter_chunked(1 << 18):
                parts += part
                if len(parts) > length:
                    break
            return parts

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


def _version(info: Any) -> tuple[str, str] | None:
    """The version in what a file system or a server says about an object, and what it calls that."""
    for key in _VERSION_KEYS:
        if (found := info.get(key)) is not None:
            return key, _text(found)
    return None


def _text(version: Any) -> str:
    """The version as text. Some file systems have times as seconds in listings, and as objects elsewhere."""
    return str(version.timestamp()) if hasattr(version, "timestamp") else str(version)


def _digest(path: str) -> str:
    """A digest of the whole path of an object, without user information."""
    return sha256(re.sub(r"://[^/?#]*@", "://", path).encode("utf-8", "surrogatepass")).hexdigest()
