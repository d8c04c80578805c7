"""`Manifest`: the SHA-256 digests of files, which their bytes are compared with while they are read."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rustload import _rustload
from rustload._common.files import open_regular
from rustload._common.manifest_forms import (
    DIGEST_BYTES,
    IGNORED,
    MANIFEST_BYTES_MAX,
    Listed,
    files_of,
)
from rustload._common.paths import StrPath, walk
from rustload._common.sizes import parse_bytes
from rustload.errors import _error, _pass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PIECE_BYTES = 8 << 20
"""The size of a piece unless the caller says otherwise."""

_BLOCK_BYTES = 1 << 20
_NO_URL = "download it, and pass its path: it is what a store's files are compared with"


class Fault(NamedTuple):
    """A file that is not as the manifest lists it.

    Attributes:
        file: Its name in the manifest.
        what: Whether its bytes differ (the first piece that does is stated), its size differs, or it does not exist.
        piece: The number of the piece, from 0 on; None for `"missing"` and `"size"`.
        offset: The offset of that piece in the file, in bytes; None as above.
        end: The offset behind it. What differs is somewhere between these.
    """

    file: str
    what: Literal["differs", "size", "missing"]
    piece: int | None
    offset: int | None
    end: int | None = None


class Manifest:
    """The digests of files: `rustload.open(path, manifest=...)` reads nothing that does not have them.

    Attributes:
        files: For each file, by its name in the folder, `pieces`: its size and that of its pieces in bytes, or None if only the
            digest of the whole is known; and `digests`: those of its pieces, 32 bytes each, one after another.

    >>> import rustload
    >>> manifest = rustload.Manifest.of("model.safetensors")
    >>> list(manifest.files), manifest.check("model.safetensors")
    (['model.safetensors'], [])
    >>> len(rustload.open("model.safetensors", manifest=manifest))
    4
    """

    __slots__ = ("_core", "files")

    def __init__(
        self, source: StrPath | bytes | Mapping[str, Any], *, signature: Literal["ignore"] | None = None
    ) -> None:
        """Reads a manifest.

        Args:
            source: The path of a file, its content, or its parsed JSON: an in-toto statement of OpenSSF model signing (method
                `files` or `shards`, digests `sha256`), which `of` makes too; or lines as `sha256sum` and `shasum` write them.
                Names in it are those of files in the folder that is opened.
            signature: None refuses a Sigstore bundle (`model.sig`), because rustload verifies no signatures. `"ignore"` takes
                what it lists, once `model_signing` has verified it.

        Raises:
            FormatError: It is none of these, contradicts itself, or lists a name that is not plain (code `ManifestInvalid`).
            OSError: The file cannot be read.
            ValueError: It is a bundle, and `signature` is None; or `signature` has another value.
        """
        if signature not in (None, "ignore"):
            raise _error("Value", f"is None or 'ignore', not {signature!r}", argument="signature")
        given: Any = source
        if isinstance(given, (str, os.PathLike)):
            given = _content(given)
        self._take(files_of(given, is_bundle_allowed=signature is not None))

    def _take(self, files: dict[str, Listed]) -> None:
        self.files = files
        self._core = _rustload.Manifest([(name, *listed) for name, listed in files.items()])

    def __repr__(self) -> str:
        """The number of files."""
        return f"<Manifest of {len(self.files)} files>"

    @classmethod
    def of(cls, path: StrPath, *, piece: int | str = PIECE_BYTES) -> Manifest:
        """Hashes a file, or all files in a folder and below; hidden files of git and empty files are left out.

        Args:
            path: The file or the folder.
            piece: The bytes of a piece, or a size such as `"8MiB"`. Reading any byte of a piece reads and hashes all of it.
                Pieces of more than 8 MiB are read and hashed twice.

        Raises:
            FormatError: The path is that of a pipe or a device.
            OSError: A file or folder cannot be read.
            ValueError: `piece` is not a size, or a file's name is not UTF-8.
        """
        size = parse_bytes(piece, "piece")
        made = cls.__new__(cls)
        files = {}
        # By folders first, as model signing orders paths.
        found = sorted(_files_below(os.fsdecode(path)), key=lambda one: one[0].split("/"))
        for name, _ in found:
            if not name.isascii() and any("\ud800" <= char <= "\udfff" for char in name):
                raise _error("Value", f"a manifest cannot list {name!r}: it is not UTF-8", "Rename the file.")
        for name, one in found:
            with open_regular(one) as file:
                digests = list(_digests(file, size))
                length = file.tell()
            if length:
                files[name] = Listed((length, size), b"".join(digests))
        made._take(files)
        return made

    def to_json(self, name: str = "model") -> str:
        """The manifest as an unsigned statement of OpenSSF model signing, method `shards`.

        Args:
            name: The name of the model in the statement.

        Raises:
            ValueError: The files were not all hashed in pieces of one size, or there are more pieces than a manifest can list.
        """
        text = self._core.to_json(name)
        if len(text) > MANIFEST_BYTES_MAX:
            what = f"the manifest would have more than {MANIFEST_BYTES_MAX} bytes, so nothing could read it"
            raise _error("Value", what, _pass("piece", "with a larger size, which makes fewer digests"))
        return text

    def check(self, path: StrPath) -> list[Fault]:
        """Reads files and compares them with the manifest; stops in each at the first piece that differs.

        Args:
            path: A folder, of which all listed files are compared; or a file that is listed.

        Raises:
            FormatError: The manifest does not list the file (code `ManifestMissing`).
            OSError: A file cannot be read.
        """
        return [fault for fault in self._compared(os.fsdecode(path)).values() if fault]

    def _compared(self, source: Any) -> dict[str, Fault | None]:
        """As `check`, with what is as listed; the source may also be an `ObjectFolder`, or a file of one."""
        if not isinstance(source, (str, bytes, os.PathLike)):
            return self._compared_in_store(source)
        root = os.fsdecode(source)
        if os.path.isdir(root):
            return {name: self._fault(name, os.path.join(root, name)) for name in self.files}
        name = self._listed(os.path.basename(root), root)
        os.stat(root)
        return {name: self._fault(name, root)}

    def _compared_in_store(self, source: Any) -> dict[str, Fault | None]:
        if hasattr(source, "read_ranges"):
            from urllib.parse import unquote

            last = source.name.rpartition("/")[2]
            name = self._listed(unquote(last) if unquote(last) in self.files else last, source.name)
            return {name: self._fault_of(name, source.size, lambda: Ranged(source))}
        names = [self._listed(one, source.name) for one in source.chosen] or self.files
        return {name: self._fault_in(source, name) for name in names}

    def _fault_in(self, folder: Any, name: str) -> Fault | None:
        *folders, last = name.split("/")
        try:
            for one in folders:
                folder = folder.subfolder(one)
            file = folder.open(last)
        except FileNotFoundError:
            return Fault(name, "missing", None, None)
        return self._fault_of(name, file.size, lambda: Ranged(file))

    def _listed(self, name: str, path: str) -> str:
        """The name of a file, which is listed."""
        if name in self.files:
            return name
        text = f"the manifest does not list {name!r}"
        below = next((one for one in self.files if one.endswith(f"/{name}")), None)
        if below is not None:
            text += f": it lists {below!r}, and names are those of files in the folder that is read"
        raise _error("ManifestMissing", text, path=path)

    def unlisted(self, path: StrPath) -> list[str]:
        """The names of files in a folder and below that are not listed; as for `of`, some are left out.

        Raises:
            OSError: A folder cannot be read.
        """
        root = os.fsdecode(path)
        if not os.path.isdir(root):
            return []
        return sorted(
            name for name, one in _files_below(root) if name not in self.files and os.path.getsize(one)
        )

    def _fault(self, name: str, path: str) -> Fault | None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                return self._fault_of(name, status.st_size, lambda: open_regular(path))
        return Fault(name, "missing", None, None)

    def _fault_of(self, name: str, found_size: int, opened: Callable[[], Any]) -> Fault | None:
        listed = self.files[name]
        size, piece = listed.pieces or (found_size, max(1, found_size))
        if size != found_size:
            return Fault(name, "size", None, None)
        with opened() as file:
            found = _digests(file, piece) if size else iter([hashlib.sha256().digest()])
            for number, digest in enumerate(found):
                start = number * DIGEST_BYTES
                if listed.digests[start : start + DIGEST_BYTES] != digest:
                    at = number * piece
                    return Fault(name, "differs", number, at, min(at + piece, size))
        return None


ManifestLike: TypeAlias = Manifest | StrPath | bytes | Mapping[str, Any]


def manifest_of(given: ManifestLike, source: Any) -> Manifest:
    """The manifest for an argument `manifest=`, for what is opened with it: a path, or several.

    Raises:
        ValueError: It is `"hf"`, and the Hub has stated no digests for the files.
        RustloadError: As for `Manifest`, like OSError.
    """
    if isinstance(given, Manifest):
        return given
    if given != "hf":
        return Manifest(given)
    from rustload._common.manifest_hub import folder_files, hub_files

    made = Manifest.__new__(Manifest)
    folder = getattr(source, "home", source)
    if hasattr(folder, "hub_etags"):
        made._take(folder_files(folder))
        return made
    one = isinstance(source, (str, os.PathLike))
    several = isinstance(source, (list, tuple)) and all(
        isinstance(path, (str, os.PathLike)) for path in source
    )
    made._take(hub_files([source] if one else source if several else []))
    return made


def core_of(given: ManifestLike | None, source: Any) -> _rustload.Manifest | None:
    """The extension's manifest for an argument `manifest=`; None for None."""
    return None if given is None else manifest_of(given, source)._core


def file_of(given: ManifestLike | None) -> str | None:
    """The path of the file that a manifest is read from, whether it exists or not; None if that is not known.

    It cannot list itself: where it is in the folder that is read, it is left out.
    """
    if isinstance(given, (str, os.PathLike)) and given != "hf":
        return os.path.realpath(os.fsdecode(given))
    return None


def _content(path: str | os.PathLike[str]) -> bytes:
    if isinstance(path, str) and "://" in path:
        raise _error("Value", "a manifest is a file, not a URL", _NO_URL)
    with open(path, "rb") as file:
        return file.read(MANIFEST_BYTES_MAX + 1)


def _files_below(path: str) -> Iterator[tuple[str, str]]:
    """The names and paths of a file, or of the files in a folder and below; folders behind links are left out."""
    if not os.path.isdir(path):
        yield os.path.basename(path), path
        return
    for folder, folders, files in walk(path):
        folders[:] = [one for one in folders if one not in IGNORED]
        for file in files:
            one = os.path.join(folder, file)
            if file not in IGNORED and os.path.isfile(one):
                yield os.path.relpath(one, path).replace(os.sep, "/"), one


class Ranged(io.RawIOBase):
    """A file in a store, read from its start on."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._at = 0

    def readinto(self, block: Any) -> int:
        count: int = min(len(block), self._source.size - self._at)
        if count:
            (content,) = self._source.read_ranges([(self._at, count)])
            block[:count] = content
            self._at += count
        return count


def _digests(file: Any, piece: int) -> Iterator[bytes]:
    """The digests of the pieces of a file; none for an empty one."""
    most = PIECE_BYTES if isinstance(file, Ranged) else _BLOCK_BYTES  # a request to a store takes long
    block = memoryview(bytearray(min(piece, most)))
    while True:
        digest, left = hashlib.sha256(), piece
        while left and (count := file.readinto(block[: min(left, len(block))])):
            digest.update(block[:count])
            left -= count
        if left == piece:
            return
        yield digest.digest()
        if left:
            return
