"""The error messages of the safetensors package (the reference) for a broken header.

rustload's core has already rejected the file, with a more precise error. But programs match the reference's messages, so this
module parses the header again, in the reference's order (length, UTF-8, JSON, metadata, tensor fields, offsets), and returns the
message for the first fault. It never accepts a file; if it finds no message, the core's message is kept.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rustload.errors import RustloadError

__all__ = ["reference_message"]

PREFIX = "Error while deserializing header: "
HEADER_MAX_BYTES = 100_000_000

# Longer headers keep the core's message: parsing them here takes several times their size in memory.
HEADER_PARSED_MAX_BYTES = 16 << 20

# Bits per element by dtype code, in the reference's order, which its message lists.
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


class ObjectPairs(list[tuple[str, Any]]):
    """A JSON object as a list of all its pairs, duplicate keys included."""


class HeaderFault(Exception):  # noqa: N818 - carries a message to `reference_message`, never raised to users
    """Carries the reference's message for the first fault."""


class Info(NamedTuple):
    """A tensor whose fields are well-formed."""

    dtype: str
    shape: list[int]
    begin: int
    end: int


def reference_message(path: str, cause: RustloadError) -> str | None:
    """The reference's message for the file; None if it is not a safetensors file, or the reference would accept it."""
    unknown = cause.code == "UnknownFormat" and not path.lower().endswith(TORCH_SUFFIXES)
    if not (unknown or cause.code.startswith("St") or cause.code == "TensorShape"):
        return None
    try:
        _check_header(cause.path or path, cause)
    except HeaderFault as broken:
        return PREFIX + str(broken)
    except (OSError, RecursionError):
        pass
    return None


def _check_header(path: str, cause: RustloadError) -> None:
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(8)
        if len(head) < 8:
            raise HeaderFault("header too small")
        length = int.from_bytes(head, "little")
        if length > HEADER_MAX_BYTES:
            raise HeaderFault("header too large")
        if length + 8 > size:
            raise HeaderFault("invalid header length")
        if length > HEADER_PARSED_MAX_BYTES:
            return
        raw = file.read(length)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        kind = "incomplete utf-8 byte sequence" if error.reason == "unexpected end of data" else None
        kind = kind or f"invalid utf-8 sequence of {error.end - error.start} bytes"
        raise HeaderFault(f"invalid UTF-8 in header: {kind} from index {error.start}") from None
    try:
        tensors = _tensors(text)
    except ValueError:
        raise _syntax_error(text, cause) from None
    if tensors is not None:
        _check_offsets(tensors, size - 8 - length)


def _json_error(what: str, text: str, position: int) -> HeaderFault:
    """A JSON error at the position as serde_json counts it: the line from 1, and the bytes read of that line."""
    return _json_error_after(what, text[:position].encode())


def _json_error_after(what: str, before: bytes) -> HeaderFault:
    line = before.count(b"\n") + 1
    column = len(before) - (before.rfind(b"\n") + 1)
    return HeaderFault(f"invalid JSON in header: {what} at line {line} column {column}")


def _syntax_error(text: str, cause: RustloadError) -> HeaderFault:
    """A JSON syntax error: the message of the core, which is serde_json's, if the core got as far as parsing."""
    start = len(text) - len(text.lstrip(" \n\r\t"))
    if start == len(text):
        return _json_error("EOF while parsing a value", text, start)
    if text[start] != "{":
        return _json_error_after(
            "expected value", text.encode()[: start + 1]
        )  # before it is only whitespace, one byte per character
    if cause.code != "StHeader" or not cause.offset:
        what = "EOF while parsing an object" if text.strip() == "{" else "expected value"
        return _json_error(what, text, len(text.rstrip()))
    what = str(cause).removeprefix(f"{cause.path}: ").removesuffix(f" (byte {cause.offset})")
    raw = text.encode()
    read = cause.offset - 8
    read += (
        raw[read - 1 : read] != b"\n"
    )  # the core's offset is that of the last byte read, or one past a line end
    return _json_error_after(what, raw[:read])


def _tensors(text: str) -> dict[str, Info] | None:
    """The tensors by name, the last one of duplicates; None if the reference's behaviour is not modelled."""
    decoder = json.JSONDecoder(object_pairs_hook=ObjectPairs, parse_constant=_no_constant)
    start = _skip_blanks(text, 0)
    top, end = decoder.raw_decode(text, start)
    json.dumps(
        top, ensure_ascii=False
    ).encode()  # a lone surrogate is invalid for serde, and a ValueError here
    if not isinstance(top, ObjectPairs):
        position = start if isinstance(top, list) else end
        raise _json_error(f"invalid type: {_serde_type(top)}, expected struct HashMetadata", text, position)
    rest = _skip_blanks(text, end)
    has_metadata = False
    for key, key_end, value, value_start, value_end in _members(text, start, decoder):
        if key == "__metadata__":
            if has_metadata:
                raise _json_error("duplicate field `__metadata__`", text, key_end)
            has_metadata = True
            _check_metadata(text, value, value_start, value_end, decoder)
    try:
        tensors = {name: _info(value) for name, value in top if name != "__metadata__"}
    except HeaderFault as broken:
        raise _json_error(str(broken), text, end) from None
    if rest < len(text):
        raise _json_error("trailing characters", text, rest + 1)
    infos = {name: info for name, info in tensors.items() if info is not None}
    return infos if len(infos) == len(tensors) else None


def _no_constant(name: str) -> None:
    raise ValueError(name)


def _skip_blanks(text: str, at: int) -> int:
    while text[at : at + 1] in tuple(" \n\r\t"):
        at += 1
    return at


def _members(text: str, at: int, decoder: json.JSONDecoder) -> Iterator[tuple[str, int, Any, int, int]]:
    """The pairs of the well-formed object at `at`: key, its end, value, its start and end."""
    at = _skip_blanks(text, at + 1)
    while text[at] != "}":
        key, key_end = decoder.raw_decode(text, at)
        start = _skip_blanks(text, _skip_blanks(text, key_end) + 1)
        value, end = decoder.raw_decode(text, start)
        yield key, key_end, value, start, end
        at = _skip_blanks(text, end)
        if text[at] == ",":
            at = _skip_blanks(text, at + 1)


def _check_metadata(text: str, value: Any, start: int, end: int, decoder: json.JSONDecoder) -> None:
    if value is None:
        return
    if not isinstance(value, ObjectPairs):
        raise _json_error(
            f"invalid type: {_serde_type(value)}, expected a map",
            text,
            start if isinstance(value, list) else end,
        )
    for _, _, one, one_start, one_end in _members(text, start, decoder):
        if not isinstance(one, str):
            position = one_start if isinstance(one, list) else one_end
            raise _json_error(f"invalid type: {_serde_type(one)}, expected a string", text, position)


def _serde_type(value: Any) -> str:
    """A value as serde's messages name its type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        fits_64_bits = -(1 << 63) <= value < 1 << 64
        return f"integer `{value}`" if fits_64_bits else f"floating point `{float(value)!r}`"
    if isinstance(value, float):
        return f"floating point `{value!r}`"
    if isinstance(value, str):
        return "string " + json.dumps(value, ensure_ascii=False)
    return "map" if isinstance(value, ObjectPairs) else "sequence"


def _info(value: Any) -> Info | None:
    """Parses the fields of a tensor, with the reference's checks in its order."""
    if isinstance(value, list) and not isinstance(value, ObjectPairs):
        return None  # the reference reads it as the three fields in order
    if not isinstance(value, ObjectPairs):
        raise HeaderFault(f"invalid type: {_serde_type(value)}, expected struct TensorInfo")
    fields: dict[str, Any] = {}
    for name, field in value:
        if name in fields:
            raise HeaderFault(f"duplicate field `{name}`")
        if name == "dtype":
            if isinstance(field, ObjectPairs):
                return None  # the reference reads it as an enum variant with a value
            _check_dtype(field)
        elif name == "shape":
            if not isinstance(field, list) or isinstance(field, ObjectPairs):
                raise HeaderFault(f"invalid type: {_serde_type(field)}, expected a sequence")
            _check_numbers(field)
        elif name == "data_offsets":
            if not isinstance(field, list) or isinstance(field, ObjectPairs):
                raise HeaderFault(f"invalid type: {_serde_type(field)}, expected a tuple of size 2")
            _check_numbers(field[:2])
            if len(field) < 2:
                raise HeaderFault(f"invalid length {len(field)}, expected a tuple of size 2")
            if len(field) > 2:
                raise HeaderFault(f"invalid length {len(field)}, expected 2 elements in sequence")
        else:
            continue
        fields[name] = field
    for name in ("dtype", "shape", "data_offsets"):
        if name not in fields:
            raise HeaderFault(f"missing field `{name}`")
    return Info(fields["dtype"], fields["shape"], *fields["data_offsets"])


def _check_dtype(field: Any) -> None:
    if not isinstance(field, str):
        raise HeaderFault(f"invalid type: {_serde_type(field)}, expected string or map")
    if field not in BITS:
        codes = ", ".join(f"`{code}`" for code in BITS)
        raise HeaderFault(f"unknown variant `{field}`, expected one of {codes}")


def _check_numbers(values: list[Any]) -> None:
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or value >= 1 << 64 or value < -(1 << 63):
            raise HeaderFault(f"invalid type: {_serde_type(value)}, expected usize")
        if value < 0:
            raise HeaderFault(f"invalid value: integer `{value}`, expected usize")


def _check_offsets(tensors: dict[str, Info], data_nbytes: int) -> None:
    """Checks offsets in the reference's order: each tensor by its position in the data, then the end of the file."""
    next_begin = 0
    for name, info in sorted(tensors.items(), key=lambda item: (item[1].begin, item[1].end)):
        if info.begin != next_begin or info.end < info.begin:
            raise HeaderFault(f"invalid offset for tensor `{name}`")
        next_begin = info.end
        bits = 1
        for size in (*info.shape, BITS[info.dtype]):
            bits *= size
            if bits >= 1 << 64:
                raise HeaderFault("overflow computing buffer size from shape and/or element type")
        if bits % 8:
            raise HeaderFault(
                "The slice is slicing for subbytes dtypes, and the slice does not end up at a byte boundary, "
                "this is invalid."
            )
        if bits // 8 != info.end - info.begin:
            raise HeaderFault("invalid shape, data type, or offset for tensor")
    if next_begin != data_nbytes:
        raise HeaderFault("incomplete metadata, file not fully covered")
