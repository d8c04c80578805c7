"""The URIs of scanned files in a SARIF log: relative to the root of the repository where they are in it."""

from __future__ import annotations

import os
from urllib.parse import quote

from rustload._remote.urls import is_url, name_of


def artifact_uri(path: str | None, root: str) -> str:
    """The URI of a file, percent-encoded; a URL is without its secrets.

    Code scanning follows no links, so folders that are links are resolved. A link to a file in `root` is replaced by that file; a
    link to elsewhere, such as one into a cache, keeps its own name.

    Args:
        path: The path in the report: None for bytes in memory, `-` for standard input.
        root: The folder that URIs are relative to, with links resolved.
    """
    if path is None:
        return "urn:rustload:bytes"
    if path == "-":
        return "urn:rustload:stdin"
    if is_url(path):
        return quote(name_of(path), safe=":/@[]%")
    folder, name = os.path.split(os.path.abspath(path))
    real = os.path.join(os.path.realpath(folder), name)
    target = os.path.realpath(real)
    if target != real and _inside(target, root):
        real = target
    if _inside(real, root):
        return quote(os.fsencode(os.path.relpath(real, root).replace(os.sep, "/")))
    return "file://" + quote(os.fsencode(real))


def is_outside(uri: str) -> bool:
    """Whether the URI is of a local file outside of the root."""
    return uri.startswith("file://")


def _inside(path: str, root: str) -> bool:
    return path.startswith(root.rstrip(os.sep) + os.sep)
