"""Parses `dtype=` and `transpose=`, which may be one value, a mapping from glob patterns, or a callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from rustload import _rustload
from rustload._common.patterns import matches
from rustload._common.similar import did_you_mean, similar
from rustload.errors import _make

__all__ = ["TensorInfo", "dtype_name", "transpose_arg", "value_for"]


class TensorInfo(Protocol):
    """The properties of a tensor that a per-tensor rule reads; a user's callable gets the `LazyTensor` itself."""

    @property
    def name(self) -> str:
        """The tensor's name."""

    @property
    def dtype(self) -> str:
        """Its dtype, as torch spells it."""

    @property
    def shape(self) -> Sequence[int]:
        """Its shape."""

    @property
    def _is_kept_as_stored(self) -> bool:
        """Whether a dtype for all tensors leaves it, as it is the codes of a quantized weight or belongs to some."""


T = TypeVar("T")
D = TypeVar("D", bound=TensorInfo)


def dtype_name(dtype: Any) -> str:
    """Normalizes a dtype to its torch name.

    Args:
        dtype: A name as torch, safetensors or NumPy spells it, a `torch.dtype`, a NumPy dtype or scalar type.

    Raises:
        ValueError: No dtype has that name.
        TypeError: The value is not a dtype.
    """
    if isinstance(dtype, str):
        return _parse_name(dtype)
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    if (isinstance(dtype, type) and dtype.__module__ == "builtins") or not isinstance(name, str):
        raise TypeError(
            f"{dtype!r} is no dtype; use a string such as 'bfloat16', a torch.dtype or a NumPy dtype"
        )
    return _parse_name(name)


def _parse_name(name: str) -> str:
    try:
        return _rustload.parse_dtype(name)
    except ValueError as error:
        normalized = (
            name.lower().replace("fp", "float").replace("bf", "bfloat")
            if "float" not in name
            else name.lower()
        )
        known = [one for one, _, _ in _rustload.DTYPES]
        near = [one for one in known if one.startswith(normalized)] or similar(normalized, known)
        if name == "auto":
            error.add_note("omit dtype= to keep the file's dtype")
        elif near and normalized:
            error.add_note(did_you_mean(near) or "")
        raise


def transpose_arg(value: Any) -> bool | list[int] | None:
    """Checks a value of `transpose=` and converts it for the core.

    Raises:
        TypeError: The value is neither None, a bool, nor a tuple or list.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (tuple, list)):
        return [int(dim) for dim in value]
    raise _make("Type", "Type", f"transpose= is True, False, None or a tuple of dimensions, not {value!r}")


def value_for(value: T | Mapping[str, T] | Callable[[D], T] | None, tensor: D) -> T | None:
    """Resolves an argument for one tensor: the value itself, a callable's result, or the value of the first matching pattern."""
    if isinstance(value, Mapping):
        return next((found for pattern, found in value.items() if matches(tensor.name, pattern)), None)
    if callable(value) and not isinstance(value, type):
        return value(tensor)
    return value  # type: ignore[return-value]  # a class is a NumPy scalar type here, not a rule to call
