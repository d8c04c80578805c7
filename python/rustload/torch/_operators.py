"""The operators of `torch.Tensor` for lazy handles: each reads the tensor first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: Operators, *args: Any) -> Any:
        return getattr(self.tensor(), name)(*read_all(args))

    operate.__name__ = name
    operate.__doc__ = f"`torch.Tensor.{name}`, on the tensor read."
    return operate


class Operators:
    """Base class with the operators of `torch.Tensor`, applied to the result of `tensor()`."""

    __slots__ = ()

    def tensor(self) -> torch.Tensor:
        """Reads the tensor."""
        raise NotImplementedError

    __add__ = _operator("__add__")
    __radd__ = _operator("__radd__")
    __sub__ = _operator("__sub__")
    __rsub__ = _operator("__rsub__")
    __mul__ = _operator("__mul__")
    __rmul__ = _operator("__rmul__")
    __truediv__ = _operator("__truediv__")
    __rtruediv__ = _operator("__rtruediv__")
    __floordiv__ = _operator("__floordiv__")
    __rfloordiv__ = _operator("__rfloordiv__")
    __mod__ = _operator("__mod__")
    __rmod__ = _operator("__rmod__")
    __pow__ = _operator("__pow__")
    __rpow__ = _operator("__rpow__")
    __matmul__ = _operator("__matmul__")
    __rmatmul__ = _operator("__rmatmul__")
    __and__ = _operator("__and__")
    __rand__ = _operator("__rand__")
    __or__ = _operator("__or__")
    __ror__ = _operator("__ror__")
    __xor__ = _operator("__xor__")
    __rxor__ = _operator("__rxor__")
    __lshift__ = _operator("__lshift__")
    __rlshift__ = _operator("__rlshift__")
    __rshift__ = _operator("__rshift__")
    __rrshift__ = _operator("__rrshift__")
    __eq__ = _operator("__eq__")
    __ne__ = _operator("__ne__")
    __lt__ = _operator("__lt__")
    __le__ = _operator("__le__")
    __gt__ = _operator("__gt__")
    __ge__ = _operator("__ge__")
    __neg__ = _operator("__neg__")
    __pos__ = _operator("__pos__")
    __abs__ = _operator("__abs__")
    __invert__ = _operator("__invert__")
    __hash__ = object.__hash__  # `==` returns a tensor, as in torch


def read_all(value: Any) -> Any:
    """`value` with every handle in it read, through lists, tuples and dicts."""
    if isinstance(value, Operators):
        return value.tensor()
    if isinstance(value, dict):
        return {key: read_all(inner) for key, inner in value.items()}
    if type(value) is tuple:
        return tuple(read_all(inner) for inner in value)
    if isinstance(value, list):
        return [read_all(inner) for inner in value]
    return value
