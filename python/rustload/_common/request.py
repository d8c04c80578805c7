"""`Request`: the conversion that the core performs for one result, and the types of the arguments that set it."""

from __future__ import annotations

from collections.abc import Mapping

from rustload._rustload import Request, dtype_name
from rustload.errors import _check_one_of, _error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, TypeAlias

    from rustload import _rustload

    Overflow: TypeAlias = Literal["nan", "saturate"]
    Cast: TypeAlias = Literal["auto", "cpu", "gpu"]
    """The argument `cast=`: whether the CPU or the GPU casts for a result on a GPU."""

__all__ = [
    "Cast",
    "Core",
    "Overflow",
    "Request",
    "Transpose",
    "checked_cast",
    "dims_of",
    "request_for_out",
    "value_for",
]

Transpose: TypeAlias = bool | tuple[int, ...] | list[int] | None
Core: TypeAlias = "_rustload.Tensor | _rustload.Joined"
"""A tensor of the extension: one tensor, or several joined ones."""


def request_for_out(core: Core, dtype: str, shape: tuple[int, ...], request: Request) -> Request:
    """Adapts `request` to a destination (`out=`) of this dtype and shape.

    Raises:
        ValueError: The dtype or the shape does not fit the request.
    """
    name = dtype_name(dtype)
    if request.dtype is not None and request.dtype != name:
        raise _error("Value", f"has dtype {name}, but dtype={request.dtype!r} is requested", argument="out")
    expected = core.result_shape(request)
    if tuple(shape) != expected:
        raise _error("Value", f"has shape {tuple(shape)}, the result has {expected}", argument="out")
    return request.but(dtype=name, copy=True)


def value_for(value: Any, tensor: Any) -> Any:
    """Resolves `dtype=` or `transpose=` for one tensor: the value itself, a callable's result, or that of the first match."""
    if isinstance(value, Mapping):
        from rustload._common.patterns import matches

        return next((found for pattern, found in value.items() if matches(tensor.name, pattern)), None)
    # A class is a NumPy scalar type here, not a rule to call.
    if callable(value) and not isinstance(value, type):
        return value(tensor)
    return value


def dims_of(transpose: Transpose, ndim: int) -> list[int]:
    """The permutation that a transpose is, in full and without negative numbers."""
    if transpose in (None, False):
        return list(range(ndim))
    if transpose is True:
        return [*range(ndim - 2), ndim - 1, ndim - 2]
    dims: list[int] = list(transpose)  # type: ignore[arg-type]  # neither None nor a bool
    return [dim + ndim if dim < 0 else dim for dim in dims]


def checked_cast(cast: Any) -> Cast:
    """Returns the argument `cast=` if it is valid.

    Raises:
        ValueError: It is not "auto", "cpu" or "gpu".
    """
    _check_one_of("cast", cast, ("auto", "cpu", "gpu"))
    return cast  # type: ignore[no-any-return]
