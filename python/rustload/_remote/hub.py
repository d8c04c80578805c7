"""Files of the Hugging Face Hub: the forms of their URLs, the commit that a revision is at, and the local cache."""

from __future__ import annotations

import errno
import os
import re
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from rustload._common.hub import cached_repository, snapshot_of
from rustload._remote.urls import name_of
from rustload.errors import _error

_PREFIXES = {"dataset": "datasets/", "space": "spaces/", "kernel": "kernels/"}
"""What comes before the name of a repository that is not a model."""

_TRUE = ("1", "ON", "YES", "TRUE")

_WEB = re.compile(
    r"/(?P<kind>datasets/|spaces/|models/)?(?P<id>[^/]+/[^/]+)"
    r"(?:/(?P<route>blob|resolve|raw|tree)/(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+)(?:/(?P<path>.*))?)?/?"
)
"""The path of a page or a file on the website. huggingface_hub's `parse_hf_uri` takes the same."""

_NO_REPOSITORIES = frozenset(
    {"api", "blog", "collections", "docs", "join", "papers", "posts", "settings", "tasks", "buckets"}
)
"""First parts of other pages."""


def hub_url(url: str) -> str:
    """The `hf://` URL of a page or a file on the website of the Hub; other URLs unchanged.

    Without huggingface_hub, the URL of a file (`/resolve/`) is unchanged too: any file system for the web can read it.
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may have a part of a password
        return url
    hosts = {"huggingface.co", "hf.co", urlsplit(os.environ.get("HF_ENDPOINT", "")).netloc} - {""}
    matched = _WEB.fullmatch(parts.path)
    if parts.scheme not in ("https", "http") or parts.netloc not in hosts or matched is None:
        return url
    kind, name = matched["kind"] or "", unquote(matched["id"])
    if name.partition("/")[0] in _NO_REPOSITORIES or (
        not kind and name.partition("/")[0] in ("datasets", "spaces")
    ):
        return url
    if matched["route"] in ("resolve", "raw") and find_spec("huggingface_hub") is None:
        return url
    revision = f"@{quote(unquote(matched['revision']), safe='')}" if matched["revision"] else ""
    path = f"/{unquote(matched['path'])}" if matched["path"] else ""
    return f"hf://{'' if kind == 'models/' else kind}{name}{revision}{path}"


def pinned(fs: Any, path: str, commits: dict[tuple[str, ...], str]) -> str:
    """The path at the commit that its revision is at; paths of buckets, which have no revisions, unchanged.

    `commits` are those of revisions that the call has resolved, so that all its files are of one.
    """
    found = fs.resolve_path(path)
    if not hasattr(found, "repo_id"):
        return path
    key = (str(found.repo_type), str(found.repo_id), str(found.revision))
    if key not in commits:
        from huggingface_hub import HfApi

        api = getattr(fs, "_api", None) or HfApi()
        commits[key] = api.repo_info(found.repo_id, repo_type=found.repo_type, revision=found.revision).sha
    prefix = _PREFIXES.get(found.repo_type, "")
    return f"{prefix}{found.repo_id}@{commits[key]}/{found.path_in_repo}".rstrip("/")


def is_offline() -> bool:
    """Whether the environment forbids requests to the Hub, by the variables that huggingface_hub reads."""
    text = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return text.upper() in _TRUE


def cached(url: str) -> str:
    """The path in the local cache of the file or folder at an `hf://` URL.

    Raises:
        FileNotFoundError: It is not there.
        ValueError: It is not a URL of a repository.
    """
    kind, name, revision, path = _parse(url)
    repository = cached_repository(f"{kind}s--{name.replace('/', '--')}")
    snapshot = None if repository is None else snapshot_of(repository, revision)
    if snapshot is not None and os.path.exists(found := os.path.join(snapshot, *path)):
        return found
    note = "HF_HUB_OFFLINE is set, so only the local cache is read, and it is not there: unset it, or download it first"
    raise _error("Io", "", note, errno=errno.ENOENT, path=name_of(url))


def _parse(url: str) -> tuple[str, str, str, list[str]]:
    """The kind of the repository, its name, the revision and the path of `hf://[datasets/|spaces/]<id>[@<revision>][/<path>]`."""
    rest = url.partition("://")[2].strip("/")
    kind = "model"
    for one, prefix in (*_PREFIXES.items(), ("model", "models/")):
        if rest.startswith(prefix):
            kind, rest = one, rest.removeprefix(prefix)
    matched = re.fullmatch(
        r"(?P<id>[^/@]+(?:/[^/@]+)?)(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?(?:/(?P<path>.*))?",
        rest,
    )
    revision = unquote(matched["revision"] or "main") if matched else ""
    path = (matched["path"] or "").split("/") if matched and matched["path"] else []
    parts = [*(matched["id"].split("/") if matched else [""]), *revision.split("/"), *path]
    if rest.startswith("buckets/") or any(part in ("", ".", "..") or "\0" in part for part in parts):
        note = "a repository is hf://ORGANIZATION/NAME"
        raise _error("RemoteScheme", f"{name_of(url)}: no path in a repository of the Hub", note)
    return kind, matched["id"] if matched else "", revision, path
