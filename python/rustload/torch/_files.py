"""The argument `f` of `load`: a path, an open file or bytes, opened as a core checkpoint."""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._common.memory import headroom
from rustload._common.paths import hub_snapshot, note_checkpoints_below, path_list
from rustload._common.sizes import format_bytes
from rustload.errors import FormatError, _from_core, _make

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["are_paths", "is_archive", "is_path", "opened", "seekable"]

_ZIP = b"PK\x03\x04"
_CHUNK_BYTES = 1 << 20


def is_path(f: object) -> bool:
    """Whether torch treats this as a path (torch/serialization.py: `_is_path`)."""
    return isinstance(f, (str, os.PathLike))


def are_paths(f: object) -> bool:
    """Whether it is a path, or a list of paths of shards, which torch does not support."""
    return is_path(f) or isinstance(f, (list, tuple))


def is_archive(f: Any) -> bool:
    """Whether the file has the zip signature, for an open file at its current position."""
    if isinstance(f, (list, tuple)):
        return True  # shards: whether each can be mapped is checked later
    if is_path(f):
        path = Path(f)
        if path.is_dir() or path.suffix == ".json":
            return True  # shards, as above
        with path.open("rb") as file:
            return file.read(4) == _ZIP
    if isinstance(f, (bytes, bytearray, memoryview)):
        return bytes(f[:4]) == _ZIP
    start = f.tell()
    head = f.read(4)
    f.seek(start)
    if not isinstance(head, builtins.bytes):
        raise _text_mode()
    return head == _ZIP


def opened(f: Any, limits: Mapping[str, int]) -> _rustload.Checkpoint:
    """Opens the core checkpoint; reads only metadata.

    An open file is read from its current position. A regular file is reopened by its path and read with positional reads;
    anything else is read to its end into memory. Afterwards the position of the open file is after the checkpoint.

    Raises:
        LimitError: The rest of such a file is larger than half of the available memory.
    """
    if are_paths(f):
        paths = [hub_snapshot(one) for one in path_list(f)]
        with note_checkpoints_below(paths):
            return _rustload.open_paths(
                paths, unknown="keep", trailing="error", compat=False, verify=False, limits=limits
            )
    if isinstance(f, (bytes, bytearray, memoryview)):
        return _from_memory(bytes(f), "error", limits)
    # A legacy stream has its own end marker, and other data may follow it in the file, as in torch.
    trailing = "error" if is_archive(f) else "ignore"
    start = f.tell()
    path = _path_of(f)
    if path is not None:
        core = _rustload.open_at(path, start, unknown="keep", trailing=trailing, limits=limits)
    else:
        whole = isinstance(f, io.BytesIO) and start == 0
        core = _from_memory(f.getvalue() if whole else _read_to_end(f), trailing, limits)
    if core.end is None:
        f.seek(0, os.SEEK_END)
    else:
        f.seek(start + core.end)
    return core


def _from_memory(data: bytes, trailing: str, limits: Mapping[str, int]) -> _rustload.Checkpoint:
    try:
        return _rustload.open_bytes(
            data, unknown="keep", trailing=trailing, compat=False, verify=False, limits=limits
        )
    except FormatError as error:
        if (
            error.code == "UnknownFormat"
            and len(data) < 4096
            and data.isascii()
            and data.decode().isprintable()
        ):
            error.add_note("bytes are the content of a file here: for a path, pass os.fsdecode(path)")
        raise


def seekable(f: Any) -> Any:
    """Returns a seekable file unchanged; reads the rest of one that cannot seek, such as a pipe, into bytes.

    Raises:
        AttributeError: The object has no `read`.
        TypeError: The file is open in text mode.
        LimitError: As for `opened`.
    """
    try:
        f.seek(f.tell())
    except (OSError, AttributeError) as error:
        if not hasattr(f, "read"):
            advice = "You can only torch.load from a file that is seekable; read it into an io.BytesIO first."
            raise type(error)(f"{error}. {advice}") from None
    else:
        return f
    return _read_to_end(f)


def _read_to_end(f: Any) -> bytes:
    """Reads the rest of a file into memory, up to half of what is available, because the tensors may need as much again.

    A pipe, a decompressor or a device may have no end.
    """
    limit = headroom() // 2
    read = io.BytesIO()
    while chunk := _chunk(f, min(_CHUNK_BYTES, limit + 1 - read.tell())):
        read.write(chunk)
        if read.tell() > limit:
            raise _too_large(limit, read.tell())
    return read.getvalue()


def _chunk(f: Any, size: int) -> bytes:
    chunk = f.read(size)
    if isinstance(chunk, str):
        raise _text_mode()
    if chunk is None:
        raise BlockingIOError(errno.EAGAIN, "the file is in non-blocking mode and has no data yet")
    return builtins.bytes(chunk)


def _text_mode() -> BaseException:
    return _make("Type", "Type", "the file is open in text mode; open it with mode 'rb'")


def _too_large(limit: int, found: int) -> BaseException:
    return _from_core(
        kind="Limit",
        code="Limit",
        message=f"the file object has more than {format_bytes(limit)}, the most that is read into memory",
        note="that is half of the available memory; copy the data into a regular file and pass its path: it is read in parts",
        errno=None,
        path=None,
        member=None,
        offset=None,
        name="available_memory",
        limit=limit,
        found=found,
    )


def _path_of(f: Any) -> str | None:
    """A path that opens the same file, if it is a regular file opened by Python's `io` classes; None otherwise.

    Other classes may return other bytes than their descriptor (gzip does).
    """
    if isinstance(f, tempfile._TemporaryFileWrapper):
        f = f.file
    if type(f) in (io.BufferedReader, io.BufferedRandom):
        raw = f.raw
    elif type(f) is io.FileIO:
        raw = f
    else:
        return None
    if type(raw) is not io.FileIO or not raw.readable():
        return None
    f.flush()
    status = os.fstat(raw.fileno())
    if not stat.S_ISREG(status.st_mode):
        return None
    # Errors show the name, so it is preferred to /proc if it still refers to the same file.
    if isinstance(raw.name, (str, bytes)):
        try:
            if os.path.samestat(Path(os.fsdecode(raw.name)).stat(), status):
                return os.fsdecode(raw.name)
        except OSError:
            pass
    return f"/proc/self/fd/{raw.fileno()}"
