"""Objects and folders in stores, which `open`, `scan`, `safe_open`, `convert`, `diff` and `rustload.torch` take.

urllib3, fsspec or obstore sends the requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rustload._common.files import Ranges
    from rustload._remote.folder import ObjectFolder

__all__ = ["fsspec", "obstore"]


def fsspec(url: str, **storage_options: Any) -> Ranges | ObjectFolder:
    """The object or the folder at a URL, with any scheme: `http` and `https` by urllib3, others by a file system of fsspec.

    Args:
        url: Its URL. Messages show it without user information, query and fragment.
        **storage_options: What fsspec makes the file system with; for web servers, `headers` and a few more.
            No message shows them.

    Raises:
        OSError: It does not exist, cannot be read, or has no known size.
        UnsupportedError: A package is not installed.
        ValueError: It is not a URL, or an option for a web server is not known.
    """
    from rustload._remote.resolve import remote_source
    from rustload._remote.urls import is_url
    from rustload.errors import _error

    if not is_url(url):
        raise _error("RemoteScheme", "the URL has no scheme", "pass a str such as 's3://bucket/key'")
    scheme = url.partition("://")[0].lower()
    return remote_source(url, storage_options=storage_options, remote=(scheme,))  # type: ignore[no-any-return]


def obstore(store: Any, path: str) -> Ranges | ObjectFolder:
    """The object or the folder at `path` of a store of obstore.

    Args:
        store: Any store of `obstore.store`.
        path: The object's path in the store; that of a folder ends with `/`, and the whole store is `""`.

    Raises:
        OSError: It does not exist, or cannot be read.
        UnsupportedError: obstore is not installed.
    """
    from rustload._remote.obstore_ranges import from_store

    return from_store(store, path)
