"""What a user gave, as a source that is read by ranges if it is a URL or a file of fsspec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._remote.urls import DEFAULT_SCHEMES, check_options, check_scheme, is_url, name_of
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["remote_source"]


def remote_source(
    given: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    remote: Collection[str] = DEFAULT_SCHEMES,
) -> Any:
    """A source for a URL, and for an open file of fsspec that is no local file; anything else unchanged.

    Args:
        given: Anything.
        storage_options: What the file system of a URL is made with.
        remote: The schemes that are allowed in URLs.

    Raises:
        OSError: The object does not exist, cannot be read, or has no known size.
        UnsupportedError: A package is not installed, or it is a folder.
        ValueError: The scheme of a URL is not allowed; or there are storage options, and `given` is no URL.
    """
    if is_url(given):
        scheme = check_scheme(given, remote)
        options = check_options(storage_options)
        from rustload._remote.fsspec_ranges import from_url

        return from_url(given, scheme, options)
    if storage_options is not None:
        raise _make("Value", "Value", "storage_options= is for URLs")
    if isinstance(given, (list, tuple)) and any(map(is_url, given)):
        url = next(filter(is_url, given))
        raise _make(
            "Value",
            "RemoteScheme",
            f"{name_of(url)}: URLs are not taken in a list",
            "open each file by itself; rustload.save writes what several of them hold",
        )
    fs: Any = getattr(given, "fs", None)
    path = getattr(given, "path", None)
    if not (isinstance(path, str) and hasattr(fs, "cat_file") and hasattr(fs, "unstrip_protocol")):
        return given
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
    if "file" in protocols:
        return given if hasattr(given, "read") else path
    if getattr(given, "compression", None) is not None or getattr(given, "mode", "rb") != "rb":
        return given
    from rustload._remote.fsspec_ranges import from_file

    return from_file(fs, path)
