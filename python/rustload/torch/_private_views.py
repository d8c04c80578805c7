"""Private mappings for views of a lazy state dict: models that are loaded from it one after the other share no memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._frameworks.adapters import HandleContext

if TYPE_CHECKING:
    from rustload._tensor.handle import LazyTensor


def private_context() -> HandleContext:
    """A context with its own private copy-on-write mapping of each file, and its own torch storages."""
    return HandleContext("torch", _rustload.Mappings())


class PrivateViews:
    """Chooses the mapping for each read of a handle of a state dict.

    Tensors that are read one after another are views of one mapping, so that tied weights stay tied. Reading a tensor a second
    time, as a second model does, starts a new mapping, for whoever reads next: two models share no memory if one is loaded after
    the other. Thread-safe.
    """

    def __init__(self) -> None:
        """Maps nothing yet."""
        self._current: tuple[HandleContext, set[object]] = (private_context(), set())

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles nothing: another process has mappings of its own."""
        return PrivateViews, ()

    def of(self, lazy: LazyTensor) -> LazyTensor:
        """The tensor in the context for its next read."""
        part = (lazy.name, lazy._core.offset, lazy.shape, lazy.strides)
        context, read = self._current
        if part in read:
            context, read = self._current = (private_context(), set())
        read.add(part)
        return lazy._with_context(context)
