"""Objects, and folders of objects, that are read through a store of obstore."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._remote.folder import ObjectFolder, check_plain, names_others
from rustload._remote.ranges import ObjectRanges, attempt
from rustload.errors import _error, _printable

if TYPE_CHECKING:
    from collections.abc import Sequence


def from_store(store: Any, path: str) -> ObjectRanges | ObjectFolder:
    """The object at `path` of a store, or the folder of all objects whose paths begin with it, if it is empty or ends with `/`.

    An object that names others is its folder, with that object chosen.

    Raises:
        OSError: It does not exist, or cannot be asked for.
        UnsupportedError: obstore is not installed.
    """
    if not isinstance(path, str):
        raise _error("Type", f"path is the object's path in the store, a str, not a {type(path).__name__}")
    folder, _, last = path.rpartition("/")
    if not last:
        return ObstoreFolder(store, folder)
    if names_others(last):
        return ObstoreFolder(store, folder).choose((last,))
    found: ObstoreRanges = attempt(_name(store, path), lambda: ObstoreRanges(store, path))
    found.home = ObstoreFolder(store, folder)
    return found


def _name(store: Any, path: str) -> str:
    return _printable(f"{type(store).__name__}://{path}")


class ObstoreRanges(ObjectRanges):
    """An object in a store of obstore."""

    def __init__(self, store: Any, path: str, meta: Any = None) -> None:
        """Asks the store for the size and the version, unless `meta` has them."""
        self._store, self._path, self.name = store, path, _name(store, path)
        self.size, self._version = self._head() if meta is None else _state(meta)
        self.identity = None  # the path is the same in other stores
        self.home = None

    def _head(self) -> tuple[int, str]:
        import obstore

        return _state(obstore.head(self._store, self._path))

    def _fetch(self, ranges: list[tuple[int, int]]) -> list[Any]:
        import obstore

        starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
        return list(obstore.get_ranges(self._store, self._path, starts=starts, lengths=lengths, coalesce=0))

    def _is_same(self) -> bool:
        return self._head() == (self.size, self._version)


def _state(meta: Any) -> tuple[int, str]:
    """The size and the version in what a store says about an object."""
    return int(meta["size"]), str(meta.get("e_tag") or meta.get("last_modified"))


class ObstoreFolder(ObjectFolder):
    """The objects of a store whose paths begin with that of the folder."""

    def __init__(self, store: Any, path: str) -> None:
        """A folder; its path in the store is without a slash at its end."""
        super().__init__(_name(store, path))
        self._store, self._path = store, path
        self._listing: tuple[dict[str, Any], list[str]] | None = None

    def _listed(self) -> tuple[dict[str, Any], list[str]]:
        """The objects in it, by name, and the names of its folders. The store is asked once."""

        def listing() -> Any:
            import obstore

            return obstore.list_with_delimiter(self._store, self._path or None)

        if self._listing is None:
            found = attempt(self.name, listing)
            objects = {one["path"].rpartition("/")[2]: one for one in found["objects"]}
            self._listing = (
                objects,
                [prefix.rstrip("/").rpartition("/")[2] for prefix in found["common_prefixes"]],
            )
        return self._listing

    @property
    def is_listed(self) -> bool:
        """Whether the store was asked."""
        return self._listing is not None

    def names(self) -> list[str]:
        """The names of its objects."""
        return list(self._listed()[0])

    def folders(self) -> list[str]:
        """The names of its folders."""
        return self._listed()[1]

    def sizes(self, names: Sequence[str], /) -> list[int | None]:
        """The sizes."""
        objects = self._listed()[0]
        return [int(objects[name]["size"]) if name in objects else None for name in names]

    def open(self, name: str, /) -> Any:
        """An object of it."""
        meta = None if self._listing is None else self._listing[0].get(name)
        path = self._join(name)
        return attempt(_name(self._store, path), lambda: ObstoreRanges(self._store, path, meta))

    def _folder(self, name: str) -> ObjectFolder:
        return ObstoreFolder(self._store, self._join(name))

    def _join(self, name: str) -> str:
        return f"{self._path}/{check_plain(name)}" if self._path else check_plain(name)
