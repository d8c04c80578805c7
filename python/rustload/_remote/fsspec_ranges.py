"""Objects that are read through a file system of fsspec."""

from __future__ import annotations

from typing import Any

from rustload._remote.ranges import ObjectRanges, attempt, identity_of, warn_of_no_version
from rustload.errors import _error

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
    kind: type[FsspecRanges] = HfRanges if is_hub(fs) else FsspecRanges
    file: FsspecRanges = attempt(name, lambda: kind(fs, path, name, info))
    if file.identity is None:
        warn_of_no_version(name)
    return file


def protocols(fs: Any) -> tuple[str, ...]:
    """The schemes of a file system."""
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def is_hub(fs: Any) -> bool:
    """Whether it is the file system of huggingface_hub."""
    return "hf" in protocols(fs) and hasattr(fs, "resolve_path")


class FsspecRanges(ObjectRanges):
    """A file of any file system of fsspec."""

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
        self.identity = identity_of(name, size, self._version, path)

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


def _version(info: Any) -> tuple[str, str] | None:
    """The version in what a file system or a server says about an object, and what it calls that."""
    for key in _VERSION_KEYS:
        if (found := info.get(key)) is not None:
            return key, _text(found)
    return None


def _text(version: Any) -> str:
    """The version as text. Some file systems have times as seconds in listings, and as objects elsewhere."""
    return str(version.timestamp()) if hasattr(version, "timestamp") else str(version)
