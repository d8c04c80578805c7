"""Values of JSON documents: their types, from which `rustload schema` makes the JSON schemas, and their conversion.

A document is a TypedDict; its keys, and those of every TypedDict or NamedTuple in it, are described under `Attributes` of the
class. An int is 0 or more. `Annotated[T, {...}]` adds to the schema of T; `Annotated[A, B]` is an object of A with the keys of B.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

Signed: TypeAlias = Annotated[int, {"minimum": None}]
Positive: TypeAlias = Annotated[int, {"minimum": 1}]
Finite: TypeAlias = Annotated[float, {"type": ["number", "null"]}]
"""A float that is null in JSON if it is infinite or NaN."""

FORMATS = [
    "torch-zip", "torch-legacy", "torch-tar", "torch-dcp", "torch-checkpointing", "torch-export", "pickle", "safetensors",
    "npy", "npz",
]  # fmt: skip
Format: TypeAlias = Annotated[str, {"enum": FORMATS}]
"""The format of a checkpoint."""

_ATOMS = frozenset((str, int, bool, type(None)))


def plain(value: Any) -> Any:
    """A value with NamedTuples as dicts and without infinities and NaN, which JSON does not have: they are None."""
    if isinstance(value, dict):
        return {key: field if type(field) in _ATOMS else plain(field) for key, field in value.items()}
    if isinstance(value, (list, tuple)):
        items = [item if type(item) in _ATOMS else plain(item) for item in value]
        return (
            dict(zip(value._fields, items, strict=True)) if hasattr(value, "_fields") else type(value)(items)
        )
    return None if isinstance(value, float) and not math.isfinite(value) else value
