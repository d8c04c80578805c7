"""The other files of a checkpoint's folder, on disk or in a store: configurations, tokenizers. Pickles are not copied."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._common.manifest import manifest_of
from rustload._common.waiting import in_parallel
from rustload._remote.folder import LOOKUPS_MAX, joined
from rustload.errors import _error

if TYPE_CHECKING:
    from rustload._common.manifest import ManifestLike
    from rustload._remote.folder import ObjectFolder
    from rustload._save.part import Part

__all__ = ["as_listed", "other_files", "other_objects"]

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
_INDEX = re.compile(r".+\.(bin|safetensors)\.index(\..+)?\.json")


def other_files(root: str, parts: list[Part], target: str) -> list[tuple[str, str]]:
    """The files below `root` to copy: their paths from there, and their paths.

    Left out are hidden files, the checkpoints that are converted, indexes, `target`, and pickles, which are told by extension and
    content. Of a link, the file that it leads to is copied.

    Raises:
        ValueError: A link leads out of the folder, or a folder of a Hugging Face cache out of its blobs.
    """
    sources = {os.path.realpath(path) for part in parts for path in part.paths}
    target = os.path.realpath(target)
    real_root = os.path.realpath(root)
    if target == real_root:
        return []
    allowed = [real_root, *_blobs(real_root)]
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(folder, name)) != target
        )
        for name in sorted(names):
            path = os.path.join(folder, name)
            if name.startswith(".") or not os.path.isfile(path):
                continue
            real = os.path.realpath(path)
            if real in sources or _INDEX.fullmatch(name):
                continue
            if not any(os.path.commonpath([real, one]) == one for one in allowed):
                text = f"would copy {real!r}, which is outside of the folder: {path!r} is a link to it"
                note = "replace the link by the file, or copy the other files yourself"
                raise _error("Value", text, note, argument="copy_others")
            if os.path.splitext(name)[1].lower() not in _PICKLES and not _is_pickle([path]):
                found.append((os.path.relpath(path, root), path))
    return found


def other_objects(root: ObjectFolder, parts: list[Part]) -> list[tuple[str, Any]]:
    """The objects below a folder in a store to copy, by their paths from there: `other_files` says which.

    Raises:
        OSError: One cannot be read.
    """
    sources = {path for part in parts for path in part.paths}
    found: list[tuple[str, Any]] = []
    waiting = [("", root)]
    while waiting:
        prefix, folder = waiting.pop()
        names = [
            name
            for name in sorted(folder.names())
            if not name.startswith(".")
            and joined(folder.name, name) not in sources
            and _INDEX.fullmatch(name) is None
            and os.path.splitext(name)[1].lower() not in _PICKLES
        ]
        found += zip((f"{prefix}{name}" for name in names), in_parallel(folder.open, names), strict=True)
        if len(found) > LOOKUPS_MAX or len(waiting) > LOOKUPS_MAX:
            raise _error("Value", f"{root.name} has more than {LOOKUPS_MAX} files or folders")
        waiting += [
            (f"{prefix}{name}/", folder.subfolder(name))
            for name in sorted(folder.folders(), reverse=True)
            if not name.startswith(".")
        ]
    pickled = in_parallel(lambda one: _is_pickle((one[1], 0, one[1].name)), found)
    return [one for one, is_pickle in zip(found, pickled, strict=True) if not is_pickle]


def as_listed(
    copies: list[tuple[str, Any]], root: str | ObjectFolder, manifest: ManifestLike
) -> list[tuple[str, Any]]:
    """Files or objects to copy from a folder, as objects that have only bytes with the digests of a manifest.

    Left out is the file of the manifest itself. Empty files need not be listed, as for `Manifest.unlisted`.

    Raises:
        FormatError: One is not listed (code `ManifestMissing`), or has another size (`ManifestMismatch`).
        OSError: One cannot be read.
    """
    own = os.path.realpath(manifest) if isinstance(manifest, (str, os.PathLike)) else None
    listed = manifest_of(manifest, root)
    named = [(path, path.replace(os.sep, "/"), source) for path, source in copies]
    folder: Any = (
        root if isinstance(root, str) else _Objects(root.name, {name: one for _, name, one in named})
    )
    found = []
    for path, name, source in named:
        is_local = isinstance(source, str)
        if is_local and os.path.realpath(source) == own:
            continue
        is_empty = not (os.path.getsize(source) if is_local else source.size)
        is_verified = not is_empty or name in listed.files
        found.append((path, listed._core.open(folder, name) if is_verified else source))
    return found


class _Objects:
    """The objects of a store that are copied, as the files of a folder."""

    def __init__(self, name: str, objects: dict[str, Any]) -> None:
        """The name of the folder, and the objects by their paths from there."""
        self.name, self.open, self.chosen = name, objects.__getitem__, ()


def _blobs(root: str) -> list[str]:
    """The folder of blobs, if `root` is in a snapshot of a Hugging Face cache: its files are links to blobs of the repository."""
    repository, snapshots, _ = root.rpartition("/snapshots/")
    blobs = os.path.join(repository, "blobs")
    return [blobs] if snapshots and os.path.isdir(blobs) else []


def _is_pickle(source: Any) -> bool:
    """Whether a file or an object is a pickle, or has one in it, as far as is known."""
    (file,) = json.loads(_rustload.scan(source, _rustload.ScanOptions()))["files"]
    if file["status"] == "skipped":
        return False
    coverage = file["coverage"]
    return not coverage["complete"] or any("pickle" in one["kind"] for one in coverage["scanned"])
