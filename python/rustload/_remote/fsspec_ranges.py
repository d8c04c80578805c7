"""Objects that are read through a file system of fsspec."""

from __future__ import annotations

import re
from typing import Any

from rustload._remote.ranges import ObjectRanges, changed, failed, wrong_length
from rustload._remote.urls import PACKAGES, name_of, unavailable
from rustload.errors import _make

__all__ = ["FsspecRanges", "from_file", "from_url"]

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

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


def from_url(url: str, scheme: str, options: dict[str, Any]) -> ObjectRanges:
    """The object at a URL.

    Args:
        url: Its URL.
        scheme: The scheme of it.
        options: What the file system is made with.

    Raises:
        OSError: It does not exist, or has no known size.
        UnsupportedError: The package for the scheme is not installed, or the URL is a folder.
    """
    name = name_of(url)
    error: BaseException | None = None
    try:
        from fsspec.core import url_to_fs

        fs, path = url_to_fs(url, **options)
    except ImportError:
        error = unavailable(scheme)
    except ValueError as cause:
        error = failed(name, cause) if scheme in PACKAGES else unavailable(scheme)
    except Exception as cause:  # noqa: BLE001  # stores raise anything
        error = failed(name, cause)
    if error is not None:
        raise error
    return from_file(fs, path, name)


def from_file(fs: Any, path: str, name: str | None = None) -> ObjectRanges:
    """A file of a file system.

    Args:
        fs: The file system.
        path: The file's path in it.
        name: A name for messages; None for the path.

    Raises:
        OSError: It does not exist, or has no known size.
        UnsupportedError: It is a folder.
    """
    name = name or name_of(fs.unstrip_protocol(path))
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
    kind = HttpRanges if "http" in protocols and hasattr(fs, "set_session") else FsspecRanges
    kind = HfRanges if "hf" in protocols and hasattr(fs, "resolve_path") else kind
    error: BaseException | None = None
    try:
        return kind(fs, path, name)
    except Exception as cause:  # noqa: BLE001  # stores raise anything
        error = failed(name, cause)
    raise error


class FsspecRanges(ObjectRanges):
    """A file of any file system of fsspec."""

    __slots__ = ("_fs", "_path", "_version")

    def __init__(self, fs: Any, path: str, name: str) -> None:
        """Asks the file system for the size and the version.

        Raises:
            OSError: The size is unknown.
            UnsupportedError: It is a folder.
        """
        self._fs, self._path, self.name = fs, path, name
        info = self._info()
        size = info.get("size")
        if info.get("type") == "directory":
            files = [str(one).rpartition("/")[2] for one in fs.ls(path, detail=False)]
            weights = sorted(
                one for one in files if one.endswith((".safetensors", ".bin", ".pt", ".pth", ".ckpt"))
            )
            note = f"open one of its files: {', '.join(weights[:4]) or 'none has the suffix of a checkpoint'}"
            raise _make("Unsupported", "RemoteFolder", f"{name} is a folder", note)
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise _make("Io", "RemoteSize", f"{name}: the store does not say how long it is")
        self.size = size
        self._version = _version(info)
        self.identity = f"{name} {size} {self._version}" if self._version else None

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
        return info.get("size") == self.size and _version(info) == self._version


class HfRanges(FsspecRanges):
    """A file of the Hugging Face Hub, pinned to the commit that its revision is at first."""

    __slots__ = ("_file",)

    def __init__(self, fs: Any, path: str, name: str) -> None:
        """Resolves the revision to a commit."""
        found = fs.resolve_path(path)
        if hasattr(found, "repo_id"):
            from huggingface_hub import HfApi

            api = getattr(fs, "_api", None) or HfApi()
            commit = api.repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision).sha
            prefix = {"dataset": "datasets/", "space": "spaces/"}.get(found.repo_type, "")
            path = f"{prefix}{found.repo_id}@{commit}/{found.path_in_repo}".rstrip("/")
            name = f"hf://{path}"
        super().__init__(fs, path, name)
        self.identity = name
        self._file = fs.open(path, "rb", cache_type="none")

    def _fetch(self, ranges: list[tuple[int, int]]) -> list[Any]:
        return [self._file._fetch_range(start, start + length) for start, length in ranges]

    def _is_same(self) -> bool:
        return "@" in self.name or super()._is_same()


class HttpRanges(FsspecRanges):
    """A file of a web server. Every answer is checked: its status, range, length and version."""

    __slots__ = ()

    def _fetch(self, ranges: list[tuple[int, int]]) -> list[Any]:
        import asyncio

        from fsspec.asyn import sync

        async def fetch_all() -> list[Any]:
            return list(await asyncio.gather(*(self._get(start, length) for start, length in ranges)))

        return list(sync(self._fs.loop, fetch_all))

    async def _get(self, start: int, length: int) -> bytes:
        options = dict(self._fs.kwargs)
        end = start + length - 1
        options["headers"] = {
            **options.get("headers", {}),
            "Range": f"bytes={start}-{end}",
            "Accept-Encoding": "identity",
        }
        session = await self._fs.set_session()
        async with session.get(self._fs.encode_url(self._path), **options) as answer:
            answer.raise_for_status()
            version = _version(answer.headers)
            if self._version is not None and version is not None and version != self._version:
                raise changed(self.name)
            found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", ""))
            if answer.status != 206 or found is None:
                raise _make(
                    "Io",
                    "RemoteRange",
                    f"{self.name}: the server answered a request for a range with status {answer.status}",
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
            return parts  # type: ignore[return-value]

    def _is_same(self) -> bool:
        return True  # every answer was checked


def _version(info: Any) -> str | None:
    """The version in what a file system or a server says about an object."""
    for key in _VERSION_KEYS:
        if (found := info.get(key)) is not None:
            return f"{key.lower()}={found}"
    return None
