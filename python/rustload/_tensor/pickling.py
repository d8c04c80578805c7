"""Pickles of checkpoints and lazy tensors: what another process needs to open the same version of the same files.

A pickle has paths, options, and the size, modification time and inode of every file: no elements, and no names but those of
rustload's own functions. It is for processes that run the same version of rustload, not for storage.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, TypeAlias

from rustload import _rustload
from rustload._frameworks.adapters import HandleContext
from rustload.errors import _error

Stamps: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""For each file its path, size, modification time in nanoseconds, and inode."""

_ORIGINS_MAX = 64
"""The most checkpoints whose origins are kept, so that pickling many handles asks for files once."""


class Origin:
    """Stands for a checkpoint in a pickle. Unpickled, it is the context of the checkpoint, which is open.

    A pickle of many handles has it once.
    """

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        """Keeps the arguments of `open_again`."""
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        """To a call of `open_again`."""
        return open_again, self._arguments


_origins: dict[tuple[int, str | None], Origin] = {}
# One for each checkpoint that is in use; weak, so that it keeps no file open. There is no lock, which a fork could copy locked.
_reopened: weakref.WeakValueDictionary[tuple[Any, ...], HandleContext] = weakref.WeakValueDictionary()


def origin_of(core: _rustload.Checkpoint, framework: str | None) -> Origin:
    """What stands for a checkpoint in a pickle.

    Raises:
        TypeError: Another process cannot open it: it was opened from bytes, an object, or a part of a file.
    """
    key = (core.serial, framework)
    found = _origins.get(key)
    if found is None:
        given = core.reopening()
        if given is None or any(path.startswith(("/proc/self/", "/dev/fd/")) for path in given[0]):
            raise _unpicklable(core)
        paths, *options, limits = given
        stamps = tuple(core.file_stamps())
        found = Origin((tuple(paths), *options, tuple(sorted(limits.items())), stamps, framework))
        if len(_origins) >= _ORIGINS_MAX:
            _origins.clear()
        _origins[key] = found
    return found


def are_same_files(one: _rustload.Checkpoint, two: _rustload.Checkpoint) -> bool:
    """Whether it is one checkpoint, or both were opened from the same version of the same files, to be read in the same way."""
    if one.serial == two.serial:
        return True
    first, second = one.reopening(), two.reopening()
    return bool(first and second and first[4] == second[4] and one.file_stamps() == two.file_stamps())


def _unpicklable(core: _rustload.Checkpoint) -> BaseException:
    what = f"the object {core.source_name!r}" if core.source_name else "bytes in memory or a part of a file"
    if core.reopening() is not None:
        what = f"a descriptor of this process ({core.files[0]})"
    text = f"it cannot be pickled, because it was opened from {what}, which another process cannot open"
    note = "open a path without manifest=, open it in the process that uses it, or materialize what that process needs"
    return _error("Type", text, note)


def open_again(
    paths: tuple[str, ...],
    unknown: str,
    trailing: str,
    compat: bool,  # noqa: FBT001 - called by unpickling
    dequantize: bool,  # noqa: FBT001 - as above
    io: str,
    limits: tuple[tuple[str, int], ...],
    stamps: Stamps,
    framework: str | None,
) -> HandleContext:
    """The context of the checkpoint that was pickled, which this process opens once while it is in use.

    It is opened as it was, by the same paths and with the same limits; `stamps` is the state of each file at that time.

    Raises:
        FormatError: A file is another one, or was changed (code `FileChanged`).
        OSError: A file cannot be read.
    """
    key = (paths, unknown, trailing, compat, dequantize, io, limits, stamps, framework)
    context = _reopened.get(key)
    if context is None:
        # Before opening, because a file that was changed may have become anything.
        _check(stamps, [_stamp(path) for path, *_ in stamps])
        options = _rustload.OpenOptions(
            unknown=unknown,
            trailing=trailing,
            compat=compat,
            dequantize=dequantize,
            io=io,
            limits=_rustload.Limits(**dict(limits)),
        )
        core = _rustload.open(list(paths), options)
        _check(stamps, core.file_stamps())
        context = HandleContext(framework)
        context.checkpoint = core
        context = _reopened.setdefault(key, context)
    return context


def _stamp(path: str) -> tuple[str, int, int, int]:
    found = os.stat(path)
    return path, found.st_size, found.st_mtime_ns, found.st_ino


def _check(before: Stamps, now: list[tuple[str, int, int, int]]) -> None:
    """Raises if files differ from those that were pickled."""
    changed = [old[0] for old, new in zip(before, now, strict=False) if old[1:] != new[1:]]
    if not changed and len(before) == len(now):
        return
    if changed:
        what = f"{changed[0]!r} was changed after the checkpoint was pickled"
    else:  # an index names others, or the folder has others
        what = f"the checkpoint has {len(now)} file(s), and had {len(before)} when it was pickled"
    note = "pickle it again, or open it in the process that uses it"
    raise _error("FileChanged", what, note, path=changed[0] if changed else None)


def opened_core(context: HandleContext) -> _rustload.Checkpoint:
    """The checkpoint of an unpickled context.

    Raises:
        TypeError: The context was not unpickled.
    """
    if context.checkpoint is None:
        raise TypeError("this is not a context of an unpickled checkpoint")
    return context.checkpoint
