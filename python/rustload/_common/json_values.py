"""Values of JSON documents: their types, from which `rustload schema` makes the JSON schemas, and their conversion.

A document is a TypedDict; its keys, and those of every TypedDict or NamedTuple in it, are described under `Attributes` of the
class. An int is 0 or more. `Annotated[T, {...}]` adds to the schema of T; `Annotated[A, B]` is an object of A with the keys of B.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeAlias

__all__ = ["FORMATS", "Finite", "Format", "Positive", "Signed", "plain"]

Signed: TypeAlias = Annotated[int, {"minimum": None}]
Positive: TypeAlias = Annotated[int, {"minimum": 1}]
Finite: TypeAlias = Annotated[float, {"type": ["number", "null"]}]
"""A float that is null in JSON if it is infinite or NaN."""

FORMATS = [
    "torch-zip",
    "torch-legacy",
    "torch-tar",
    "torch-dcp",
    "torch-export",
    "pickle",
    "safetensors",
    "npy",
    "npz",
]
Format: TypeAlias = Annotated[str, {"enum": FORMATS}]
"""The format of a checkpoint."""


def plain(value: Any) -> Any:
    """A value with NamedTuples as dicts and without infinities and NaN, which JSON does not have: they are None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(field) for name, field in value._asdict().items()}
    if isinstance(value, dict):
        return {key: plain(field) for key, field in value.items()}
    return type(value)(map(plain, value)) if isinstance(value, (list, tuple)) else value
