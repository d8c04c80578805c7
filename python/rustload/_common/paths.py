"""What users give for a checkpoint: paths of every kind, or the bytes of a file; and what is said where nothing is there."""

from __future__ import annotations

import builtins
import contextlib
import errno
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload._common.similar import did_you_mean, similar
from rustload.errors import FormatError, _make

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["StrPath", "beneath", "contents", "paths", "repository"]

StrPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
_LOOKED_AT = 2000
"""Entries of a folder that are looked at for a note."""


def contents(given: Any) -> bytes | None:
    """The bytes of a file in memory, or None for what is a path. Bytes that are short and without zeros are a path."""
    if isinstance(given, BytesIO):
        given = given.getbuffer()
    if isinstance(given, (bytearray, memoryview)):
        return builtins.bytes(given)
    if isinstance(given, bytes) and not (0 < len(given) < 4096 and b"\0" not in given):
        return given
    return None


def paths(given: Any) -> list[str]:
    if isinstance(given, (str, bytes, os.PathLike)):
        found = [given]
    elif isinstance(given, Iterable) and not isinstance(given, Mapping) and not hasattr(given, "read"):
        found = list(given)
    else:
        note = "for an open file, pass its path (its .name); for bytes in memory, a bytearray, a memoryview or a BytesIO"
        if isinstance(given, Mapping):
            note = "it holds tensors already, as model.load_state_dict takes them: rustload opens the file that they come from"
        raise _make("Type", "Type", f"path is a {type(given).__name__}, not a path or a list of paths", note)
    for one in found:
        if not isinstance(one, (str, bytes, os.PathLike)):
            raise _make("Type", "Type", f"the list of paths holds a {type(one).__name__}")
        try:
            os.stat(one)  # noqa: PTH116  # ten times as fast as by a Path
        except FileNotFoundError:
            raise _missing(os.fsdecode(one)) from None
        except OSError:
            pass  # the core says what is wrong
    return [os.fsdecode(one) for one in found]


def _missing(given: str) -> BaseException:
    """The error for a path that is not there, with a near name beside it, or what the path may have been meant to be."""
    from pathlib import Path

    path = Path(given)
    error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), given)
    error.code = "Io"  # type: ignore[attr-defined]  # every error of ours has one
    try:
        near = did_you_mean(similar(path.name, (one.name for one in path.parent.iterdir())))
    except OSError:
        near = None
    cached = _cached(given)
    if "://" in given:
        error.add_note("nothing is downloaded: fetch the file, then open it")
    elif path.is_symlink():
        error.add_note(f"it is a symbolic link to {os.fsdecode(path.readlink())}, which is not there")
    elif near:
        error.add_note(near)
    elif cached is not None:
        error.add_note(f"the cache of Hugging Face has it: rustload.open({str(cached)!r})")
    elif any(char in given for char in "*?["):
        error.add_note(
            "patterns are not expanded here: pass sorted(glob.glob(...)), the shards of one checkpoint"
        )
    elif path.parts[:1] == ("~",):
        error.add_note("~ is not expanded here: use os.path.expanduser")
    elif not path.is_absolute() and len(path.parts) <= 2 and not path.suffix:
        error.add_note(
            "nothing is downloaded: if this names a model of a hub, download it first and pass its folder"
        )
    else:
        error.add_note(f"the working directory is {Path.cwd()}; check the spelling")
    return error


def repository(path: str) -> str:
    """The files of a repository in the cache of Hugging Face, where `path` is its folder; any other path as it is.

    Its layout is `refs/main`, which holds a commit, and `snapshots/<commit>`, which holds the files.
    """
    if "models--" not in path:
        return path
    from pathlib import Path  # few need it

    snapshots = Path(path) / "snapshots"
    if not Path(path).name.startswith("models--") or not snapshots.is_dir():
        return path
    with contextlib.suppress(OSError, ValueError):
        found = snapshots / (Path(path) / "refs" / "main").read_text().strip()
        if found.is_dir():
            return str(found)
    there = list(snapshots.iterdir())
    return str(there[0]) if len(there) == 1 else path


def _cached(name: str) -> Path | None:
    """The folder that the cache of Hugging Face has for a repository's name."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return None
    from pathlib import Path  # only for errors

    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    cache = os.environ.get("HF_HUB_CACHE") or Path(home) / "hub"
    folder = Path(cache) / ("models--" + name.replace("/", "--"))
    return folder if folder.is_dir() else None


@contextlib.contextmanager
def beneath(given: list[str]) -> Iterator[None]:
    """Adds to the error about a folder without a checkpoint where in folders below it there are some."""
    try:
        yield
    except FormatError as error:
        # An error about a file in the folder is about what was found there.
        from pathlib import Path

        if len(given) == 1 and error.path == given[0] and error.code == "UnknownFormat":
            found = sorted(_weights(Path(given[0]))) if Path(given[0]).is_dir() else []
            if found:
                more = f" and {len(found) - 3} more" if len(found) > 3 else ""
                error.add_note(
                    f"below it there are {', '.join(map(repr, found[:3]))}{more}: open one, or its folder"
                )
        raise


def _weights(folder: Path) -> Iterator[str]:
    """Files in folders below, at most three levels down, that are named as checkpoints are."""
    for entry in itertools.islice(folder.rglob("*"), _LOOKED_AT):
        if entry.suffix in _WEIGHTS and 2 <= len(entry.relative_to(folder).parts) <= 4:
            yield str(entry)
