"""Folders of repositories in the Hugging Face cache: `refs/<name>` holds a commit hash, `snapshots/<commit>` the files."""

from __future__ import annotations

import os

_COMMIT_MAX_BYTES = 64
"""The most bytes of a reference: a SHA-256 in hexadecimal; git's SHA-1 has 40."""


def hub_snapshot(path: str) -> str:
    """The snapshot folder, if `path` is the folder of a repository in the cache; otherwise `path` unchanged.

    It is the one that `refs/main` names, or the only one.
    """
    if "models--" not in path or not os.path.basename(os.path.normpath(path)).startswith("models--"):
        return path
    names = snapshot_names(path)
    main = commit_of(path, "main")
    if main in names:
        names = [main]
    return os.path.join(path, "snapshots", names[0]) if len(names) == 1 else path


def snapshot_names(repository: str) -> list[str]:
    """The names of the snapshot folders; links are none."""
    try:
        with os.scandir(os.path.join(repository, "snapshots")) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def snapshot_of(repository: str, revision: str) -> str | None:
    """The snapshot folder of a revision, which is a reference or a commit; None if it is not there."""
    commit = commit_of(repository, revision) or revision
    return os.path.join(repository, "snapshots", commit) if commit in snapshot_names(repository) else None


def commit_of(repository: str, reference: str) -> str:
    """The text of `refs/<reference>`; empty if it is not a regular file or longer than a commit hash."""
    from rustload._common.files import head_of

    path = os.path.join(repository, "refs", reference)
    try:
        content = head_of(path, _COMMIT_MAX_BYTES + 1)
    except (OSError, ValueError):
        return ""
    return os.fsdecode(content).strip() if len(content) <= _COMMIT_MAX_BYTES else ""


def hub_cache_folder(name: str) -> str | None:
    """The folder of a repository in the Hugging Face cache, by its name `org/model`; None if it is not there."""
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        return None
    return cached_repository("models--" + name.replace("/", "--"))


def cached_repository(folder: str) -> str | None:
    """A repository in the Hugging Face cache, by the name of its folder; None if it is not there."""
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    old_name = os.environ.get("HUGGINGFACE_HUB_CACHE")
    cache = os.environ.get("HF_HUB_CACHE") or old_name or os.path.join(home, "hub")
    found = os.path.join(os.path.expandvars(os.path.expanduser(cache)), folder)
    return found if os.path.isdir(found) else None
