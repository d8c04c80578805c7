"""The record of containers and values that `save` writes beside tensors, in the metadata, and the nesting that is made of it.

A record is JSON that any file may have: its text, depth and every value are checked, and it makes plain Python values only.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, NoReturn

from rustload._checkpoint.names import unflatten as split_names
from rustload.errors import _error

NESTING_KEY = "rustload.nesting"
"""The metadata key of the record."""

DEPTH_MAX = 100
"""The most containers in each other in a record."""

TEXT_MAX_CHARS = 32 << 20
"""The longest record."""

VALUE_TYPES = frozenset((type(None), bool, int, float, complex, str, bytes))
"""The types of values that a record has, exactly. Of their subclasses it would lose the type."""

_INTS = range(-(1 << 63), 1 << 64)
"""Integers that JSON parsers read exactly."""
_INT_MAX_CHARS = 20

# What opens or closes a container, outside of texts.
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[\]{}]', re.DOTALL)
# Each container of a record is an object, a list in it, and for dicts a pair.
_JSON_DEPTH_MAX = 3 * DEPTH_MAX + 3


def scalar_json(value: Any) -> Any:
    """A number, a bool, None or bytes as JSON; NotImplemented for other values. docs/reference/convert.md has the forms."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value in _INTS else {"$int": hex(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": _float_text(value)}
    if isinstance(value, complex):
        return {"$complex": [_float_text(value.real), _float_text(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    return NotImplemented


def _float_text(value: float) -> str:
    """A float as text: the bits of a NaN that is not the usual one."""
    bits = struct.pack(">d", value)
    return f"0x{bits.hex()}" if value != value and bits != struct.pack(">d", math.nan) else repr(value)


def _float_of(text: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(text[2:]))[0] if text.startswith("0x") else float(text)
    return value if _float_text(value) == text else _refuse(text)


def _refuse(what: object) -> NoReturn:
    raise ValueError(f"{str(what)[:40]!r} is in no record")


class _Made:
    """A value that was made of an object of JSON."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class _Reader:
    """Makes the nesting of a record while the parser of JSON reads it, from the inside out."""

    def __init__(self, tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        self._tensors = tensors
        self._metadata = metadata
        self._used: set[str] = set()

    def read(self, text: str) -> Any:
        if len(text) > TEXT_MAX_CHARS:
            raise ValueError(f"it has {len(text):,} characters, and at most {TEXT_MAX_CHARS:,} are read")
        depth = 0
        for found in _BRACKETS.finditer(text):
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
            if depth > _JSON_DEPTH_MAX:
                raise ValueError("containers are nested more deeply than any that are written")
        root = self._value(
            json.loads(
                text,
                object_pairs_hook=self._object,
                parse_constant=_refuse,
                parse_float=_finite,
                parse_int=_short_int,
            )
        )
        left = next((name for name in self._tensors if name not in self._used), None)
        if left is not None:
            raise ValueError(f"the tensor {left!r} is not in it")
        return root

    def _value(self, item: Any) -> Any:
        if isinstance(item, _Made):
            return item.value
        if isinstance(item, list):
            _refuse(item)
        return self._tensor(item) if isinstance(item, str) else item

    def _tensor(self, name: str) -> Any:
        # A tied name that was left out is recorded with the name that was written.
        name = name if name in self._tensors else self._metadata.get(name, name)
        if name not in self._tensors:
            raise ValueError(f"it has a tensor {name[:80]!r}, and there is none")
        self._used.add(name)
        return self._tensors[name]

    def _object(self, pairs: list[tuple[str, Any]]) -> _Made:
        ((tag, body),) = pairs
        match tag, body:
            case "$dict", list():
                return _Made(self._dict(body))
            case "$list", list():
                return _Made([self._value(item) for item in body])
            case "$tuple", list():
                return _Made(tuple(self._value(item) for item in body))
            case "$complex", [str(real), str(imaginary)]:
                return _Made(complex(_float_of(real), _float_of(imaginary)))
            case "$str", str():
                return _Made(body)
            case "$int", str():
                value: Any = int(body, 16)
                return _Made(value) if hex(value) == body and value not in _INTS else _refuse(body)
            case "$float", str():
                value = _float_of(body)
                return _Made(value) if not math.isfinite(value) else _refuse(body)
            case "$bytes", str():
                return _Made(base64.b64decode(body, validate=True))
        _refuse(tag)

    def _dict(self, pairs: list[Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for pair in pairs:
            if not (type(pair) is list and len(pair) == 2):
                _refuse(pair)
            key, item = pair
            if isinstance(key, _Made):
                key = key.value
            if type(key) not in VALUE_TYPES or key in made:
                _refuse(key)
            made[key] = self._value(item)
        return made


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refuse(text)


def _short_int(text: str) -> int:
    return int(text) if len(text) <= _INT_MAX_CHARS and int(text) in _INTS else _refuse(text)


def nested(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> Any:
    """The nesting that the metadata record; without a record, the tensors as they are.

    Raises:
        FormatError: The record is not one that `save` writes, or does not fit the names (code `Nesting`).
    """
    text = metadata.get(NESTING_KEY)
    if text is None:
        return tensors
    try:
        return _Reader(tensors, metadata).read(text)
    except (ValueError, TypeError, OverflowError, RecursionError, struct.error) as error:
        reason = f"the record {NESTING_KEY!r} in the metadata cannot be read: {error}"
        raise _error("Nesting", reason) from error


def unflatten(values: Mapping[str, Any]) -> Any:
    """Restores the nesting of flat names.

    A checkpoint that `save` wrote with `keep_nesting=True` gives what was saved, as `Checkpoint.objects` does. Any other mapping
    gives nested dicts: `{"a.b": 1}` becomes `{"a": {"b": 1}}`, where numbers stay strings.

    Args:
        values: A `Checkpoint`, or any mapping from names to values.

    Raises:
        ValueError: A name is also a prefix of another.
        FormatError: The recorded nesting is damaged, or does not fit the names (code `Nesting`).

    >>> import rustload, torch
    >>> _ = rustload.save({"layers": [torch.zeros(2), (torch.ones(1),)]}, "n.safetensors", keep_nesting=True)
    >>> rustload.unflatten(rustload.open("n.safetensors"))
    {'layers': [<LazyTensor 'layers.0' float32 [2] 8 B>, (<LazyTensor 'layers.1.0' float32 [1] 4 B>,)]}
    """
    metadata = getattr(values, "metadata", None)
    if isinstance(metadata, Mapping) and NESTING_KEY in metadata:
        return nested(dict(values.items()), metadata)
    return split_names(values)
