"""The other files of a checkpoint's folder, on disk or in a store: configurations, tokenizers. Pickles are not copied."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload import _rustload
from rustload._common.files import open_regular
from rustload._common.manifest import Ranged, file_of, manifest_of
from rustload._common.manifest_forms import Listed
from rustload._common.paths import FOLDER_FILES, walk
from rustload._common.waiting import in_parallel
from rustload._remote.folder import LOOKUPS_MAX, joined
from rustload._save.sources import LocalFolder
from rustload.errors import _error

if TYPE_CHECKING:
    from rustload._common.manifest import ManifestLike
    from rustload._remote.folder import ObjectFolder
    from rustload._save.part import Part
    from rustload._save.sources import Checkpoints
    from rustload._save.target import Target

Copies: TypeAlias = list[tuple[str, Any]]
"""Paths in a folder, and paths or objects."""

_BLOCK_BYTES = 8 << 20
_OF_NOTHING = hashlib.sha256().digest()

_CONFIGS = ("config.json", "model_index.json")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
_INDEX = re.compile(r".+\.(bin|safetensors)\.index(\..+)?\.json")


def uncopied(given: Checkpoints, parts: list[Part], target: Target) -> list[str]:
    """The files at the top of a model's folder, without hidden files and the converted ones, that are not in another folder."""
    home: LocalFolder | ObjectFolder | None = LocalFolder(given.folder) if given.folder else None
    if given.store is not None:
        home = given.store if given.store.is_listed else given.found[0].home
    if target.is_file or target.joins or given.is_file or home is None:
        return []
    names: list[str] = []
    with suppress(OSError):
        names = home.names()
    if not any(name in names for name in _CONFIGS):
        return []
    sources = {os.path.basename(path) for part in parts for path in part.paths}
    return sorted(
        name
        for name in names
        if not name.startswith(".")
        and name not in sources
        and not _leads(name)
        and not os.path.exists(os.path.join(target.path, name))
    )


def others_of(
    given: Checkpoints, parts: list[Part], target: str, manifest: ManifestLike | None
) -> tuple[Copies, list[str]]:
    """The files to copy to `target`, by their paths in the folder that was given, and the paths of pickles, which are not copied.

    Left out are hidden files, the checkpoints that are converted, what leads to them (an index, `latest`), `target`, and pickles,
    which are told by extension and content. Of a link, the file that it leads to is copied. With a manifest, nothing is read that
    differs from it.

    Raises:
        FormatError: The manifest does not list one (code `ManifestMissing`), or lists another (`ManifestMismatch`).
        OSError: One, or a folder, cannot be read.
        ValueError: A link leads to a folder, or out of the folder that was given; in a Hugging Face cache, out of its blobs.
    """
    root = given.store or given.folder or "."
    pickles: list[str] = []
    found = _files(root, parts, target, pickles) if isinstance(root, str) else _objects(root, parts, pickles)
    if manifest is not None and found:
        found = _as_listed(found, root, manifest)
    pickled = in_parallel(_is_pickle, [source for _, source in found])
    pickles += [path for (path, _), is_pickle in zip(found, pickled, strict=True) if is_pickle]
    copies = [one for one, is_pickle in zip(found, pickled, strict=True) if not is_pickle]
    return copies, sorted(pickles)


def _files(root: str, parts: list[Part], target: str, pickles: list[str]) -> Copies:
    """The files below a folder that are not left out by their names; `pickles` gets the paths of those with the name of one."""
    sources = {os.path.realpath(path) for part in parts for path in part.paths}
    target = os.path.realpath(target)
    real_root = os.path.realpath(root)
    if target == real_root:
        return []
    allowed = [real_root, *_blobs(real_root)]
    found = []
    for folder, folders, names in walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(folder, name)) != target
        )
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in sorted([*names, *links]):
            path = os.path.join(folder, name)
            real = os.path.realpath(path)
            if name.startswith(".") or real in sources or _leads(name):
                continue
            relative = os.path.relpath(path, root)
            if os.path.splitext(name)[1].lower() in _PICKLES and name not in links:
                pickles.append(relative)
                continue
            mode = os.stat(path).st_mode
            is_inside = any(os.path.commonpath([real, one]) == one for one in allowed)
            if name in links or not is_inside:
                what = "a folder" if is_inside else "outside of the folder"
                text = f"would copy {real!r}, which is {what}: {path!r} is a link to it"
                note = "replace the link by what it leads to, or copy the other files yourself"
                raise _error("Value", text, note, argument="copy_others")
            if stat.S_ISREG(mode):
                found.append((relative, path))
    return found


def _objects(root: ObjectFolder, parts: list[Part], pickles: list[str]) -> Copies:
    """The same for a folder in a store."""
    sources = {path for part in parts for path in part.paths}
    found: Copies = []
    waiting = [("", root)]
    while waiting:
        prefix, folder = waiting.pop()
        names = [
            name
            for name in sorted(folder.names())
            if not name.startswith(".") and joined(folder.name, name) not in sources and not _leads(name)
        ]
        by_name = [name for name in names if os.path.splitext(name)[1].lower() in _PICKLES]
        pickles += [f"{prefix}{name}" for name in by_name]
        names = [name for name in names if name not in by_name]
        found += zip((f"{prefix}{name}" for name in names), in_parallel(folder.open, names), strict=True)
        if len(found) > LOOKUPS_MAX or len(waiting) > LOOKUPS_MAX:
            raise _error("Value", f"{root.name} has more than {LOOKUPS_MAX} files or folders")
        waiting += [
            (f"{prefix}{name}/", folder.subfolder(name))
            for name in sorted(folder.folders(), reverse=True)
            if not name.startswith(".")
        ]
    return found


def _leads(name: str) -> bool:
    """Whether a file leads to the source's files, which the target does not have."""
    return name in FOLDER_FILES or _INDEX.fullmatch(name) is not None


def _as_listed(copies: Copies, root: str | ObjectFolder, manifest: ManifestLike) -> Copies:
    """Files of a folder as objects that have only bytes with the digests of a manifest.

    Left out is the file of the manifest itself. Empty files need not be listed, as for `Manifest.unlisted`.

    Raises:
        FormatError: One is not listed (code `ManifestMissing`), or has another size (`ManifestMismatch`).
        OSError: One cannot be read.
    """
    if isinstance(root, str):
        own = file_of(manifest)
        copies = [(path, source) for path, source in copies if os.path.realpath(source) != own]
    named = {path.replace(os.sep, "/"): (path, source) for path, source in copies}
    files = dict(manifest_of(manifest, root).files)
    for name, (_, source) in named.items():
        if name not in files and not (os.path.getsize(source) if isinstance(root, str) else source.size):
            files[name] = Listed(None, _OF_NOTHING)
    listed = _rustload.Manifest([(name, *one) for name, one in files.items()])
    return [(path, listed.open(root, name)) for name, (path, _) in named.items()]


def _blobs(root: str) -> list[str]:
    """The folder of blobs, if `root` is in a snapshot of a Hugging Face cache: its files are links to blobs of the repository."""
    repository, snapshots, _ = root.rpartition("/snapshots/")
    blobs = os.path.join(repository, "blobs")
    return [blobs] if snapshots and os.path.isdir(blobs) else []


def _is_pickle(source: Any) -> bool:
    """Whether a file or an object is a pickle, or has one in it, as far as is known.

    Raises:
        FormatError: It differs from the manifest.
        OSError: It cannot be read.
    """
    scanned = [source] if isinstance(source, str) else (source, 0, source.name)
    (file,) = json.loads(_rustload.scan(scanned, _rustload.ScanOptions()))["files"]
    if file["status"] == "skipped":
        return False
    if file["status"] == "unreadable":
        # Read again for its own error, of which a report has the text alone.
        with open_regular(source) if isinstance(source, str) else Ranged(source) as opened:
            while opened.read(_BLOCK_BYTES):
                pass
        raise _error("Io", file["findings"][0]["message"])
    coverage = file["coverage"]
    return not coverage["complete"] or any("pickle" in one["kind"] for one in coverage["scanned"])
