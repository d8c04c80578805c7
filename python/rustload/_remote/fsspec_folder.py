"""Folders of file systems of fsspec, and what a URL or a path in a file system is: a file, or a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._remote.folder import ObjectFolder, check_plain, joined, names_others, trimmed
from rustload._remote.fsspec_ranges import is_hub, open_file
from rustload._remote.hub import pinned
from rustload._remote.ranges import attempt, failed
from rustload._remote.urls import PACKAGES, name_of, unavailable
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Sequence

Commits = dict[tuple[str, ...], str]


def from_url(url: str, scheme: str, options: dict[str, Any], commits: Commits) -> Any:
    """The file or the folder at a URL; `options` are those of its file system, `commits` is as for `from_path`.

    Raises:
        OSError: It does not exist, or has no known size.
        UnsupportedError: The package for the scheme is not installed.
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
    return from_path(fs, path, name, commits)


def from_path(fs: Any, path: str, name: str | None = None, commits: Commits | None = None) -> Any:
    """The file or the folder at a path of a file system. A file that names others is its folder, with that file chosen.

    Args:
        fs: The file system.
        path: The path in it.
        name: A name for messages; None for the path.
        commits: The commits to which revisions of the Hugging Face Hub are pinned; more may be added.

    Raises:
        OSError: It does not exist, or has no known size.
    """
    name = name_of(fs.unstrip_protocol(path)) if name is None else name
    if is_hub(fs):
        if "/" not in path.strip("/"):
            raise _error("RemoteScheme", f"{name}: no repository of the Hub", "one is hf://ORGANIZATION/NAME")
        path = attempt(name, lambda: pinned(fs, path, {} if commits is None else commits))
        name = f"hf://{path}"
    path = path.rstrip("/")
    is_repository = is_hub(fs) and path.count("/") == 1 + path.startswith(
        ("datasets/", "spaces/", "kernels/")
    )
    info = {"type": "directory"} if is_repository else attempt(name, lambda: dict(fs.info(path)))
    if info.get("type") == "directory":
        return FsspecFolder(fs, path, trimmed(name))
    folder, _, last = path.rpartition("/")
    parent = FsspecFolder(fs, folder, trimmed(name.rpartition("/")[0]))
    if names_others(last):
        return parent.choose((last,))
    file = open_file(fs, path, name, info)
    file.home = parent
    return file


class FsspecFolder(ObjectFolder):
    """A folder of any file system of fsspec."""

    def __init__(self, fs: Any, path: str, name: str) -> None:
        """A folder at a path of a file system, with its name for messages."""
        super().__init__(name)
        self._fs, self._path = fs, path
        self._entries: dict[str, dict[str, Any]] | None = None

    def _listed(self) -> dict[str, dict[str, Any]]:
        """What is in the folder, by name. The store is asked once."""
        if self._entries is None:
            entries = attempt(self.name, self._list)
            found = {str(one["name"]).rstrip("/").rpartition("/")[2]: one for one in entries}
            self._entries = {name: one for name, one in found.items() if name not in ("", ".", "..")}
        return self._entries

    def _list(self) -> list[dict[str, Any]]:
        if not is_hub(self._fs):
            self._fs.invalidate_cache(self._path)
        path = self._path.rstrip("/")
        # Some stores have an object with the folder's own name.
        return [
            one for one in self._fs.ls(path, detail=True) if str(one["name"]).strip("/") != path.strip("/")
        ]

    @property
    def is_listed(self) -> bool:
        """Whether the store was asked."""
        return self._entries is not None

    def names(self) -> list[str]:
        """The names of its files."""
        return [name for name, info in self._listed().items() if info.get("type") != "directory"]

    def folders(self) -> list[str]:
        """The names of its folders."""
        return [name for name, info in self._listed().items() if info.get("type") == "directory"]

    def hub_etags(self) -> dict[str, tuple[int, str]]:
        """The size of each of its files, and the SHA-256 of the content that the Hub states, or git's SHA-1 of a small file."""
        found = {}
        for name in self.names() if is_hub(self._fs) else ():
            info = self._listed()[name]
            etag = (info.get("lfs") or {}).get("sha256") or info.get("blob_id")
            if etag is not None:
                found[name] = (int(info["size"]), str(etag))
        return found

    def sizes(self, names: Sequence[str], /) -> list[int | None]:
        """The sizes, from a listing of the folder; if it cannot be listed, each file is asked for."""
        try:
            listed = self._listed()
        except (FileNotFoundError, PermissionError):  # web servers have no folders
            return self._look_up(names)
        files = [info for info in listed.values() if info.get("type") != "directory"]
        if not files or any(not isinstance(info.get("size"), int) for info in files):
            return self._look_up(names)
        found = [listed.get(name, {"type": "directory"}) for name in names]
        return [None if info.get("type") == "directory" else info["size"] for info in found]

    def open(self, name: str, /) -> Any:
        """A file of it. Those that were listed are not asked for again."""
        opened = self._opened.get(name)
        if opened is None:
            path = f"{self._path}/{check_plain(name)}"
            opened = open_file(self._fs, path, joined(self.name, name), self._info(name))
            self._opened[name] = opened
        return opened

    def _info(self, name: str) -> dict[str, Any] | None:
        """What the listing says of a file; None if there is none, or it has no sizes."""
        info = None if self._entries is None else self._entries.get(name)
        return None if info is None or info.get("size") is None else info

    def _folder(self, name: str) -> ObjectFolder:
        return type(self)(self._fs, f"{self._path}/{name}", joined(self.name, name))
