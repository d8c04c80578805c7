"""`rustload info --cyclonedx`: checkpoints as a CycloneDX bill of materials."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import rustload
from rustload._cli.exit_codes import READ_FAILED
from rustload._cli.report import report_error
from rustload._common.files import open_regular
from rustload._common.terminal import print_json
from rustload._describe.bom import FileEntry, Model, bom
from rustload._describe.describe import describe
from rustload._describe.scanned import all_files
from rustload._remote.urls import is_url, name_of, shown_path
from rustload.errors import RustloadError, _error

if TYPE_CHECKING:
    from collections.abc import Sequence


def run(paths: Sequence[str], *, hashes: bool) -> int:
    """Prints the document of the checkpoints, with hashes of their files if asked for, and returns the exit code."""
    models: list[Model] = []
    code = 0
    for given in paths:
        try:
            models.append(_model(given, hashes=hashes))
        except (RustloadError, OSError, ValueError, MemoryError) as error:
            report_error(error)
            code = READ_FAILED
    print_json(bom(models))
    return code


def _model(given: str, *, hashes: bool) -> Model:
    path = shown_path(given)
    if is_url(given) and hashes:
        raise _error("Value", f"{path}: --hashes reads local files", "download the file")
    with rustload.open(given) as checkpoint:
        described = describe(checkpoint, path)
        if is_url(given):
            report = rustload.scan(given)
            entries = [FileEntry(name_of(file), None, None) for file in checkpoint.files or [path]]
        else:
            files = all_files(checkpoint)
            report = rustload.scan(files)
            entries = [_entry(file, hashes=hashes) for file in files]
    return Model(described, entries, report.verdict, report.complete)


def _entry(path: str, *, hashes: bool) -> FileEntry:
    sha256 = None
    if hashes:
        with open_regular(path) as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(path, os.stat(path).st_size, sha256)
