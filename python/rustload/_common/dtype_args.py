"""Arguments that users spell in several ways: dtypes, and values chosen per tensor by pattern or callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from rustload import _rustload
from rustload._common.patterns import matches
from rustload._common.similar import did_you_mean, similar
from rustload.errors import _make

__all__ = ["Described", "choose", "dtype_name", "order_of"]


class Described(Protocol):
    """What a choice per tensor is made by; a callable of the user's gets the handle itself."""

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def dtype(self) -> str:
        """Its dtype, in torch's words."""


T = TypeVar("T")
D = TypeVar("D", bound=Described)


def dtype_name(dtype: Any) -> str:
    """The dtype's name in torch's words.

    Args:
        dtype: A string in torch's, safetensors' or NumPy's words, a `torch.dtype`, a NumPy dtype or scalar type.

    Raises:
        ValueError: There is no such dtype.
        TypeError: This is no dtype at all.
    """
    if isinstance(dtype, str):
        return _parsed(dtype)
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    if (isinstance(dtype, type) and dtype.__module__ == "builtins") or not isinstance(name, str):
        raise TypeError(
            f"{dtype!r} is no dtype; use a string such as 'bfloat16', a torch.dtype or a NumPy dtype"
        )
    return _parsed(name)


def _parsed(name: str) -> str:
    try:
        return _rustload.parse_dtype(name)
    except ValueError as error:
        wanted = (
            name.lower().replace("fp", "float").replace("bf", "bfloat")
            if "float" not in name
            else name.lower()
        )
        known = [one for one, _, _ in _rustload.DTYPES]
        near = [one for one in known if one.startswith(wanted)] or similar(wanted, known)
        if name == "auto":
            error.add_note("leave dtype= away to keep what there is")
        elif near and wanted:
            error.add_note(did_you_mean(near) or "")
        raise


def order_of(value: Any) -> bool | list[int] | None:
    """A transpose as the core has it.

    Raises:
        TypeError: It is neither a bool nor a tuple or list of numbers.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (tuple, list)):
        return [int(dim) for dim in value]
    raise _make("Type", "Type", f"transpose= is True, False, None or a tuple of dimensions, not {value!r}")


def choose(value: T | Mapping[str, T] | Callable[[D], T] | None, tensor: D) -> T | None:
    """What `value` says for `tensor`: itself, what a callable returns, or what the first matching glob pattern maps to."""
    if isinstance(value, Mapping):
        return next((found for pattern, found in value.items() if matches(tensor.name, pattern)), None)
    if callable(value) and not isinstance(value, type):
        return value(tensor)
    return value  # type: ignore[return-value]  # a class is a NumPy scalar type here, never a callable to be asked
