"""URLs of objects: which schemes are taken, the package of each, and the name that messages show."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from rustload.errors import _error, _pass, _printable, _Remedy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENVIRONMENT = "RUSTLOAD_REMOTE"
"""The environment variable with the default schemes of this process, separated by commas; empty for none."""

PACKAGES = {
    "abfs": "adlfs",
    "az": "adlfs",
    "gcs": "gcsfs",
    "gs": "gcsfs",
    "hf": "huggingface_hub",
    "http": "urllib3>=2",
    "https": "urllib3>=2",
    "memory": "fsspec",
    "s3": "s3fs",
}
"""The package to install for each scheme."""

SCHEME = r"[A-Za-z][A-Za-z0-9+.\-]*"
"""The regular expression of a scheme (RFC 3986)."""

DEFAULT_SCHEMES = frozenset(PACKAGES) - {"http"}
"""What `remote=` allows by default; `http` has no encryption, so it must be named."""


def is_url(given: object) -> bool:
    """Whether it is a `str` with a scheme. Objects of `pathlib` are paths."""
    return isinstance(given, str) and _scheme_of(given) != ""


def _scheme_of(text: str) -> str:
    """The scheme that it begins with, or a chain of schemes; empty for a path."""
    if "://" not in text:
        return ""
    import re  # takes longer than opening a file

    found = re.match(f"({SCHEME}(?:::{SCHEME})*)://", text)
    return found[1] if found else ""


def check_scheme(url: str, remote: Collection[str], *, by_fsspec: bool = False) -> str:
    """The scheme of a URL.

    Args:
        url: A URL.
        remote: The schemes that are allowed.
        by_fsspec: Whether fsspec opens URLs of web servers too: it divides any URL at `::`, as in the host `[::1]`.

    Raises:
        TypeError: `remote` is not a collection of schemes.
        ValueError: The scheme is not allowed, or the URL is chained.
    """
    remote = allowed_schemes(remote)
    scheme = _scheme_of(url).lower()
    note: str | _Remedy
    if "::" in url and (by_fsspec or scheme not in ("http", "https")):
        note = "open it with fsspec.open(...), and pass what that returns"
        raise _error("RemoteScheme", f"{name_of(url)}: chained URLs are not taken", note)
    if scheme in remote:
        return scheme
    if scheme == "file":
        note = "pass the path without file://"
    elif scheme in PACKAGES:
        note = _pass("remote", "to rustload.open to allow it", value=(scheme,))
    else:
        note = f"known are {', '.join(sorted(PACKAGES))}; for others pass rustload.remote.fsspec(url)"
    raise _error("RemoteScheme", f"{name_of(url)}: the scheme {scheme!r} is not allowed", note)


def allowed_schemes(remote: Collection[str]) -> Collection[str]:
    """The schemes that `remote=` allows; the default is what the environment allows.

    Raises:
        TypeError: It is not a collection of schemes.
    """
    if isinstance(remote, (str, Mapping)) or not isinstance(remote, Collection):
        raise _error(
            "Type", f"is a collection of schemes, such as ('https',), not {remote!r}", argument="remote"
        )
    limited = os.environ.get(ENVIRONMENT)
    if remote is DEFAULT_SCHEMES and limited is not None:
        return {scheme.strip().lower() for scheme in limited.split(",")} - {""}
    return remote


def check_environment(url: str) -> None:
    """Checks a URL that another program would open whatever its scheme is, if the environment limits the schemes.

    Raises:
        ValueError: The environment does not allow the scheme, or the URL is chained.
    """
    if ENVIRONMENT in os.environ:
        check_scheme(url, DEFAULT_SCHEMES, by_fsspec=True)


def name_of(url: str) -> str:
    """The URL without user information, query and fragment, which may be secrets; of chained URLs, each without them."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return _printable(url.partition("?")[0].partition("#")[0])
    import re

    chain = re.split(f"::(?={SCHEME}://)", url)
    if len(chain) > 1:
        return "::".join(map(name_of, chain))
    host, slash, path = rest.partition("?")[0].partition("#")[0].partition("/")
    host = host.rpartition("@")[2]
    # What follows the host is a port or, in a malformed URL, the rest of a password, which may go on behind a slash.
    if malformed := re.search(r":(?!\d{1,5}$)[^\]]*$", host):
        _, has_user, rest = path.rpartition("@")
        return name_of(f"{scheme}://{rest if has_user else host[: malformed.start()]}")
    return _printable(f"{scheme}://{host}{slash}{path}")


def shown_path(path: str) -> str:
    """A path as it is; a URL without its secrets."""
    return name_of(path) if is_url(path) else path


def local_path(given: Any, *, is_read: bool = False) -> str:
    """The path of a file or a folder that is on a disk.

    Raises:
        ValueError: It is a URL.
    """
    if is_url(given):
        text = "files are not written to URLs"
        note = "write to a disk, and copy what was written to the store"
        if is_read:
            text, note = "this file is not read from a URL", "download it, and pass its path"
        raise _error("RemoteScheme", f"{name_of(given)}: {text}", note)
    return os.fsdecode(given)


def unavailable(scheme: str) -> BaseException:
    """The error for a scheme whose package is not installed."""
    package = PACKAGES.get(scheme)
    note = f"pip install {package!r}" if package and ">" in package else f"pip install {package or 'fsspec'}"
    what = f"{scheme}:// needs {package}" if package else f"fsspec has no file system for {scheme}://"
    return _error("RemoteUnavailable", f"{what}, which is not installed" if package else what, note)


def check_options(given: Any) -> dict[str, Any]:
    """The storage options as a dict. They may hold secrets, so that no message shows them.

    Raises:
        TypeError: They are not a mapping.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _error("Type", f"is a mapping, not a {type(given).__name__}", argument="storage_options")
    return dict(given)
