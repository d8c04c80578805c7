"""The argument `f` of `load`: a path, an open file or bytes, opened as a core checkpoint."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._common.files import file_name, head_of, open_regular, read_to_end, source_of, text_mode
from rustload._common.paths import open_bytes, open_paths, path_list
from rustload._remote.folder import ObjectFolder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

    from rustload._rustload import Limits

_ZIP = b"PK\x03\x04"


def is_path(f: object) -> bool:
    """Whether torch treats this as a path (torch/serialization.py: `_is_path`)."""
    return isinstance(f, (str, os.PathLike))


def are_paths(f: object) -> bool:
    """Whether it is a path, or a list of paths of shards, which torch does not support."""
    return is_path(f) or isinstance(f, (list, tuple))


def is_archive(f: Any) -> bool:
    """Whether the file has the zip signature, for an open file at its current position."""
    if isinstance(f, (list, tuple, ObjectFolder)):
        return True  # shards: whether each can be mapped is checked later
    if is_path(f):
        path = Path(f)
        if path.is_dir() or path.suffix == ".json":
            return True  # shards, as above
        return head_of(str(path), 4) == _ZIP
    if isinstance(f, (bytes, bytearray, memoryview)):
        return bytes(f[:4]) == _ZIP
    if hasattr(f, "read_ranges"):
        return True  # it cannot be mapped, and nothing may follow the checkpoint, as in a file at a path
    start = f.tell()
    head = f.read(4)
    f.seek(start)
    if not isinstance(head, builtins.bytes):
        raise text_mode()
    return head == _ZIP


def opened(f: Any, limits: Limits | None) -> _rustload.Checkpoint:
    """Opens the core checkpoint; reads only metadata.

    An open file is read from its current position. A regular file is reopened by its path and read with positional reads, any
    other by `seek` and `read`, and a decompressor to its end into memory. `seek_past` sets its position after the load.

    Raises:
        LimitError: The rest of such a file is larger than half of the available memory.
    """
    options = _rustload.OpenOptions(limits=limits)
    if isinstance(f, ObjectFolder):
        return _rustload.open(f, options)
    if are_paths(f):
        return open_paths(f, options)
    if isinstance(f, (bytes, bytearray, memoryview)):
        return open_bytes(bytes(f), options)
    if not is_archive(f):
        # A legacy stream has its own end marker, and other data may follow it in the file, as in torch.
        options = _rustload.OpenOptions(limits=limits, trailing="ignore")
    start = f.tell() if hasattr(f, "tell") else 0
    if isinstance(f, io.BytesIO):
        return open_bytes(f.getvalue() if start == 0 else f.read(), options)
    source = source_of(f, from_start=False)
    if isinstance(source, str):
        return _rustload.open((source, start), options)
    if isinstance(source, builtins.bytes):
        return open_bytes(source, options)
    return _rustload.open((f, start, file_name(f)), options)


@contextlib.contextmanager
def read_again(f: Any, start: int | None) -> Iterator[IO[bytes] | None]:
    """A file that is read from where the checkpoint began; None for an object that is read by ranges."""
    (path,) = path_list(f) if are_paths(f) else (None,)
    if path is not None:
        with open_regular(path) as file:
            yield file
    elif isinstance(f, (bytes, bytearray, memoryview)):
        yield io.BytesIO(f)
    elif start is None:
        yield None
    else:
        f.seek(start)
        yield f


def is_at_end(f: Any, start: int) -> bool:
    """Whether an open file has nothing from `start` on."""
    f.seek(start)
    return not f.read(1)


def seek_past(f: Any, start: int, core: _rustload.Checkpoint) -> None:
    """Sets the position of an open file after the checkpoint that begins at `start`, as torch leaves it."""
    if core.end is None:
        f.seek(0, os.SEEK_END)
    else:
        f.seek(start + core.end)


def seekable(f: Any) -> Any:
    """Returns a seekable file unchanged; reads the rest of one that cannot seek, such as a pipe, into bytes.

    Raises:
        AttributeError: The object has no `read`.
        TypeError: The file is open in text mode.
        LimitError: The rest of such a file is larger than half of the available memory.
    """
    try:
        f.seek(f.tell())
    except (OSError, AttributeError) as error:
        if not hasattr(f, "read"):
            advice = "You can only torch.load from a file that is seekable; read it into an io.BytesIO first."
            raise type(error)(f"{error}. {advice}") from None
    else:
        return f
    return read_to_end(f)
