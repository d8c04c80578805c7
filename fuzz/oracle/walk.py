"""Runs every reader on a file, and on what they open in it."""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import importlib
import importlib.util
import os
import warnings
from typing import TYPE_CHECKING

from fuzz.oracle import readers
from fuzz.oracle.watch import WATCH

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

DEPTH_MAX = 3
"""The levels of archives in archives: the limit `scan_depth`."""

READERS = dict(readers.PICKLE_READERS)
HAS_LIBRARIES = importlib.util.find_spec("torch") is not None
if HAS_LIBRARIES:
    from fuzz.oracle import libraries

    READERS.update(libraries.LIBRARY_READERS)
READERS.update(readers.ARCHIVE_READERS)
OTHER_READERS = frozenset(READERS) - frozenset(readers.PICKLE_READERS)
"""Those that read a bare pickle as CPython does, or not at all."""
CONTENTS = "contents"
"""Stands for all readers of what the others open."""


def warm_up() -> None:
    """Loads modules that the readers import late, so that an import by a reader stands out."""
    for encoding in ("ascii", "cp437", "latin1", "raw_unicode_escape", "unicode_escape", "utf-8"):
        codecs.lookup(encoding)
    for module in ("linecache", "tokenize", "traceback"):
        importlib.import_module(module)
    with contextlib.suppress(Exception):
        list(READERS["tarfile"](b""))
    if HAS_LIBRARIES:
        libraries.warm_up()


def read_all(data: bytes, skip: Collection[str], started: Callable[[int], None]) -> dict[str, str]:
    """Runs every reader on the data, and on what they open in it; returns how each ended.

    Args:
        data: The content of a file.
        skip: Readers of the file itself that are left out.
        started: Called with the number of each reader before it runs on the file itself.

    Returns:
        By reader, `"ok"` or the error's class, for the readers of the file itself and for those of contents.
    """
    outcomes: dict[str, str] = {}
    todo, seen = [("", data, 0)], {(bytes, hashlib.sha1(data).digest())}
    while todo:
        path, content, depth = todo.pop()
        if depth > 0:
            started(len(READERS))
            if CONTENTS in skip:
                break
        if isinstance(content, readers.Storage) and not content.startswith(b"\x93NUMPY"):
            continue
        for number, (name, reader) in enumerate(READERS.items()):
            if isinstance(content, readers.Storage) and not name.startswith("numpy"):
                continue
            if depth == 0:
                started(number)
                if name in skip:
                    continue
            WATCH.reader = label = f"{path}{name}"
            resolved = WATCH.resolved
            try:
                for inner in reader(content):
                    digest = type(inner), hashlib.sha1(inner).digest()
                    if (
                        inner
                        and depth < DEPTH_MAX
                        and digest not in seen
                        and len(seen) < readers.CONTENTS_MAX
                    ):
                        seen.add(digest)
                        todo.append((f"{label}>", inner, depth + 1))
                outcomes[label] = "ok"
            except Exception as error:  # noqa: BLE001 - readers raise errors of any type
                outcomes[label] = type(error).__name__
            if WATCH.resolved > resolved:
                outcomes[label] += " after names"
            if WATCH.tainted:
                return outcomes
    return outcomes


def silence() -> None:
    """Drops the readers' warnings and output."""
    warnings.simplefilter("ignore")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
