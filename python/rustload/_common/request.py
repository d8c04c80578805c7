"""`Wanted`: how the core is to make a result, and the arguments of the verbs that say it."""

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
    "Transpose",
    "Wanted",
    "checked_cast",
    "checked_copy",
    "checked_overflow",
    "checked_threads",
    "wanted_for",
]

Transpose: TypeAlias = bool | tuple[int, ...] | list[int] | None
Overflow: TypeAlias = Literal["nan", "saturate"]
Cast: TypeAlias = Literal["auto", "cpu", "gpu"]
"""The argument `cast=`: who casts for a result on a GPU."""

Core: TypeAlias = "_rustload.Tensor | _rustload.Joined"
"""What the extension reads from: one tensor, or several that are joined."""


class Wanted:
    """How the core is to make a result; no dataclass, as that module takes longer to import than all of this package."""

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
        """As the file has it, but for what is given. Views are of `mappings`, or else of the checkpoint's mapping."""
        self.dtype, self.transpose, self.copy = dtype, transpose, copy
        self.allow_lossy, self.dequantize = allow_lossy, dequantize
        self.overflow, self.threads = overflow, threads
        self.mappings = mappings

    def but(self, **changes: Any) -> Wanted:
        """The same with some of it changed."""
        return Wanted(**{name: getattr(self, name) for name in self.__slots__} | changes)


def wanted_for(core: Core, dtype: str, shape: tuple[int, ...], wanted: Wanted) -> Wanted:
    """`wanted` for a destination of this dtype and shape, which must fit.

    Raises:
        ValueError: They do not.
    """
    name = dtype_name(dtype)
    if wanted.dtype is not None and wanted.dtype != name:
        raise _make("Value", "Value", f"out= has dtype {name}, but dtype={wanted.dtype!r} is asked for")
    expected = core.result_shape(wanted)
    if tuple(shape) != expected:
        raise _make("Value", "Value", f"out= has shape {tuple(shape)}, the result has {expected}")
    return wanted.but(dtype=name, copy=True)


def checked_cast(cast: Any) -> Cast:
    """The argument, if it is one of the three.

    Raises:
        ValueError: It is not.
    """
    if cast not in ("auto", "cpu", "gpu"):
        raise _make("Value", "Value", f"cast= is 'auto', 'cpu' or 'gpu', not {cast!r}")
    return cast  # type: ignore[no-any-return]


def checked_copy(copy: Any) -> bool | None:
    """The argument `copy=`.

    Raises:
        TypeError: It is neither a bool nor None.
    """
    if copy is None or isinstance(copy, bool):
        return copy
    raise _make("Type", "Type", f"copy= is True, False or None, not {copy!r}")


def checked_overflow(overflow: Any) -> Overflow:
    """The argument `overflow=`.

    Raises:
        ValueError: It is neither of the two.
    """
    if overflow not in ("nan", "saturate"):
        raise _make("Value", "Value", f"overflow= is 'nan' or 'saturate', not {overflow!r}")
    return overflow  # type: ignore[no-any-return]


def checked_threads(threads: Any) -> int | None:
    """The argument `threads=`, bounded.

    Raises:
        ValueError: It is not positive.
        TypeError: It is no number.
    """
    if threads is None:
        return None
    number = operator.index(threads)
    if number < 1:
        raise _make("Value", "Value", f"threads= is a positive number or None, not {number}")
    return min(number, 1 << 16)
