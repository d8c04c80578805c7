"""Reads the only element of a tensor as a Python number."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from rustload._common.request import Request

if TYPE_CHECKING:
    from rustload._common.request import Core

# The dtype to read as, and its code in `struct`, by the beginning of the dtype's name.
_WIDE = (
    ("float", "float64", "d"),
    ("bfloat", "float64", "d"),
    ("complex", "complex128", "dd"),
    ("bool", "bool", "?"),
    ("uint", "uint64", "Q"),
)


def wide_dtype(dtype: str) -> tuple[str, str]:
    """The dtype of Python's numbers to which elements of a dtype are converted, and the code of `struct` for an element."""
    return next(((wide, code) for start, wide, code in _WIDE if dtype.startswith(start)), ("int64", "q"))


def read_number(core: Core, *, is_quantized: bool) -> bool | int | float | complex:
    """The only element of a tensor; of a quantized one, the float that it stands for."""
    if is_quantized:
        wide, code, request = "float32", "f", Request(dtype="float32", copy=True, dequantize=True)
    else:
        wide, code = wide_dtype(core.dtype)
        request = Request(dtype=wide, copy=True)
    read = struct.unpack(f"={code}", core.materialize(request).tobytes())
    return complex(*read) if wide == "complex128" else read[0]
