"""The `path` argument: paths of every kind, or the bytes of a file; and the advice if a path does not exist."""

from __future__ import annotations

import builtins
import errno
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO

from rustload import _rustload
from rustload._common.hub import hub_cache_folder, hub_snapshot
from rustload._common.similar import did_you_mean, similar
from rustload.errors import FormatError, _error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any, TypeAlias

StrPath: TypeAlias = str | os.PathLike[str] | os.PathLike[bytes]

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
FOLDER_FILES = (".metadata", "latest", "latest_universal", "latest_checkpointed_iteration.txt")
"""Files whose folder is a checkpoint."""
_ENTRIES_SEARCHED_MAX = 2000
"""The most directory entries to search for a note."""
_PATH_MAX_BYTES = 4096
"""The length of the longest path that Linux accepts."""


def file_bytes(given: Any) -> bytes | None:
    """The content if a file is given in memory; None for anything else. `bytes` are always content, whatever they hold."""
    if isinstance(given, BytesIO):
        given = given.getbuffer()
    if isinstance(given, (bytes, bytearray, memoryview)):
        return builtins.bytes(given)
    return None


def is_file_object(given: object) -> bool:
    """Whether it is an open file, or has `read_ranges`."""
    return hasattr(given, "read_ranges") or hasattr(given, "read")


def open_bytes(
    content: bytes, options: _rustload.OpenOptions, manifest: _rustload.Manifest | None = None
) -> _rustload.Checkpoint:
    """Opens the content of a file; if it has no known format, and may be a path, a note says how to pass a path."""
    try:
        return _rustload.open(content, options, manifest)
    except FormatError as error:
        is_path = 0 < len(content) < _PATH_MAX_BYTES and b"\0" not in content
        if error.code == "UnknownFormat" and is_path and os.fsdecode(content).isprintable():
            error.add_note(_BYTES_ARE_CONTENT)
        raise


_BYTES_ARE_CONTENT = "bytes are the content of a file here: for a path, pass os.fsdecode(path)"


def path_list(given: Any) -> list[str]:
    """Converts a path or a list of paths to a list of `str`.

    Raises:
        FileNotFoundError: A path does not exist; the note says what may have been intended.
        TypeError: The argument is neither a path nor a list of paths.
    """
    if isinstance(given, (str, os.PathLike)):
        found: list[Any] = [given]
    elif isinstance(given, Iterable) and not isinstance(given, Mapping) and not hasattr(given, "read"):
        found = list(given)
    else:
        note = "pass a path, a list of paths, a binary file object, or bytes in memory (a bytearray, a memoryview, a BytesIO)"
        if isinstance(given, Mapping):
            note = (
                "it is open already"
                if hasattr(given, "materialize")
                else "it is a state dict already, which model.load_state_dict takes; rustload opens the file"
            )
        raise _error("Type", f"path is of type {type(given).__name__}, not a path or a list of paths", note)
    for one in found:
        if not isinstance(one, (str, os.PathLike)):
            advice = _BYTES_ARE_CONTENT if isinstance(one, bytes) else None
            raise _error(
                "Type", f"the list of paths has an element of type {type(one).__name__}, not a path", advice
            )
        try:
            os.stat(one)  # ten times as fast as Path.stat
        except FileNotFoundError:
            raise _missing(os.fsdecode(one)) from None
        except OSError:
            pass  # the core reports the error
    return [os.fsdecode(one) for one in found]


def _missing(given: str) -> BaseException:
    """The error for a path that does not exist, with a note: a similar name, or what the path may be instead of a file."""
    import contextlib
    from pathlib import Path

    path, note = Path(given), None
    try:
        near = did_you_mean(similar(path.name, (one.name for one in path.parent.iterdir())))
    except OSError:
        near = None
    cached = hub_cache_folder(given)
    if path.is_symlink():
        note = f"it is a symbolic link to {os.fsdecode(path.readlink())!r}, which does not exist"
    elif near:
        note = near
    elif cached is not None:
        note = f"it is in the Hugging Face cache: rustload.open({cached!r})"
    elif any(char in given for char in "*?["):
        note = (
            "glob patterns are not expanded here: pass sorted(glob.glob(...)), the shards of one checkpoint"
        )
    elif path.parts[:1] == ("~",):
        note = "~ is not expanded here: write the home folder in its place"
    elif path.parts and not path.is_absolute() and len(path.parts) <= 2 and not path.suffix:
        name = given if len(path.parts) == 2 else "ORGANIZATION/NAME"
        note = f"for a model of the Hugging Face Hub, pass {f'hf://{name}'!r}"
    else:
        with contextlib.suppress(OSError):  # it may be gone too
            note = f"the working directory is {Path.cwd()}; check the spelling"
    return _error("Io", "", note, errno=errno.ENOENT, path=given)


def open_paths(
    given: Any, options: _rustload.OpenOptions, manifest: _rustload.Manifest | None = None
) -> _rustload.Checkpoint:
    """Opens a path or a list of paths; if a folder has no checkpoint, a note lists those in its subfolders.

    Raises:
        FileNotFoundError: As for `path_list`, which also raises the TypeError.
    """
    paths = [hub_snapshot(one) for one in path_list(given)]
    try:
        return _rustload.open(paths, options, manifest)
    except FormatError as error:
        # Only for the folder itself: an error about a file inside it needs no such note.
        from pathlib import Path

        if len(paths) == 1 and error.path == paths[0] and error.code == "UnknownFormat":
            found = sorted({*_checkpoints_below(Path(paths[0]))}) if Path(paths[0]).is_dir() else []
            if found:
                more = f" and {len(found) - 3} more" if len(found) > 3 else ""
                error.add_note(
                    f"below it there are {', '.join(map(repr, found[:3]))}{more}: open one, or its folder"
                )
        raise


def _checkpoints_below(folder: Path) -> Iterator[str]:
    """Files in subfolders, one to three levels down, with the suffix of a checkpoint, and folders of distributed checkpoints."""
    for entry in itertools.islice(folder.rglob("*"), _ENTRIES_SEARCHED_MAX):
        if 2 <= len(entry.relative_to(folder).parts) <= 4:
            if entry.name in FOLDER_FILES:
                yield str(entry.parent)
            elif entry.suffix in _WEIGHT_SUFFIXES:
                yield str(entry)


def walk(folder: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """As `os.walk`, which leaves out folders that cannot be read: here they are an error.

    Raises:
        OSError: A folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    return os.walk(folder, onerror=fail)


def refuse_input(output: str, inputs: Iterable[str]) -> None:
    """Checks that an output does not replace a file that was read.

    Raises:
        ValueError: It is one of `inputs`.
    """
    if any(is_same_file(output, path) for path in inputs):
        raise _error("Value", f"the output {output!r} is a file of the checkpoint", "name another output")


def is_same_file(one: str, two: str) -> bool:
    """Whether both paths are of one file that exists."""
    try:
        return os.path.samefile(one, two)
    except (OSError, ValueError):
        return False
