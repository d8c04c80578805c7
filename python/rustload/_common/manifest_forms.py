"""The forms of manifests: statements of OpenSSF model signing, and lines of `sha256sum`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from rustload.errors import _error, _shown

DIGEST_BYTES = 32
IGNORED = (".git", ".gitattributes", ".github", ".gitignore")
"""Files and folders that model signing leaves out."""

MANIFEST_BYTES_MAX = 64 << 20
"""It bounds the digests too, to less than a million."""
_NAME_CHARS_MAX = 4096
_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://model_signing/signature/v1.0"
_PAYLOAD = "application/vnd.in-toto+json"
_HEX = re.compile(r"[0-9a-f]{64}")
_LINE = re.compile(r"([0-9A-Fa-f]+) [ *](.+)|SHA256 \((.+)\) = ([0-9A-Fa-f]+)")


class Listed(NamedTuple):
    """A file of a manifest.

    Attributes:
        pieces: Its size and that of its pieces, in bytes; None if only the digest of the whole is known.
        digests: The SHA-256 digests of its pieces, one after another.
    """

    pieces: tuple[int, int] | None
    digests: bytes


def files_of(given: Any, *, is_bundle_allowed: bool) -> dict[str, Listed]:
    """The files that a manifest lists, by name, from its content or its parsed JSON.

    What a Sigstore bundle lists is taken, if that is allowed, without verifying the signature.

    Raises:
        FormatError: It is not a manifest.
        TypeError: It is neither bytes nor a mapping.
        ValueError: It is a Sigstore bundle, which is not allowed.
    """
    if isinstance(given, Mapping):
        document: Any = given
    elif not isinstance(given, (bytes, bytearray, memoryview)):
        text = f"is a Manifest, a path, bytes or a dict, not a {type(given).__name__}"
        raise _error("Type", text, argument="manifest")
    else:
        if len(given) > MANIFEST_BYTES_MAX:
            raise _invalid(f"the manifest has more than {MANIFEST_BYTES_MAX} bytes")
        text = _decoded(bytes(given))
        if not text.lstrip().startswith("{"):
            return _sums(text)
        document = _parsed(text)
    if "dsseEnvelope" in document:
        if not is_bundle_allowed:
            raise _error(
                "Value",
                "is a Sigstore bundle, whose signature rustload does not verify",
                "verify it with model_signing, then pass rustload.Manifest(path, signature='ignore')",
                argument="manifest",
            )
        document = _payload(document)
    return _resources(document)


def _invalid(text: str) -> BaseException:
    return _error("ManifestInvalid", text)


def _decoded(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _error("ManifestInvalid", "the manifest is not UTF-8", offset=error.start) from None


def _parsed(text: str) -> Any:
    import json

    try:
        return json.loads(text, object_pairs_hook=_without_duplicates, parse_constant=_no_constant)
    except RecursionError:
        raise _invalid("the manifest is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _error("ManifestInvalid", f"the manifest is not JSON: {error.msg}", offset=error.pos) from None
    except ValueError as error:  # numbers with more digits than Python converts
        if getattr(error, "code", None):
            raise
        raise _invalid("the manifest has a number that is too long") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _invalid("the manifest has a key twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise _invalid(f"the manifest has the number {name}, which JSON has not")


def _payload(bundle: Mapping[str, Any]) -> Any:
    """The statement in a Sigstore bundle."""
    import base64
    import binascii

    envelope = _get(bundle, "dsseEnvelope", dict)
    if envelope.get("payloadType") != _PAYLOAD:
        raise _invalid("the bundle has no in-toto statement")
    try:
        content = base64.b64decode(_get(envelope, "payload", str), validate=True)
    except (binascii.Error, ValueError):
        raise _invalid("the payload of the bundle is not base64") from None
    return _parsed(_decoded(content))


def _get(of: Any, key: str, kind: type) -> Any:
    """A value of an object, which has to be of this type; a bool is no int."""
    value = of.get(key) if isinstance(of, Mapping) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _invalid(f"the manifest has no {key}, or not one of type {kind.__name__}")
    return value


def _resources(document: Any) -> dict[str, Listed]:
    """The files of a statement."""
    if _get(document, "_type", str) != _STATEMENT or _get(document, "predicateType", str) != _PREDICATE:
        raise _invalid("the manifest is not a statement of model signing, version 1.0")
    subjects = _get(document, "subject", list)
    if len(subjects) != 1:
        raise _invalid(f"the statement has {len(subjects)} subjects, not 1")
    root = _digest(_get(_get(subjects[0], "digest", dict), "sha256", str))
    predicate = _get(document, "predicate", dict)
    how = _get(predicate, "serialization", dict)
    method = _get(how, "method", str)
    if method not in ("files", "shards"):
        raise _invalid(f"the method of the statement is {_shown(method)!r}, not 'files' or 'shards'")
    if _get(how, "hash_type", str) != "sha256":
        raise _invalid(f"the hash of the statement is {_shown(how['hash_type'])!r}, not 'sha256'")
    resources = _get(predicate, "resources", list)
    algorithms = ["sha256"]
    piece = None
    if method == "shards":
        size = how.get("shard_size")
        # Protobuf, which writes the statement in a bundle, has no integers.
        piece = int(size) if isinstance(size, float) and size.is_integer() else _get(how, "shard_size", int)
        if not 0 < piece < 1 << 63:
            raise _invalid("the shard size of the statement is not a size")
        algorithms.append(f"sha256-sharded-{piece}")
    found = _Files(piece)
    whole = hashlib.sha256()
    for resource in resources:
        algorithm = _get(resource, "algorithm", str)
        if algorithm not in algorithms:
            raise _invalid(f"the algorithm of a digest is {_shown(algorithm)!r}, not {algorithms[-1]!r}")
        digest = _digest(_get(resource, "digest", str))
        whole.update(digest)
        found.add(_get(resource, "name", str), digest)
    if whole.digest() != root:
        raise _invalid("the digest of the statement's subject is not that of its resources")
    return found.listed()


class _Files:
    """Collects the files of a statement, whose pieces come one after another."""

    def __init__(self, piece: int | None) -> None:
        self._piece = piece
        self._found: dict[str, tuple[int, bytearray]] = {}
        self._last: str | None = None

    def add(self, name: str, digest: bytes) -> None:
        start = end = 0
        if self._piece is not None:
            name, *numbers = name.rsplit(":", 2)
            if len(numbers) != 2 or not all(_is_offset(number) for number in numbers):
                raise _invalid(f"a shard has the name {_shown(name)!r}, not of the form path:start:end")
            start, end = map(int, numbers)
        size, digests = self._found.get(name, (0, bytearray()))
        if not digests:
            _plain(name)
        elif self._piece is None or name != self._last:
            raise _invalid(f"the manifest lists {_shown(name)!r} twice")
        if self._piece is not None and (
            start != size or size % self._piece or not 0 < end - start <= self._piece
        ):
            text = f"the shards of {_shown(name)!r} are not one after another: one begins at {start}, after {size}"
            raise _invalid(text)
        digests += digest
        self._found[name] = (end, digests)
        self._last = name

    def listed(self) -> dict[str, Listed]:
        return {
            name: Listed(None if self._piece is None else (size, self._piece), bytes(digests))
            for name, (size, digests) in self._found.items()
        }


def _sums(text: str) -> dict[str, Listed]:
    """The files of lines of `sha256sum` (text or binary), or of BSD's `shasum --tag`."""
    found: dict[str, Listed] = {}
    for number, one in enumerate(text.split("\n"), 1):
        line = one.removesuffix("\r")
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            escaped = ", because its name is escaped" if line.startswith("\\") else ""
            raise _invalid(
                f"line {number} of the manifest is not one of sha256sum that rustload reads{escaped}"
            )
        name = _plain((match[2] or match[3]).removeprefix("./"))
        if name in found:
            raise _invalid(f"the manifest lists {_shown(name)!r} twice")
        found[name] = Listed(None, _digest((match[1] or match[4]).lower()))
    if not found:
        raise _invalid("the manifest is empty")
    return found


def _digest(text: str) -> bytes:
    if _HEX.fullmatch(text) is None:
        raise _invalid(f"{_shown(text)!r} is not a SHA-256 digest of 64 lower-case hexadecimal digits")
    return bytes.fromhex(text)


def _is_offset(text: str) -> bool:
    """Whether it is a canonical decimal number below 2**63."""
    is_decimal = text.isascii() and text.isdigit() and len(text) <= 19 and (text == "0" or text[0] != "0")
    return is_decimal and int(text) < 1 << 63


def _plain(name: str) -> str:
    """The name, if it is that of a file in the folder or below, in any file system.

    Raises:
        FormatError: It is not.
    """
    is_plain = (
        len(name) <= _NAME_CHARS_MAX
        and not any(char in name for char in "\\:\0\n\r")
        and not {"", ".", ".."} & {*name.split("/")}
    )
    if not is_plain:
        raise _invalid(f"{_shown(name)!r} is not the plain name of a file in the folder")
    return name
