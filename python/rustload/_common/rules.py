"""Rules for many tensors at once: which dtype and which order of dimensions each of them gets.

A rule is a value, a callable that is given the handle, or a mapping from glob patterns of names to values, of which the first
that matches counts. A plain dtype changes floats of 16 bits and more only: to change ints or fp8, a rule must name
them. A plain transpose is refused: it would turn every matrix of a checkpoint, embeddings too, so a rule must name which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rustload._common.dtype_args import dtype_name, order_of
from rustload._common.patterns import matches
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload._common.dtype_args import Described

__all__ = ["PLAIN", "Rules"]

PLAIN = frozenset({"float64", "float32", "float16", "bfloat16"})
"""The dtypes that a plain `dtype=` applies to."""

T = TypeVar("T")


class Rules:
    """What `dtype=` and `transpose=` say for each tensor.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> rules = Rules(dtype="bfloat16", transpose={"*head.weight": True})
    >>> rules.dtype(ckpt["q.weight"]), rules.transpose(ckpt["q.weight"])
    ('bfloat16', None)
    >>> rules.transpose(ckpt["lm_head.weight"])
    True
    """

    __slots__ = ("_dtype", "_plain", "_transpose")

    _dtype: Callable[[Described], str | None]
    _transpose: Callable[[Described], bool | list[int] | None]

    def __init__(self, dtype: Any = None, transpose: Any = None) -> None:
        """Checks all that can be checked before a tensor is seen.

        Args:
            dtype: A dtype, a callable from handle to dtype, or a mapping from glob patterns to dtypes. None keeps the file's.
            transpose: The same for True (the last two dimensions swapped), a tuple of dimensions, or None; no plain value.

        Raises:
            ValueError: There is no such dtype, or the transpose is a plain value.
            TypeError: A value is of another type.
        """
        # A class is a NumPy scalar type here, never a callable to be asked.
        self._plain = not isinstance(dtype, Mapping) and (not callable(dtype) or isinstance(dtype, type))
        self._dtype = _rule(dtype, _dtype)
        if transpose not in (None, False) and not isinstance(transpose, Mapping) and not callable(transpose):
            raise _make(
                "Value",
                "Value",
                f"transpose={transpose!r} for all tensors at once is not taken: a rule has to say which are transposed",
                "name them by pattern, such as transpose={'*.weight': True} ({'*': True} is every one), or pass a callable",
            )
        self._transpose = _rule(transpose, order_of)

    def dtype(self, tensor: Described, *, is_float: bool = False) -> str | None:
        """The dtype that the tensor gets, in torch's words; None for its own.

        Args:
            tensor: The handle.
            is_float: Whether a plain dtype means it in any case, as one whose integers become floats.
        """
        if self._plain and not is_float and tensor.dtype not in PLAIN:
            return None
        return self._dtype(tensor)

    def transpose(self, tensor: Described) -> bool | list[int] | None:
        """True for the last two dimensions swapped, a permutation, or None."""
        return self._transpose(tensor) or None


def _dtype(value: Any) -> str | None:
    return None if value is None else dtype_name(value)


def _rule(value: Any, checked: Callable[[Any], T | None]) -> Callable[[Described], T | None]:
    """The rule as a function; every value is checked once, what a callable returns when it does."""
    if isinstance(value, Mapping):
        patterns = [(pattern, checked(found)) for pattern, found in value.items()]
        return lambda tensor: _first(patterns, tensor.name)
    if callable(value) and not isinstance(value, type):
        return lambda tensor: _asked(value, checked, tensor)
    plain = checked(value)
    return lambda _: plain


def _first(patterns: list[tuple[str, T | None]], name: str) -> T | None:
    return next((found for pattern, found in patterns if matches(name, pattern)), None)


def _asked(
    value: Callable[[Described], Any], checked: Callable[[Any], T | None], tensor: Described
) -> T | None:
    try:
        return checked(value(tensor))
    except Exception as error:
        error.add_note(f"for tensor {tensor.name!r}")
        raise
