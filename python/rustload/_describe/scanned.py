"""`scanned`: what a scan says of the files that a checkpoint is read from, in short."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rustload import _rustload
from rustload._describe.files import all_files
from rustload._scan.gate import Gate
from rustload._scan.verdict import ORDER
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._common.manifest import ManifestLike
    from rustload._describe.describe import Scanned


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
