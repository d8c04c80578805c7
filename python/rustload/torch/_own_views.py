"""Which mapping the views of a lazy state dict are of: models that are loaded from one state dict share no memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rustload import _rustload
from rustload._frameworks.adapters import Shared

if TYPE_CHECKING:
    from rustload._tensor.handle import LazyTensor

__all__ = ["OwnViews", "own_views"]


def own_views() -> Shared:
    """What the handles that are read for one owner share: a private mapping of each file, and the torch storages on it."""
    return Shared("torch", _rustload.Mappings())


class OwnViews:
    """The mapping for the next read of a state dict's handle.

    Tensors that are read one after another are views of one mapping, so that tied names stay tied. Reading a tensor a second
    time, as a second model does, begins a new mapping. May be used from any thread.
    """

    __slots__ = ("_pass",)

    def __init__(self) -> None:
        """Maps nothing yet."""
        self._pass: tuple[Shared, set[object]] = (own_views(), set())

    def of(self, lazy: LazyTensor) -> LazyTensor:
        """The handle with views in the mapping that its next read is to have."""
        part = (lazy.name, lazy._core.offset, lazy.shape, lazy.strides)
        shared, read = self._pass
        if part in read:
            shared, read = self._pass = (own_views(), set())
        read.add(part)
        return lazy._with_views_in(shared)
