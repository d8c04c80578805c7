"""What stands in a tree that `load` gives: torch's own objects, made from numbers that the core has proved.

The extension walks the tree and calls a `Builder` for what is no plain Python value. No function that a file names is called.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import torch

from rustload._frameworks.torch import torch_dtype
from rustload._inert import Opaque
from rustload.torch import _allowed, _words

if TYPE_CHECKING:
    from rustload.torch._locations import Storages

__all__ = ["Builder"]

_LAYOUTS = {str(value): value for value in vars(torch).values() if isinstance(value, torch.layout)}

# The bits of a tensor's flags (src/python/face.rs: `place`).
_GRAD, _PARAMETER, _CONJUGATE, _NEGATIVE = 1, 2, 4, 8


class Builder:
    """Makes the values of one file.

    Args:
        storages: The file's storages.
        strict: Whether what torch would refuse is refused instead of kept as data.
    """

    def __init__(self, storages: Storages, *, strict: bool) -> None:
        self._storages = storages
        self._strict = strict
        self._bare: dict[int, torch.storage.TypedStorage] = {}

    def tensor(
        self,
        storage: int,
        dtype: str,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        flags: int,
    ) -> torch.Tensor:
        """A tensor on its storage, as `torch._utils._rebuild_tensor_v2` and its like put it there."""
        storages = self._storages
        made = torch.empty((0,), dtype=_dtype(dtype), device=storages.devices[storage])
        made.set_(storages.rows[storage], offset, shape, strides)
        if flags > _GRAD:
            made = self._flagged(made, flags)
        elif flags:
            made.requires_grad = True
        made._backward_hooks = collections.OrderedDict()
        if storages.locations is not None:
            made.fake_device = torch.device(storages.locations[storage] or "cpu")  # type: ignore[attr-defined]
        return made

    def _flagged(self, made: torch.Tensor, flags: int) -> torch.Tensor:
        signs = {name: True for bit, name in ((_CONJUGATE, "conj"), (_NEGATIVE, "neg")) if flags & bit}
        if signs:
            torch._utils.set_tensor_metadata(made, signs)  # type: ignore[no-untyped-call]
        grad = bool(flags & _GRAD)
        if flags & _PARAMETER:
            return torch.nn.Parameter(made, grad)
        made.requires_grad = grad
        return made

    def storage(self, storage: int, dtype: str) -> torch.storage.TypedStorage:
        """A storage that stands in the tree by itself: one object, however often it stands there."""
        if storage not in self._bare:
            self._bare[storage] = torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
                wrap_storage=self._storages.rows[storage], dtype=_dtype(dtype), _internal=True
            )
        return self._bare[storage]

    def size(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        """A `torch.Size`; a plain tuple where the file has what is no size."""
        try:
            return torch.Size(items)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            return items

    def label(self, module: str, name: str) -> Any:
        """The class or constant of that name; None for one that stays a label."""
        return _allowed.VALUES.get(f"{module}.{name}")

    def record(self, class_name: str, args: tuple[Any, ...]) -> Any:
        """A device or a layout, kept as data where torch has no such."""
        try:
            if class_name == "torch.device":
                return torch.device(*args)
            return _LAYOUTS[args[0]]
        except (RuntimeError, TypeError, LookupError):
            self.opaque(class_name)
            kept = Opaque(class_name)
            kept.args = args
            return kept

    def opaque(self, class_name: str) -> None:
        """Whether a value may stay data.

        Raises:
            DisallowedError: Not with `unknown="error"`.
        """
        if self._strict:
            _words.refuse_class(class_name)

    def attributes(self, made: Any, state: Any) -> None:
        """Sets what BUILD sets on a mapping, such as a state dict's `_metadata`; no method of its class can be hidden."""
        own = getattr(made, "__dict__", None)
        if isinstance(own, dict) and isinstance(state, dict):
            own.update(
                (key, value)
                for key, value in state.items()
                if isinstance(key, str) and not hasattr(type(made), key)
            )


_DTYPES: dict[str, torch.dtype] = {}


def _dtype(name: str) -> torch.dtype:
    found = _DTYPES.get(name)
    if found is None:
        found = _DTYPES.setdefault(name, torch_dtype(name))
    return found
