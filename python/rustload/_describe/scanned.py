"""`scanned`: what a scan says of the files that a checkpoint is read from, in short."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from rustload import _rustload
from rustload._scan.gate import Gate
from rustload._scan.verdict import ORDER
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._common.manifest import ManifestLike
    from rustload._describe.describe import Scanned


def all_files(checkpoint: Checkpoint) -> list[str]:
    """`Checkpoint.files`, and the files on disk that the metadata of a distributed checkpoint names.

    Raises:
        OSError: One of the latter cannot be read.
    """
    files = checkpoint.files
    if checkpoint.format != "torch-dcp":
        return files
    known = {os.path.realpath(file) for file in files}
    return files + [
        path for path, *_ in checkpoint._core.file_stamps() if os.path.realpath(path) not in known
    ]


def scanned(checkpoint: Checkpoint, manifest: ManifestLike | None = None) -> Scanned | None:
    """The worst verdict on files on disk, and what it is about; None if a scan looks into none of them."""
    files, policy = all_files(checkpoint), None
    if manifest is not None:
        from rustload._scan.policy import Policy

        policy = Policy(manifest=manifest)
    try:
        options = Gate(policy).options(files)
        report = json.loads(_rustload.scan(files, options) if files else '{"files": []}')
    except (RustloadError, OSError, ValueError):
        return None
    reports = [file for file in report["files"] if file["status"] == "scanned"]
    if not reports:
        return None
    verdict = max((file["verdict"] for file in reports), key=ORDER.__getitem__)
    found = (one for file in reports for one in file["findings"] if one["verdict"] == verdict != "inert")
    names = (f"{one['module']}.{one['name']}" if one["name"] else one["code"] for one in found)
    return {"verdict": verdict, "names": list(dict.fromkeys(names))}
