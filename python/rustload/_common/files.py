"""Open files as arguments: whether an object is one, the path that opens the same file again, and its name for messages."""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
import sys
from typing import Any, Protocol, TypeAlias

from rustload._common.memory import headroom
from rustload._common.sizes import format_bytes
from rustload.errors import _error

_CHUNK_BYTES = 1 << 20

_DECOMPRESSORS = {
    ("gzip", "GzipFile"),
    ("bz2", "BZ2File"),
    ("lzma", "LZMAFile"),
    ("zipfile", "ZipExtFile"),
}
"""Classes that start over from the first byte to seek backwards."""


class BinaryFile(Protocol):
    """A binary file that can seek: what `open(path, "rb")` returns, `zipfile`'s members, fsspec's files."""

    def seek(self, offset: int, whence: int = 0, /) -> Any:
        """Moves the position; `whence` 2 counts from the end."""

    def tell(self) -> int:
        """Returns the position."""

    def read(self, size: int = -1, /) -> bytes:
        """Returns up to `size` bytes from the position on; an empty result is the end."""


class Ranges(Protocol):
    """An object whose bytes are read by ranges, several in one call: an object in a store, a file behind a cache.

    It may be called from several threads at once. It may also have:

    - `name: str`, which messages show
    - `identity: str | None`, which other processes get for the same version of the same object and for nothing else
    - `check_unchanged()`, which raises if the object is another one than at first. It is called after each batch of reads;
      without it, `size` is read again.
    """

    @property
    def size(self) -> int:
        """The number of bytes. It does not change as long as the object is used."""

    def read_ranges(self, ranges: list[tuple[int, int]], /) -> Any:
        """Returns the bytes of each range, which is a pair of offset and length, as an iterable of buffers."""


FileObject: TypeAlias = BinaryFile | Ranges


def file_name(file: Any) -> str:
    """A name for messages: the object's `name` if that is a string, else its class."""
    name = getattr(file, "name", None)
    return name if isinstance(name, str) and name else f"<{type(file).__name__}>"


def source_of(file: Any, *, from_start: bool) -> str | bytes | FileObject:
    """How an open file is read: by a path that opens it again, as its content in memory, or by position through the object.

    A file that cannot seek, and one for which seeking backwards means decompressing again, is read into memory; with `from_start`
    from its first byte if it can seek.

    Raises:
        LimitError: As for `read_to_end`.
        TypeError: The file is open in text mode.
    """
    path = local_path(file)
    if path is not None:
        return path
    if hasattr(file, "read_ranges"):
        return file  # type: ignore[no-any-return]
    try:
        start = file.tell()
        file.seek(start)
    except (OSError, AttributeError):
        return read_to_end(file)
    if start < 0 or _is_device(file):
        return read_to_end(file)
    if any((kind.__module__, kind.__name__) in _DECOMPRESSORS for kind in type(file).__mro__):
        file.seek(0 if from_start else start)
        return read_to_end(file)
    return file  # type: ignore[no-any-return]


def _is_device(file: Any) -> bool:
    """Whether an open file is a device such as `/dev/zero`, whose position does not move when it is read.

    Python's buffer reports a negative position then, but not from version 3.13 on.
    """
    if not isinstance(file, (io.BufferedReader, io.BufferedRandom, io.FileIO)):
        return False
    try:
        return stat.S_ISCHR(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError):  # its descriptor is closed, or there is none
        return False


def local_path(file: Any) -> str | None:
    """A path that opens the same file, if it is a regular file opened by Python's `io` classes; None otherwise.

    Other classes may return other bytes than their descriptor (gzip does).

    Raises:
        TypeError: The file is open in text mode.
    """
    if isinstance(file, io.TextIOBase):
        raise text_mode()
    tempfile = sys.modules.get("tempfile")  # if it is not imported, the file is not one of its files
    if tempfile is not None and isinstance(file, tempfile._TemporaryFileWrapper):
        file = file.file
    if type(file) in (io.BufferedReader, io.BufferedRandom):
        raw = file.raw
    elif type(file) is io.FileIO:
        raw = file
    else:
        return None
    if type(raw) is not io.FileIO or not raw.readable():
        return None
    file.flush()
    status = os.fstat(raw.fileno())
    if not stat.S_ISREG(status.st_mode):
        return None
    # Errors show the name, so it is preferred, if it still refers to the same file. Linux may lack /proc, and macOS does.
    number = raw.fileno()
    names = [raw.name] if isinstance(raw.name, (str, bytes)) else []
    for name in (*names, f"/proc/self/fd/{number}", f"/dev/fd/{number}"):
        try:
            if os.path.samestat(os.stat(name), status):
                return os.fsdecode(name)
        except OSError:
            pass
    return None


def read_to_end(f: Any) -> bytes:
    """Reads the rest of a file into memory, up to half of what is available, because the tensors may need as much again.

    A pipe, a decompressor or a device may have no end.

    Raises:
        LimitError: There is more.
        TypeError: The file is open in text mode.
    """
    limit = headroom() // 2
    read = io.BytesIO()
    while chunk := _chunk(f, min(_CHUNK_BYTES, limit + 1 - read.tell())):
        read.write(chunk)
        if read.tell() > limit:
            raise _too_large(limit, read.tell())
    return read.getvalue()


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Opens a regular file: a pipe in the folder of a checkpoint would wait for a writer, and a device may have no end.

    Raises:
        FormatError: It is not a regular file (code `NotRegularFile`).
        OSError: It cannot be opened.
    """
    # Windows has neither pipes in folders nor this flag.
    without_waiting = getattr(os, "O_NONBLOCK", 0)
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | without_waiting))  # noqa: SIM115
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    shown = os.fsdecode(path)
    raise _error("NotRegularFile", f"{shown}: this is not a regular file", path=shown)


def head_of(source: Any, nbytes: int) -> bytes:
    """The first bytes of a regular file at a path, or of an object that is read by ranges."""
    if isinstance(source, str):
        with open_regular(source) as file:
            return file.read(nbytes)
    return builtins.bytes(source.read_ranges([(0, min(source.size, nbytes))])[0])


def _chunk(f: Any, size: int) -> bytes:
    chunk = f.read(size)
    if isinstance(chunk, str):
        raise text_mode()
    if chunk is None:
        raise BlockingIOError(errno.EAGAIN, "the file is in non-blocking mode and has no data yet")
    return builtins.bytes(chunk)


def text_mode() -> BaseException:
    return _error("Type", "the file is open in text mode; open it with mode 'rb'")


def _too_large(limit: int, found: int) -> BaseException:
    text = f"the file object has more than {format_bytes(limit)}, the most that is read into memory"
    note = "that is half of the available memory; copy the data into a regular file and pass its path: it is read in parts"
    return _error("Limit", text, note, name="available_memory", limit=limit, found=found)
