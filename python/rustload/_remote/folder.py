"""Folders of stores: what the extension opens and scans."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rustload.errors import _error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Self

LOOKUPS_MAX = 10_000
"""The most files that are looked up one by one, where a store does not list folders."""


def trimmed(url: str) -> str:
    """The URL of a folder without slashes at its end; those after the scheme are kept."""
    rest = url.rstrip("/")
    return f"{rest}//" if rest.endswith(":") else rest


def joined(url: str, name: str) -> str:
    """The URL of a file or folder in a folder."""
    return f"{url}{name}" if url.endswith("/") else f"{url}/{name}"


def names_others(name: str) -> bool:
    """Whether a file names other files of its folder, or is named by one: an index, and the files of a distributed checkpoint."""
    is_index = name.endswith(".json") and ".index." in name
    return is_index or name.endswith((".metadata", ".distcp"))


def check_plain(name: str) -> str:
    """The name, if it is that of a file in a folder and of nothing else. The core checks this too.

    Raises:
        FormatError: It is not.
    """
    if name in ("", ".", "..") or any(char in name for char in "/\\\0"):
        raise _error("IndexFormat", f"file name {name!r} is not a plain name in its folder")
    return name


class ObjectFolder(ABC):
    """A folder in a store.

    Attributes:
        name: Its URL without secrets.
        chosen: The files of it that the user named: an index, or shards; empty for the folder itself.
    """

    def __init__(self, name: str) -> None:
        """A folder of that name, of which no file was named by the user."""
        self.name = name
        self.chosen: tuple[str, ...] = ()
        self._folders: dict[str, ObjectFolder] = {}
        self._opened: dict[str, Any] = {}

    def __repr__(self) -> str:
        """The name."""
        return f"<{type(self).__name__} {self.name!r}>"

    @property
    @abstractmethod
    def is_listed(self) -> bool:
        """Whether the names of its files are known, so that asking for them costs no request."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of the files in it."""

    @abstractmethod
    def sizes(self, names: Sequence[str], /) -> list[int | None]:
        """The size of each of these files; None for one that does not exist."""

    @abstractmethod
    def open(self, name: str, /) -> Any:
        """A file of it, as `rustload.Ranges`.

        Raises:
            OSError: It does not exist, or cannot be read.
        """

    def _look_up(self, names: Sequence[str]) -> list[int | None]:
        """The sizes, for which each file is asked."""
        from rustload._common.waiting import in_parallel

        if len(names) > LOOKUPS_MAX:
            text = (
                f"{self.name}: {len(names)} files would be looked up one by one, which is over {LOOKUPS_MAX}"
            )
            raise _error("Value", text)

        def size(name: str) -> int | None:
            try:
                return int(self.open(name).size)
            except FileNotFoundError:
                return None

        return in_parallel(size, names)

    def choose(self, names: Sequence[str]) -> Self:
        """The same folder, with what is known of it, of which these files are named."""
        import copy

        chosen = copy.copy(self)
        chosen.chosen = tuple(names)
        return chosen

    def of_file(self, name: str, file: Any) -> Self:
        """The same folder, of which this file is named. It is read as it was opened: its own URL may have a signature."""
        chosen = self.choose((name,))
        chosen._opened = {**self._opened, name: file}
        return chosen

    @abstractmethod
    def folders(self) -> list[str]:
        """The names of the folders in it."""

    def subfolder(self, name: str, /) -> ObjectFolder:
        """A folder in it, which need not be listed. It is made once, with what it lists."""
        return self._folders.get(name) or self._folders.setdefault(name, self._folder(check_plain(name)))

    @abstractmethod
    def _folder(self, name: str) -> ObjectFolder:
        """A folder of that name in it."""

    def all_folders(self, is_excluded: Callable[[str], bool]) -> tuple[list[ObjectFolder], int]:
        """The folder, and all folders below it but those whose URLs are excluded; their number comes second."""
        excluded = 0
        found: list[ObjectFolder] = []
        waiting: list[ObjectFolder] = [self]
        while waiting:
            folder = waiting.pop()
            found.append(folder)
            if len(found) > LOOKUPS_MAX:
                raise _error("Value", f"{self.name} has more than {LOOKUPS_MAX} folders")
            below = folder.folders()
            names = [name for name in reversed(below) if not is_excluded(joined(folder.name, name))]
            excluded += len(below) - len(names)
            waiting += [folder.subfolder(name) for name in names]
        return found, excluded


class ObjectList(ObjectFolder):
    """Several objects, which may be in different stores, as the files of a folder. What is beside the first one is in it too."""

    is_listed = True

    def __init__(self, objects: Sequence[Any]) -> None:
        """The objects, each a `rustload.Ranges`."""
        super().__init__("URLs")
        self._objects = {str(number): one for number, one in enumerate(objects)}
        self.chosen = tuple(self._objects)
        home = getattr(objects[0], "home", None) if objects else None
        self._home = home if isinstance(home, ObjectFolder) else None

    def names(self) -> list[str]:
        """Numbers."""
        return list(self._objects)

    def sizes(self, names: Sequence[str], /) -> list[int | None]:
        """The sizes."""
        beside = [name for name in names if name not in self._objects]
        found = dict(zip(beside, self._home.sizes(beside), strict=True)) if beside and self._home else {}
        return [self._objects[name].size if name in self._objects else found.get(name) for name in names]

    def open(self, name: str, /) -> Any:
        """The object of that number, or what is beside the first one."""
        if self._home is None or name in self._objects:
            return self._objects[name]
        return self._home.open(name)

    def folders(self) -> list[str]:
        """None."""
        return []

    def _folder(self, name: str) -> ObjectFolder:
        """There is none."""
        raise KeyError(name)


def in_folder(file: Any) -> ObjectFolder:
    """The folder of an object, of which it is named: what a manifest lists are names in a folder."""
    from urllib.parse import unquote

    if file.home is None:
        return ObjectList([file])
    last = file.name.rpartition("/")[2]
    name = unquote(last) if file.name.lower().startswith(("http:", "https:")) else last
    home: ObjectFolder = file.home
    return home.of_file(name, file)
