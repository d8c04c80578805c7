"""Formats, parses and counts sizes in bytes."""

from __future__ import annotations

import operator

from rustload.errors import _error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable
    from typing import Any

    from rustload._rustload import Tensor

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def format_bytes(nbytes: int) -> str:
    """Formats a size in binary units: `31.0 MiB`."""
    value = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def parse_bytes(value: int | str, name: str) -> int:
    """Parses a size in bytes: an int, or a str such as `"256MiB"` or `"5 GB"`. `name` is the argument, for the message.

    Raises:
        ValueError: The str is not a size, or the size is not positive.
        TypeError: It is neither an int nor a str.
    """
    if isinstance(value, str):
        import re

        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", value.lower())
        if found is None or found[2] not in _UNITS:
            raise _error("Value", f"{name}={value!r} is not a size; write 268435456, '256MiB' or '1GB'")
        value = int(float(found[1]) * _UNITS[found[2]])
    count = whole_number(value)
    if count is None:
        raise _error("Type", f"is a number of bytes or a str, not {value!r}", argument=name)
    if count < 1:
        raise _error("Value", f"is a positive number of bytes, not {value}", argument=name)
    return min(count, 1 << 62)


def whole_number(value: Any) -> int | None:
    """The int that it is, or an integer of another library; None for what is neither, and for a bool."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def same_tensor(tensor: Tensor) -> Hashable:
    """A key that the names of one and the same tensor of a checkpoint share, with the same scales or others."""
    return tensor.storage, tensor.offset, tensor.dtype, tensor.shape, tensor.strides, tensor.signs


def sizes_once(tensors: Iterable[Tensor]) -> list[int]:
    """The bytes of each tensor of a checkpoint; 0 for a further name of an earlier one, which is read once."""
    seen = set()
    sizes = []
    for tensor in tensors:
        key = same_tensor(tensor)
        sizes.append(0 if key in seen else tensor.nbytes)
        seen.add(key)
    return sizes
