"""`Request`: the conversion that the core performs for one result, and checks of the arguments that set it."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rustload._common.dtype_args import dtype_name
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload import _rustload

__all__ = [
    "Cast",
    "Core",
    "Overflow",
    "Request",
    "Transpose",
    "checked_cast",
    "request_for_out",
]

Transpose: TypeAlias = bool | tuple[int, ...] | list[int] | None
Overflow: TypeAlias = Literal["nan", "saturate"]
Cast: TypeAlias = Literal["auto", "cpu", "gpu"]
"""The argument `cast=`: whether the CPU or the GPU casts for a result on a GPU."""

Core: TypeAlias = "_rustload.Tensor | _rustload.Joined"
"""A tensor of the extension: one tensor, or several joined ones."""


class Request:
    """How the core makes a result. Not a dataclass, because importing `dataclasses` takes longer than importing this package."""

    __slots__ = ("allow_lossy", "copy", "dequantize", "dtype", "mappings", "overflow", "threads", "transpose")

    def __init__(
        self,
        *,
        dtype: str | None = None,
        transpose: bool | list[int] | None = None,
        copy: bool | None = None,
        allow_lossy: bool = False,
        dequantize: bool = False,
        overflow: Overflow = "nan",
        threads: int | None = None,
        mappings: _rustload.Mappings | None = None,
    ) -> None:
        """Without arguments, the result is as in the file. Views are of `mappings`; None is the checkpoint's mapping."""
        self.dtype, self.transpose, self.copy = dtype, transpose, copy
        self.allow_lossy, self.dequantize = allow_lossy, dequantize
        self.overflow, self.threads = overflow, threads
        self.mappings = mappings

    @classmethod
    def checked(
        cls,
        *,
        dtype: str | None = None,
        transpose: bool | list[int] | None = None,
        copy: Any,
        allow_lossy: Any,
        dequantize: Any,
        overflow: Any,
        threads: Any,
        mappings: _rustload.Mappings | None = None,
    ) -> Request:
        """As the constructor, for arguments as the user gave them; `dtype` and `transpose` are parsed before.

        Raises:
            ValueError: `overflow` or `threads` has an invalid value.
            TypeError: `copy` or `threads` has a wrong type.
        """
        return cls(
            dtype=dtype,
            transpose=transpose,
            copy=_checked_copy(copy),
            allow_lossy=bool(allow_lossy),
            dequantize=bool(dequantize),
            overflow=_checked_overflow(overflow),
            threads=_checked_threads(threads),
            mappings=mappings,
        )

    def but(self, **changes: Any) -> Request:
        """A copy with some fields changed."""
        return Request(**{name: getattr(self, name) for name in self.__slots__} | changes)


def request_for_out(core: Core, dtype: str, shape: tuple[int, ...], request: Request) -> Request:
    """Adapts `request` to a destination (`out=`) of this dtype and shape.

    Raises:
        ValueError: The dtype or the shape does not fit the request.
    """
    name = dtype_name(dtype)
    if request.dtype is not None and request.dtype != name:
        raise _make("Value", "Value", f"out= has dtype {name}, but dtype={request.dtype!r} is requested")
    expected = core.result_shape(request)
    if tuple(shape) != expected:
        raise _make("Value", "Value", f"out= has shape {tuple(shape)}, the result has {expected}")
    return request.but(dtype=name, copy=True)


def checked_cast(cast: Any) -> Cast:
    """Returns the argument `cast=` if it is valid.

    Raises:
        ValueError: It is not "auto", "cpu" or "gpu".
    """
    if cast not in ("auto", "cpu", "gpu"):
        raise _make("Value", "Value", f"cast= is 'auto', 'cpu' or 'gpu', not {cast!r}")
    return cast  # type: ignore[no-any-return]


def _checked_copy(copy: Any) -> bool | None:
    """Returns the argument `copy=` if it is valid.

    Raises:
        TypeError: It is neither a bool nor None.
    """
    if copy is None or isinstance(copy, bool):
        return copy
    raise _make("Type", "Type", f"copy= is True, False or None, not {copy!r}")


def _checked_overflow(overflow: Any) -> Overflow:
    """Returns the argument `overflow=` if it is valid.

    Raises:
        ValueError: It is not "nan" or "saturate".
    """
    if overflow not in ("nan", "saturate"):
        raise _make("Value", "Value", f"overflow= is 'nan' or 'saturate', not {overflow!r}")
    return overflow  # type: ignore[no-any-return]


def _checked_threads(threads: Any) -> int | None:
    """Returns the argument `threads=` as an int of at most 65,536, or None.

    Raises:
        ValueError: It is not positive.
        TypeError: It is not an integer.
    """
    if threads is None:
        return None
    number = operator.index(threads)
    if number < 1:
        raise _make("Value", "Value", f"threads= is a positive number or None, not {number}")
    return min(number, 1 << 16)
