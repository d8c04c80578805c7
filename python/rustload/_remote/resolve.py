"""What a user gave, as a source that is read by ranges, or a folder of such, if it is a URL or a file of fsspec."""

from __future__ import annotations

from rustload._remote.folder import ObjectFolder, ObjectList
from rustload._remote.urls import (
    DEFAULT_SCHEMES,
    allowed_schemes,
    check_options,
    check_scheme,
    is_url,
    name_of,
    unavailable,
)
from rustload.errors import _error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import Any


def remote_source(
    given: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    remote: Collection[str] = DEFAULT_SCHEMES,
) -> Any:
    """A source or an `ObjectFolder` for a URL, a list of URLs, and an open file of fsspec that is not a local file.

    An `OpenFile` of fsspec with a compression is read into memory. Anything else is unchanged. A URL of the Hugging Face Hub is a
    path in the local cache if HF_HUB_OFFLINE is set.

    Args:
        given: Anything.
        storage_options: What the file system of a URL is made with.
        remote: The schemes that are allowed in URLs.

    Raises:
        LimitError: An `OpenFile` with a compression has more than half of the available memory.
        OSError: The object does not exist, cannot be read, or has no known size.
        TypeError: An `OpenFile` is not in mode `"rb"`.
        UnsupportedError: A package is not installed, or a list of shards has a folder.
        ValueError: The scheme of a URL is not allowed; or there are storage options, and `given` is not a URL.
    """
    commits: dict[tuple[str, ...], str] = {}
    if is_url(given):
        return _at_url(given, check_options(storage_options), remote, commits)
    if isinstance(given, (list, tuple)) and any(is_url(one) or hasattr(one, "read_ranges") for one in given):
        return _shards(given, check_options(storage_options), remote, commits)
    if storage_options is not None:
        raise _error("Value", "is for URLs", argument="storage_options")
    fs: Any = getattr(given, "fs", None)
    path = getattr(given, "path", None)
    if not (isinstance(path, str) and hasattr(fs, "cat_file") and hasattr(fs, "unstrip_protocol")):
        return given
    mode = getattr(given, "mode", "rb")
    if getattr(given, "compression", None) is not None or mode != "rb":
        if hasattr(given, "read"):
            return given
        from rustload._common.files import read_to_end, text_mode

        if mode != "rb":
            raise text_mode()
        with given as file:  # whose bytes are not those at the path
            return read_to_end(file)
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)
    if "file" in protocols:
        return given if hasattr(given, "read") else path
    from rustload._remote.fsspec_folder import from_path

    return from_path(fs, path, commits=commits)


def _at_url(
    url: str, options: dict[str, Any], remote: Collection[str], commits: dict[tuple[str, ...], str]
) -> Any:
    """The file or folder at a URL; pages of the Hugging Face Hub are taken for what they show."""
    from rustload._remote.hub import cached, hub_url, is_offline

    scheme = check_scheme(url, remote)
    if scheme in ("http", "https") and "hf" in allowed_schemes(remote):
        url = hub_url(url)
        scheme = check_scheme(url, remote)
    if scheme == "hf" and is_offline():
        return cached(url)
    if scheme in ("http", "https"):
        try:
            from rustload._remote.web_folder import from_web
        except ImportError:
            raise unavailable(scheme) from None
        return from_web(url, options)
    from rustload._remote.fsspec_folder import from_url

    return from_url(url, scheme, options, commits)


def _shards(
    given: Any, options: dict[str, Any], remote: Collection[str], commits: dict[tuple[str, ...], str]
) -> Any:
    """The shards of one checkpoint, each a URL or a source."""
    from rustload._common.waiting import in_parallel

    others = [one for one in given if not (is_url(one) or hasattr(one, "read_ranges"))]
    if others:
        text = f"a list of shards has URLs and a {type(others[0]).__name__}"
        raise _error("RemoteScheme", text, "give all as URLs, or all as paths")
    # The first alone, so that the commit of a revision is known for the others.
    urls = [one for one in given if is_url(one)]
    found = {url: _at_url(url, options, remote, commits) for url in urls[:1]}
    rest = in_parallel(lambda url: _at_url(url, options, remote, commits), urls[1:])
    found.update(zip(urls[1:], rest, strict=True))
    sources = [found[one] if is_url(one) else one for one in given]
    if all(isinstance(one, str) for one in sources):  # in the local cache
        return sources
    for url, source in zip(given, sources, strict=True):
        if isinstance(source, str):
            text = f"{name_of(url)} is read from the local cache (HF_HUB_OFFLINE), and other shards are not"
            raise _error("RemoteScheme", text, "give all as URLs of the Hub, or all as paths")
        if isinstance(source, ObjectFolder):
            text = f"{name_of(url)} is a folder or an index, which a list of shards cannot have"
            raise _error("RemoteFolder", text)
    return ObjectList(sources)
