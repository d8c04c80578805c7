"""Objects that are read through a store of obstore."""

from __future__ import annotations

from typing import Any

from rustload._remote.ranges import ObjectRanges, failed
from rustload._remote.urls import name_of
from rustload.errors import _make

__all__ = ["ObstoreRanges", "from_store"]


def from_store(store: Any, path: str) -> ObjectRanges:
    """The object at `path` of a store.

    Raises:
        OSError: It does not exist, or cannot be asked for.
        UnsupportedError: obstore is not installed.
    """
    if not isinstance(path, str):
        raise _make(
            "Type", "Type", f"path is the object's path in the store, a str, not a {type(path).__name__}"
        )
    error: BaseException | None = None
    try:
        return ObstoreRanges(store, path)
    except ImportError:
        error = _make("Unsupported", "RemoteUnavailable", "obstore is not installed", "pip install obstore")
    except Exception as cause:  # noqa: BLE001  # stores raise anything
        error = failed(name_of(f"obstore://{path}"), cause)
    raise error


class ObstoreRanges(ObjectRanges):
    """An object in a store of obstore."""

    __slots__ = ("_path", "_store", "_version")

    def __init__(self, store: Any, path: str) -> None:
        """Asks the store for the size and the version."""
        self._store, self._path = store, path
        self.name = name_of(f"{type(store).__name__}://{path}")
        self.size, self._version = self._head()
        self.identity = None  # the path is the same in other stores

    def _head(self) -> tuple[int, str]:
        import obstore

        head = obstore.head(self._store, self._path)
        return int(head["size"]), str(head.get("e_tag") or head.get("last_modified"))

    def _fetch(self, ranges: list[tuple[int, int]]) -> list[Any]:
        import obstore

        starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
        return list(obstore.get_ranges(self._store, self._path, starts=starts, lengths=lengths, coalesce=0))

    def _is_same(self) -> bool:
        return self._head() == (self.size, self._version)
