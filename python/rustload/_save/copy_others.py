"""The other files of a checkpoint's folder: configurations, tokenizers. Pickles are not copied."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING

from rustload import _rustload

if TYPE_CHECKING:
    from rustload._save.part import Part

__all__ = ["other_files"]

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
_INDEX = re.compile(r".+\.(bin|safetensors)\.index(\..+)?\.json")


def other_files(root: str, parts: list[Part], target: str) -> list[tuple[str, str]]:
    """The files below `root` to copy: their paths from there, and their paths.

    Left out are hidden files, the checkpoints that are converted, indexes, `target`, and pickles, which are told by extension and
    content.
    """
    sources = {os.path.realpath(path) for part in parts for path in part.paths}
    target = os.path.realpath(target)
    if target == os.path.realpath(root):
        return []
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(folder, name)) != target  # noqa: PTH118
        )
        for name in sorted(names):
            path = os.path.join(folder, name)  # noqa: PTH118
            if name.startswith(".") or not os.path.isfile(path):  # noqa: PTH113
                continue
            is_weights = os.path.realpath(path) in sources or _INDEX.fullmatch(name)
            if not is_weights and not _is_pickle(path):
                found.append((os.path.relpath(path, root), path))
    return found


def _is_pickle(path: str) -> bool:
    """Whether a file is a pickle, or has one in it, as far as is known."""
    if os.path.splitext(path)[1].lower() in _PICKLES:  # noqa: PTH122 - pathlib is slow to import
        return True
    (file,) = json.loads(_rustload.scan_paths([path], limits={}, allow=[], exclude=[]))["files"]
    if file["status"] == "skipped":
        return False
    coverage = file["coverage"]
    return not coverage["complete"] or any("pickle" in one["kind"] for one in coverage["scanned"])
