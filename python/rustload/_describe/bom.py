"""`bom`: checkpoints as a CycloneDX 1.6 bill of materials with machine-learning models (ML-BOM).

It has what the files say: formats, dtypes, numbers of parameters, the classes that pickles name, and metadata. The same
checkpoints give the same document: the serial number is derived from its content, and there is a time only if SOURCE_DATE_EPOCH
gives one.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from rustload import _rustload
from rustload.errors import _printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rustload._describe.describe import Described

# A folder of a repository in the Hugging Face cache.
_SNAPSHOT = re.compile(r"models--([\w.-]+?)--([\w.-]+)/snapshots/([0-9a-f]{40})(?:/|$)")
_ARCHITECTURE = "modelspec.architecture"


class FileEntry(NamedTuple):
    """A file of a checkpoint.

    Attributes:
        path: Its path; a URL without secrets.
        size: Its size in bytes; None if that is unknown.
        sha256: Its hash in hexadecimal; None if it was not asked for.
    """

    path: str
    size: int | None
    sha256: str | None


class Model(NamedTuple):
    """A checkpoint.

    Attributes:
        described: Its entry in the JSON of `rustload info`.
        files: Its files.
        verdict: The verdict of a scan of the files.
        complete: Whether the scan was complete.
    """

    described: Described
    files: list[FileEntry]
    verdict: str
    complete: bool


def bom(models: Sequence[Model]) -> dict[str, Any]:
    """The document."""
    tool = {"type": "application", "name": "rustload", "version": _rustload.__version__}
    components = [_component(model, f"model-{number}") for number, model in enumerate(models, start=1)]
    content = json.dumps([tool, components], sort_keys=True)
    metadata: dict[str, Any] = {"tools": {"components": [tool]}}
    time = _time()
    if time is not None:
        metadata = {"timestamp": time, **metadata}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_OID, content).urn,
        "version": 1,
        "metadata": metadata,
        "components": components,
    }


def _component(model: Model, ref: str) -> dict[str, Any]:
    described = model.described
    metadata = described["metadata"]
    component: dict[str, Any] = {
        "type": "machine-learning-model",
        "bom-ref": ref,
        **_identity(described["path"]),
    }
    # The keys of ModelSpec in the metadata of safetensors files.
    if author := metadata.get("modelspec.author"):
        component["authors"] = [{"name": author}]
    if terms := metadata.get("modelspec.license"):
        component["licenses"] = [{"license": {"name": terms}}]
    if description := metadata.get("modelspec.description"):
        component["description"] = description
    component["properties"] = [{"name": f"rustload:{name}", "value": value} for name, value in _facts(model)]
    if metadata:
        properties = [{"name": f"metadata:{key}", "value": metadata[key]} for key in sorted(metadata)]
        card: dict[str, Any] = {"properties": properties}
        if metadata.get(_ARCHITECTURE):
            card = {"modelParameters": {"modelArchitecture": metadata[_ARCHITECTURE]}, **card}
        component["modelCard"] = card
    root = described["path"]
    component["components"] = [
        _file(entry, root, f"{ref}/file-{number}") for number, entry in enumerate(model.files, start=1)
    ]
    return component


def _identity(path: str) -> dict[str, str]:
    """Name and version: of a folder in the Hugging Face cache those of the repository, else the name of the path."""
    found = _SNAPSHOT.search(path)
    if found:
        organization, repository, revision = found.groups()
        name = f"{organization}/{repository}"
        return {"name": name, "version": revision, "purl": f"pkg:huggingface/{name}@{revision}"}
    # The last part of a path such as `.` is that of the folder itself.
    name = os.path.basename(os.path.abspath(path)) or "model"
    return {"name": _printable(name)}


def _facts(model: Model) -> Iterator[tuple[str, str]]:
    """The facts about the checkpoint, as `rustload:` properties."""
    described = model.described
    yield "format", described["format"]
    yield "tensors", str(len(described["tensors"]))
    yield "parameters", str(described["elements"])
    yield "nbytes", str(described["nbytes"])
    for dtype in described["dtypes"]:
        yield "dtype", dtype["dtype"]
        yield f"dtype:{dtype['dtype']}:tensors", str(dtype["tensors"])
        yield f"dtype:{dtype['dtype']}:nbytes", str(dtype["nbytes"])
    for name in described["globals"]:
        yield "global", _printable(name)
    for found in described["opaque"]:
        yield "opaque", _printable(found.class_name)
    yield "scan:verdict", model.verdict
    yield "scan:complete", str(model.complete).lower()


def _file(entry: FileEntry, root: str, ref: str) -> dict[str, Any]:
    name = entry.path.removeprefix(root.rstrip("/") + "/")
    if name == entry.path:
        name = os.path.basename(entry.path)
    component: dict[str, Any] = {"type": "file", "bom-ref": ref, "name": _printable(name)}
    if entry.sha256 is not None:
        component["hashes"] = [{"alg": "SHA-256", "content": entry.sha256}]
    if entry.size is not None:
        component["properties"] = [{"name": "rustload:size", "value": str(entry.size)}]
    return component


def _time() -> str | None:
    """SOURCE_DATE_EPOCH as a date; None without one (reproducible-builds.org)."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not (given.isascii() and given.isdigit()):
        return None
    from datetime import UTC, datetime

    return datetime.fromtimestamp(int(given[:11]), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
