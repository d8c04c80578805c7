"""The reference's words for a broken safetensors header.

rustload's core has refused the file; its error says what is wrong, and where, better than the reference does. But programs
read the reference's text, so this looks at the header once more and words the first fault that the reference meets: the
length, UTF-8, JSON, the metadata, the tensors' fields, their offsets. Nothing here accepts anything, and what it does not
find a text for keeps the core's.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rustload.errors import RustloadError

__all__ = ["words"]

PREFIX = "Error while deserializing header: "
MAX_HEADER = 100_000_000

# Longer headers keep the core's words: parsing them here costs several times their size in memory.
MAX_REREAD = 16 << 20

# Bits per element, in the order in which the reference lists the codes.
BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}

TORCH_SUFFIXES = (".bin", ".ckpt", ".pt", ".pth", ".pkl", ".tar")


class Pairs(list[tuple[str, Any]]):
    """A JSON object with all its pairs."""


class Broken(Exception):  # noqa: N818 - it carries a text out of the walk and is never raised to users
    """The reference's text."""


class Info(NamedTuple):
    """A tensor whose fields are well-formed."""

    dtype: str
    shape: list[int]
    begin: int
    end: int


def words(path: str, cause: RustloadError) -> str | None:
    """What the reference says of the file; None where it is none of safetensors', or the reference takes no offence."""
    unknown = cause.code == "UnknownFormat" and not path.lower().endswith(TORCH_SUFFIXES)
    if not (unknown or cause.code.startswith("St") or cause.code == "TensorShape"):
        return None
    try:
        _judge(cause.path or path, cause)
    except Broken as broken:
        return PREFIX + str(broken)
    except (OSError, RecursionError):
        pass
    return None


def _judge(path: str, cause: RustloadError) -> None:
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        if len(head) < 8:
            raise Broken("header too small")
        length = int.from_bytes(head, "little")
        if length > MAX_HEADER:
            raise Broken("header too large")
        if length + 8 > size:
            raise Broken("invalid header length")
        if length > MAX_REREAD:
            return
        raw = file.read(length)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        kind = "incomplete utf-8 byte sequence" if error.reason == "unexpected end of data" else None
        kind = kind or f"invalid utf-8 sequence of {error.end - error.start} bytes"
        raise Broken(f"invalid UTF-8 in header: {kind} from index {error.start}") from None
    try:
        tensors = _tensors(text)
    except ValueError:
        raise _syntax(text, cause) from None
    if tensors is not None:
        _check_offsets(tensors, size - 8 - length)


def _json(what: str, text: str, position: int) -> Broken:
    """An error in the JSON, at the place that serde_json counts: lines from 1, bytes read of the line."""
    return _json_at(what, text[:position].encode())


def _json_at(what: str, before: bytes) -> Broken:
    line = before.count(b"\n") + 1
    column = len(before) - (before.rfind(b"\n") + 1)
    return Broken(f"invalid JSON in header: {what} at line {line} column {column}")


def _syntax(text: str, cause: RustloadError) -> Broken:
    """An error in the JSON's grammar: the core's own words, which are serde_json's, where it came to parse it."""
    start = len(text) - len(text.lstrip(" \n\r\t"))
    if start == len(text):
        return _json("EOF while parsing a value", text, start)
    if text[start] != "{":
        return _json_at(
            "expected value", text.encode()[: start + 1]
        )  # only blanks, of a byte each, are before it
    if cause.code != "StHeader" or not cause.offset:
        what = "EOF while parsing an object" if text.strip() == "{" else "expected value"
        return _json(what, text, len(text.rstrip()))
    what = str(cause).removeprefix(f"{cause.path}: ").removesuffix(f" (byte {cause.offset})")
    raw = text.encode()
    read = cause.offset - 8
    read += (
        raw[read - 1 : read] != b"\n"
    )  # the core points at the last byte that was read, or behind a line's end
    return _json_at(what, raw[:read])


def _tensors(text: str) -> dict[str, Info] | None:
    """The tensors by name, of several with one name the last; None where the reference's answer is not modelled."""
    decoder = json.JSONDecoder(object_pairs_hook=Pairs, parse_constant=_no_constant)
    start = _blank(text, 0)
    top, end = decoder.raw_decode(text, start)
    json.dumps(
        top, ensure_ascii=False
    ).encode()  # half a surrogate pair is no JSON to serde, and a ValueError here
    if not isinstance(top, Pairs):
        place = start if isinstance(top, list) else end
        raise _json(f"invalid type: {_found(top)}, expected struct HashMetadata", text, place)
    rest = _blank(text, end)
    has_metadata = False
    for key, key_end, value, value_start, value_end in _members(text, start, decoder):
        if key == "__metadata__":
            if has_metadata:
                raise _json("duplicate field `__metadata__`", text, key_end)
            has_metadata = True
            _check_metadata(text, value, value_start, value_end, decoder)
    try:
        tensors = {name: _info(value) for name, value in top if name != "__metadata__"}
    except Broken as broken:
        raise _json(str(broken), text, end) from None
    if rest < len(text):
        raise _json("trailing characters", text, rest + 1)
    infos = {name: info for name, info in tensors.items() if info is not None}
    return infos if len(infos) == len(tensors) else None


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _blank(text: str, at: int) -> int:
    while text[at : at + 1] in tuple(" \n\r\t"):
        at += 1
    return at


def _members(text: str, at: int, decoder: json.JSONDecoder) -> Iterator[tuple[str, int, Any, int, int]]:
    """The pairs of the well-formed object at `at`: key, its end, value, its start and end."""
    at = _blank(text, at + 1)
    while text[at] != "}":
        key, key_end = decoder.raw_decode(text, at)
        start = _blank(text, _blank(text, key_end) + 1)
        value, end = decoder.raw_decode(text, start)
        yield key, key_end, value, start, end
        at = _blank(text, end)
        if text[at] == ",":
            at = _blank(text, at + 1)


def _check_metadata(text: str, value: Any, start: int, end: int, decoder: json.JSONDecoder) -> None:
    if value is None:
        return
    if not isinstance(value, Pairs):
        raise _json(
            f"invalid type: {_found(value)}, expected a map", text, start if isinstance(value, list) else end
        )
    for _, _, one, one_start, one_end in _members(text, start, decoder):
        if not isinstance(one, str):
            place = one_start if isinstance(one, list) else one_end
            raise _json(f"invalid type: {_found(one)}, expected a string", text, place)


def _found(value: Any) -> str:
    """A value in serde's words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        wide = -(1 << 63) <= value < 1 << 64
        return f"integer `{value}`" if wide else f"floating point `{float(value)!r}`"
    if isinstance(value, float):
        return f"floating point `{value!r}`"
    if isinstance(value, str):
        return "string " + json.dumps(value, ensure_ascii=False)
    return "map" if isinstance(value, Pairs) else "sequence"


def _info(value: Any) -> Info | None:
    """A tensor's fields in the order in which the reference takes them."""
    if isinstance(value, list) and not isinstance(value, Pairs):
        return None  # taken by the reference as the three fields in order
    if not isinstance(value, Pairs):
        raise Broken(f"invalid type: {_found(value)}, expected struct TensorInfo")
    fields: dict[str, Any] = {}
    for name, field in value:
        if name in fields:
            raise Broken(f"duplicate field `{name}`")
        if name == "dtype":
            if isinstance(field, Pairs):
                return None  # taken by the reference as a variant with a value
            _check_dtype(field)
        elif name == "shape":
            if not isinstance(field, list) or isinstance(field, Pairs):
                raise Broken(f"invalid type: {_found(field)}, expected a sequence")
            _check_numbers(field)
        elif name == "data_offsets":
            if not isinstance(field, list) or isinstance(field, Pairs):
                raise Broken(f"invalid type: {_found(field)}, expected a tuple of size 2")
            _check_numbers(field[:2])
            if len(field) < 2:
                raise Broken(f"invalid length {len(field)}, expected a tuple of size 2")
            if len(field) > 2:
                raise Broken(f"invalid length {len(field)}, expected 2 elements in sequence")
        else:
            continue
        fields[name] = field
    for name in ("dtype", "shape", "data_offsets"):
        if name not in fields:
            raise Broken(f"missing field `{name}`")
    return Info(fields["dtype"], fields["shape"], *fields["data_offsets"])


def _check_dtype(field: Any) -> None:
    if not isinstance(field, str):
        raise Broken(f"invalid type: {_found(field)}, expected string or map")
    if field not in BITS:
        codes = ", ".join(f"`{code}`" for code in BITS)
        raise Broken(f"unknown variant `{field}`, expected one of {codes}")


def _check_numbers(values: list[Any]) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value >= 1 << 64 or value < -(1 << 63):
            raise Broken(f"invalid type: {_found(value)}, expected usize")
        if value < 0:
            raise Broken(f"invalid value: integer `{value}`, expected usize")


def _check_offsets(tensors: dict[str, Info], have: int) -> None:
    """The order of the reference's checks: tensor by tensor in the order of their bytes, then the end of the file."""
    next_begin = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != next_begin or info.end < info.begin:
            raise Broken(f"invalid offset for tensor `{name}`")
        next_begin = info.end
        bits = 1
        for size in (*info.shape, BITS[info.dtype]):
            bits *= size
            if bits >= 1 << 64:
                raise Broken("overflow computing buffer size from shape and/or element type")
        if bits % 8:
            raise Broken(
                "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte boundary, "
                "this is invalid."
            )
        if bits // 8 != info.end - info.begin:
            raise Broken("invalid shape, data type, or offset for tensor")
    if next_begin != have:
        raise Broken("incomplete metadata, file not fully covered")
