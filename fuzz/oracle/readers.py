"""The readers of the standard library: each takes bytes, reads them as users do, and returns the contents of what it opens.

An error of a reader ends its run, as it does for a user. Compressed data and members are read piece by piece, as an unpickler
reads a file: what precedes a wrong checksum counts.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import pickle
import tarfile
import zipfile
import zlib
from typing import TYPE_CHECKING, Any

from fuzz.oracle.watch import CUnpickler, StandIn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Contents = Iterator[bytes]
    Reader = Callable[[bytes], Contents]

PIECE_BYTES = 1 << 16
CONTENT_MAX_BYTES = 1 << 20
"""The bytes of one member that are given back to the readers."""
CONTENTS_MAX = 64
"""The members of one input that are given back."""
PICKLES_MAX = 1000
"""The consecutive pickles that are read."""


class Storage(bytes):
    """The elements of tensors, which the scan does not take for a file of their own, except as an array of NumPy."""


class _CReader(CUnpickler):
    def persistent_load(self, _: Any) -> StandIn:
        return StandIn()


class _PythonReader(pickle._Unpickler):
    def persistent_load(self, _: Any) -> StandIn:
        return StandIn()


def _pickles(unpickler: Any, encoding: str) -> Reader:
    """Consecutive pickles, a new unpickler for each."""

    def read(data: bytes) -> Contents:
        file = io.BytesIO(data)
        _until_end(lambda: unpickler(file, encoding=encoding).load())
        yield from ()

    return read


def _one_unpickler(data: bytes) -> Contents:
    """Consecutive pickles read by one unpickler, which keeps its memo."""
    _until_end(_CReader(io.BytesIO(data)).load)
    yield from ()


def _until_end(load: Callable[[], Any]) -> None:
    """Reads pickles up to the end of the file; fails if there is none."""
    load()
    with contextlib.suppress(EOFError):
        for _ in range(PICKLES_MAX):
            load()


def _tarfile(data: bytes) -> Contents:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for member in archive:
            with contextlib.suppress(Exception):
                file = archive.extractfile(member)
                if file is not None:
                    yield drain(file)


def _zipfile(data: bytes) -> Contents:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {}
        for info in archive.infolist()[:CONTENTS_MAX]:
            with contextlib.suppress(Exception), archive.open(info) as file:
                members[info] = drain(file)
        yield from contents({info: info.filename for info in members}, members)


def contents(names: dict[Any, str], members: dict[Any, bytes]) -> Contents:
    """The contents of the members of an archive; those of storages that a pickle of torch refers to as `Storage`."""
    pickles = b"".join(members[key] for key, name in names.items() if name.lower().endswith("data.pkl"))
    for key, name in names.items():
        stem = name.rpartition("/data/")[2] if "/data/" in name else name.partition("data/")[2]
        yield Storage(members[key]) if stem and stem.encode() in pickles else members[key]


def _decompressed(opened: Callable[[Any], Any]) -> Reader:
    def read(data: bytes) -> Contents:
        out = drain(opened(io.BytesIO(data)))
        if not out:
            raise EOFError
        yield out

    return read


class _ZlibFile(io.RawIOBase):
    """A zlib stream; what follows its end is ignored, as by `zlib.decompressobj`."""

    def __init__(self, file: io.BytesIO) -> None:
        self._stream, self._rest = zlib.decompressobj(), file.read()

    def read(self, size: int = -1) -> bytes:
        out = self._stream.decompress(self._rest, size)
        self._rest = self._stream.unconsumed_tail
        return out


def drain(file: Any) -> bytes:
    """The bytes of a file up to the first error."""
    parts, left = [], CONTENT_MAX_BYTES
    read = getattr(file, "read1", file.read)  # `read` of a buffered file gives nothing if an error follows
    with contextlib.suppress(Exception):
        while left > 0 and (part := read(min(left, PIECE_BYTES))):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


PICKLE_READERS: dict[str, Reader] = {
    "pickle": _pickles(_CReader, "ASCII"),
    "pickle.py": _pickles(_PythonReader, "ASCII"),
    "pickle latin1": _pickles(_CReader, "latin1"),
    "pickle bytes": _pickles(_CReader, "bytes"),
    "one unpickler": _one_unpickler,
}
ARCHIVE_READERS: dict[str, Reader] = {
    "tarfile": _tarfile,
    "zipfile": _zipfile,
    "gzip": _decompressed(lambda file: gzip.GzipFile(fileobj=file)),
    "zlib": _decompressed(_ZlibFile),
    "bz2": _decompressed(bz2.BZ2File),
    "lzma": _decompressed(lzma.LZMAFile),
}
