"""Calls of the extension that write a folder, and what is said about the folder that was replaced."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._common.patterns import warn_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rustload._save.job import File
    from rustload._save.model_config import Edit


def write_folder(
    path: str,
    files: Sequence[File],
    texts: Sequence[tuple[str, str]],
    options: _rustload._WriteOptions,
    *,
    copies: Sequence[tuple[str, Any]] = (),
    edits: Sequence[Edit] = (),
    joins: bool = False,
) -> dict[str, int]:
    """Writes a folder as the extension's function does, and returns the sizes of its files.

    Warns where files were replaced one by one, and of an old folder.
    """
    where, before = _working_folder()
    listed, note = _rustload.write_folder(
        path,
        files,
        texts=[*((name, text, None) for name, text in texts), *edits],
        copies=copies,
        joins=joins,
        options=options,
    )
    if note is not None:
        warn_user(note)
    # A folder that is replaced is another one: its process, and the shell, are left in one without files.
    if before is not None and _working_folder(where)[1] != before:
        warn_user(
            f"{where} was replaced by a new folder, and this process and its shell are in the old one: enter it again (cd .)"
        )
    return dict(listed)


def _working_folder(path: str = "") -> tuple[str, tuple[int, int] | None]:
    """The path of the working directory, and what tells it from others; None if it is not there. With a path, that folder."""
    try:
        path = path or os.getcwd()
        found = os.stat(path)
    except OSError:
        return path, None
    return path, (found.st_dev, found.st_ino)
