"""`dtype=` and `transpose=`, which may be one value, a mapping from glob patterns, or a callable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar


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


def value_for(value: T | Mapping[str, T] | Callable[[D], T] | None, tensor: D) -> T | None:
    """Resolves an argument for one tensor: the value itself, a callable's result, or the value of the first matching pattern."""
    if isinstance(value, Mapping):
        from rustload._common.patterns import matches

        return next((found for pattern, found in value.items() if matches(tensor.name, pattern)), None)
    if callable(value) and not isinstance(value, type):
        return value(tensor)
    return value  # type: ignore[return-value]  # a class is a NumPy scalar type here, not a rule to call
