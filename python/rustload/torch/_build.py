"""What stands in a tree that `load` gives: torch's own objects, made from numbers that the core has proved.

The extension walks the tree and calls a `Builder` for what is no plain Python value. No function that a file names is called.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import torch

from rustload._frameworks.torch import torch_dtype
from rustload._tensor.inert import Opaque
from rustload.errors import _make
from rustload.torch import _allowed, _load_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload.torch._locations import Storages

__all__ = ["Builder"]

_LAYOUTS = {str(value): value for value in vars(torch).values() if isinstance(value, torch.layout)}

# Typed here, as torch's stubs lack some arguments.
_sparse_coo: Callable[..., torch.Tensor] = torch.sparse_coo_tensor
_sparse_compressed: Callable[..., torch.Tensor] = torch.sparse_compressed_tensor

# The bits of a tensor's flags (src/python/objects/target.rs: `flags`).
_GRAD, _PARAMETER, _CONJUGATE, _NEGATIVE, _META, _HOOKS = 1, 2, 4, 8, 16, 32
_PLAIN = _GRAD | _HOOKS


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
        if flags & _META:
            made = torch.empty_strided(shape, strides, dtype=_dtype(dtype), device="meta")
            made = self._flagged(made, flags)
            if flags & _HOOKS:
                made._backward_hooks = collections.OrderedDict()
            return made
        storages = self._storages
        made = torch.empty((0,), dtype=_dtype(dtype), device=storages.devices[storage])
        made.set_(storages.rows[storage], offset, shape, strides)
        if flags | _PLAIN != _PLAIN:
            made = self._flagged(made, flags)
        elif flags & _GRAD:
            made.requires_grad = True
        if flags & _HOOKS:
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

    def quantized(
        self,
        place: tuple[int, str, int, tuple[int, ...], tuple[int, ...]],
        flags: int,
        scheme: str,
        scale: tuple[Any, Any, int | None],
    ) -> torch.Tensor:
        """A quantized tensor on its storage (torch/_utils.py: `_rebuild_qtensor`); it is made without elements first.

        Raises:
            RuntimeError: torch has no such quantized tensor, or not on this device.
        """
        number, name, offset, shape, strides = place
        base, device = self._storages.rows[number], self._storages.devices[number]
        scales, zero_points, axis = scale
        how: dict[str, Any] = {"dtype": _dtype(name), "device": device}
        if scheme == "per_tensor_affine":
            made = torch._empty_affine_quantized([0], scale=scales, zero_point=zero_points, **how)
        elif scheme in ("per_channel_affine", "per_channel_affine_float_qparams") and axis is not None:
            floats = scheme != "per_channel_affine"
            if isinstance(scales, list) and isinstance(zero_points, list):
                kinds = (torch.float, torch.float) if floats else (torch.double, torch.long)
                scales = torch.tensor(scales, dtype=kinds[0], device=device)
                zero_points = torch.tensor(zero_points, dtype=kinds[1], device=device)
            empty = (
                [size if dim == axis else 0 for dim, size in enumerate(shape)] if len(shape) > 1 else shape
            )
            made = torch._empty_per_channel_affine_quantized(
                empty, scales=scales, zero_points=zero_points, axis=axis, **how
            )
        else:
            raise RuntimeError(f"Can't deserialize quantized tensor with qscheme torch.{scheme}")
        made.set_(base, offset, shape, strides)
        if flags:
            made = self._flagged(made, flags)
        made._backward_hooks = collections.OrderedDict()
        return made

    def sparse(
        self, form: tuple[str, tuple[int, ...], bool | None], parts: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """A sparse tensor of its parts, whose indices are checked: torch's kernels trust them.

        Raises:
            FormatError: An index lies outside the shape, or the like (code `SparseInvariant`).
        """
        layout, shape, is_coalesced = form
        # Without data there is nothing to check, and nothing that could be read through it.
        check = all(part.device.type == "cpu" for part in parts) and self._storages.has_data
        try:
            if layout == "sparse_coo":
                return _sparse_coo(*parts, shape, check_invariants=check, is_coalesced=is_coalesced)
            return _sparse_compressed(*parts, shape, layout=getattr(torch, layout), check_invariants=check)
        except RuntimeError as error:
            raise _make("Format", "SparseInvariant", str(error)) from None

    def parameter(self, made: torch.Tensor) -> torch.nn.Parameter:
        """A tensor whose file says by its class alone that it is a parameter."""
        return made.as_subclass(torch.nn.Parameter)

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
        """A device, a layout, or a parameter around a sparse tensor; kept as data where torch has no such."""
        try:
            if class_name == "torch._utils._rebuild_parameter":
                made = torch.nn.Parameter(args[0], bool(args[1]))
                made._backward_hooks = collections.OrderedDict()
                return made
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
            _load_errors.refuse_class(class_name)

    def attributes(self, made: Any, state: Any) -> None:
        """Sets what BUILD sets on a mapping, such as a state dict's `_metadata`, or the attributes of a tensor.

        It goes into the object's own `__dict__`, and no attribute of its class can be hidden, so that nothing runs.
        """
        own = getattr(made, "__dict__", None)
        if not isinstance(own, dict):
            return
        # A pair is the attributes and the slots (torch/_utils.py: `_set_obj_state`).
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                own.update(
                    (key, value)
                    for key, value in part.items()
                    if isinstance(key, str) and not hasattr(type(made), key)
                )


_DTYPES: dict[str, torch.dtype] = {}


def _dtype(name: str) -> torch.dtype:
    found = _DTYPES.get(name)
    if found is None:
        found = _DTYPES.setdefault(name, torch_dtype(name))
    return found
