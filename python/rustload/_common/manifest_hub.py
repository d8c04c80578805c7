"""The digests that the Hugging Face Hub states: in its API, and for downloaded files in names of blobs, and metadata."""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, Any

from rustload._common.files import head_of
from rustload._common.hub import hub_snapshot
from rustload._common.manifest_forms import DIGEST_BYTES, Listed
from rustload._common.waiting import in_parallel
from rustload.errors import FormatError, _error

if TYPE_CHECKING:
    from collections.abc import Iterable

_NO_DIGEST = bytes(DIGEST_BYTES)
"""That of a file whose bytes are not those of the Hub: nothing is known to have it."""

_ETAG = re.compile(r"[0-9a-f]{64}|[0-9a-f]{40}")
_METADATA = (".cache", "huggingface", "download")
_METADATA_BYTES_MAX = 1 << 10
_SMALL_FILE_BYTES_MAX = 64 << 20
"""The Hub keeps files of more than 10 MB by their SHA-256."""


def hub_files(paths: Iterable[str]) -> dict[str, Listed]:
    """The files in one folder whose digests the Hub has stated, by name.

    A file in the cache is a link to a blob, whose name is the SHA-256 of its content, or git's SHA-1 for a small file. For a
    `local_dir`, the same is in `.cache/huggingface/download`. A small file is read once: if it has its SHA-1, later reads are
    compared with what was read.

    Args:
        paths: The folder, or files in it.

    Raises:
        FormatError: A small one is not a regular file.
        OSError: A file cannot be read.
        ValueError: There are no such digests, or the files are in several folders.
    """
    given = [hub_snapshot(os.fsdecode(path)) for path in paths]
    folders = {path if os.path.isdir(path) else os.path.dirname(path) for path in given}
    found: dict[str, Listed] = {}
    if len(folders) == 1:
        folder = folders.pop() or "."
        for name in _names(folder):
            path = os.path.join(folder, name)
            etag = _blob(path) or _stated(folder, name)
            if etag is not None:
                found[name] = Listed(None, _sha256(path, etag))
    if not found:
        text = "is 'hf', and neither the cache of the Hub nor a folder downloaded from it has these files"
        raise _error("Value", text, argument="manifest")
    return found


def folder_files(folder: Any) -> dict[str, Listed]:
    """The files of an `ObjectFolder` of the Hub and below, with the digests of its API; small ones are read (`hub_files`).

    Raises:
        OSError: The Hub cannot be read.
        ValueError: It states no digests.
    """
    found: dict[str, Listed] = {}
    small = []
    for one in folder.all_folders(lambda _: False)[0]:
        prefix = one.name[len(folder.name) :].lstrip("/")
        for name, (size, etag) in one.hub_etags().items():
            path = f"{prefix}/{name}" if prefix else name
            if len(etag) == 2 * DIGEST_BYTES:
                found[path] = Listed(None, bytes.fromhex(etag))
            elif size <= _SMALL_FILE_BYTES_MAX:
                small.append((path, one, name, size, etag))

    def read(file: tuple[str, Any, str, int, str]) -> tuple[str, Listed]:
        path, one, name, size, etag = file
        (content,) = one.open(name).read_ranges([(0, size)])
        return path, Listed(None, _of_content(bytes(content), etag))

    found |= dict(in_parallel(read, small))
    if not found:
        raise _error(
            "Value", "is 'hf', and this folder is not one of the Hub with digests", argument="manifest"
        )
    return found


def _names(folder: str) -> list[str]:
    """The files in a folder and below."""
    names = []
    for at, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one not in (".cache", ".git")]
        names += [os.path.relpath(os.path.join(at, file), folder).replace(os.sep, "/") for file in files]
    return sorted(names)


def _blob(path: str) -> str | None:
    """The name of the blob that a file of the cache is; None if it is none."""
    try:
        folder, name = os.path.split(os.path.realpath(path) if os.path.islink(path) else "")
    except OSError:
        return None
    is_blob = os.path.basename(folder) == "blobs" and _ETAG.fullmatch(name)
    return name if is_blob else None


def _stated(folder: str, name: str) -> str | None:
    """The etag in the metadata of a `local_dir`, which is this folder or one above; None if there is none."""
    folder = os.path.abspath(folder)
    while True:
        try:
            stated = head_of(os.path.join(folder, *_METADATA, f"{name}.metadata"), _METADATA_BYTES_MAX)
            lines = stated.decode("ascii", "replace").split("\n")
        except (OSError, FormatError):
            above, last = os.path.split(folder)
            if not last:
                return None
            folder, name = above, f"{last}/{name}"
            continue
        etag = lines[1].strip() if len(lines) > 1 else ""
        return etag if _ETAG.fullmatch(etag) else None


def _sha256(path: str, etag: str) -> bytes:
    """The SHA-256 that a file has to have, by its etag."""
    if len(etag) == 2 * DIGEST_BYTES:
        return bytes.fromhex(etag)
    return _of_content(head_of(path, _SMALL_FILE_BYTES_MAX + 1), etag)


def _of_content(content: bytes, etag: str) -> bytes:
    """The SHA-256 of a small file, if it has git's SHA-1."""
    blob = hashlib.sha1(b"blob %d\0" % len(content), usedforsecurity=False)
    blob.update(content)
    if len(content) > _SMALL_FILE_BYTES_MAX or blob.hexdigest() != etag:
        return _NO_DIGEST
    return hashlib.sha256(content).digest()
