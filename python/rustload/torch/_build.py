"""`Builder`: creates the torch objects in the result of `load`, from numbers that the core has validated.

The extension walks the object tree and calls a `Builder` for every value that is not a plain Python value. No function that the
file names is called.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any

import torch

from rustload._frameworks.torch import sparse, torch_dtype
from rustload._tensor.inert import Opaque
from rustload.errors import _error
from rustload.torch import _allowed, _load_errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload.torch._locations import Storages

_LAYOUTS = {str(value): value for value in vars(torch).values() if isinstance(value, torch.layout)}

# Annotated here because torch's stubs lack some arguments.
_empty: Callable[..., torch.UntypedStorage] = torch.UntypedStorage

# The bits of a tensor's flags (src/python/objects/target.rs: `flags`).
_GRAD, _PARAMETER, _CONJUGATE, _NEGATIVE, _META, _HOOKS = 1, 2, 4, 8, 16, 32
_PLAIN = _GRAD | _HOOKS


class Builder:
    """Creates the torch objects of one file.

    Args:
        storages: The file's storages.
        strict: Whether values that torch would reject raise, instead of being kept as inert data.
        encoding: The encoding of binary strings of Python 2, or `"bytes"`, as for `torch.load`; None reads them as UTF-8, and as
            bytes if they are not.

    Attributes:
        has_data: Whether the storages hold the bytes of the file.
        byte_string: What makes a value of a binary string of Python 2; None without an `encoding`.
    """

    def __init__(self, storages: Storages, *, strict: bool, encoding: Any = None) -> None:
        self._storages = storages
        self._strict = strict
        self.has_data = storages.has_data
        self.byte_string: Callable[[bytes], Any] | None = None
        if encoding is not None:
            self.byte_string = bytes if encoding == "bytes" else lambda data: data.decode(encoding, "strict")
        self._storage_objects: dict[tuple[int, str, tuple[int, int] | None], torch.storage.TypedStorage] = {}

    def tensor(
        self,
        storage: int,
        dtype: str,
        offset: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        flags: int,
    ) -> torch.Tensor:
        """A tensor on its storage, as `torch._utils._rebuild_tensor_v2` and similar functions create it."""
        if flags & _META:
            made = torch.empty_strided(shape, strides, dtype=torch_dtype(dtype), device="meta")
            made = self._with_flags(made, flags)
            if flags & _HOOKS:
                made._backward_hooks = collections.OrderedDict()
            return made
        storages = self._storages
        made = torch.empty((0,), dtype=torch_dtype(dtype), device=storages.devices[storage])
        made.set_(storages.by_number[storage], offset, shape, strides)
        if flags | _PLAIN != _PLAIN:
            made = self._with_flags(made, flags)
        elif flags & _GRAD:
            made.requires_grad = True
        if flags & _HOOKS:
            made._backward_hooks = collections.OrderedDict()
        if storages.locations is not None:
            made.fake_device = torch.device(storages.locations[storage] or "cpu")  # type: ignore[attr-defined]
        return made

    def _with_flags(self, made: torch.Tensor, flags: int) -> torch.Tensor:
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
        location: tuple[int, str, int, tuple[int, ...], tuple[int, ...]],
        flags: int,
        scheme: str,
        scale: tuple[Any, Any, int | None],
    ) -> torch.Tensor:
        """A quantized tensor on its storage (torch/_utils.py: `_rebuild_qtensor`); it is first created without elements.

        Raises:
            RuntimeError: torch does not support this quantized tensor, or not on this device.
        """
        number, name, offset, shape, strides = location
        base, device = self._storages.by_number[number], self._storages.devices[number]
        scales, zero_points, axis = scale
        options: dict[str, Any] = {"dtype": torch_dtype(name), "device": device}
        if scheme == "per_tensor_affine":
            made = torch._empty_affine_quantized([0], scale=scales, zero_point=zero_points, **options)
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
                empty, scales=scales, zero_points=zero_points, axis=axis, **options
            )
        else:
            raise RuntimeError(f"Can't deserialize quantized tensor with qscheme torch.{scheme}")
        made.set_(base, offset, shape, strides)
        if flags:
            made = self._with_flags(made, flags)
        made._backward_hooks = collections.OrderedDict()
        return made

    def sparse(
        self, form: tuple[str, tuple[int, ...], bool | None], parts: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """A sparse tensor from its parts, whose indices the core has checked: torch's kernels do not check them.

        Raises:
            FormatError: torch refuses the parts (code `SparseInvariant`).
        """
        layout, shape, is_coalesced = form
        try:
            return sparse(layout, shape, parts, is_coalesced=is_coalesced)
        except RuntimeError as error:
            raise _error("SparseInvariant", str(error)) from None

    def parameter(self, made: torch.Tensor) -> torch.nn.Parameter:
        """A parameter, for a tensor that the file marks as one only by its class."""
        return made.as_subclass(torch.nn.Parameter)

    def storage(self, number: int, dtype: str, part: tuple[int, int] | None) -> torch.storage.TypedStorage:
        """A storage of the tree, or its part by first byte and size; the same object for each occurrence."""
        key = (number, dtype, part)
        if key not in self._storage_objects:
            made = self._storages.by_number[number]
            if part is not None:
                start, nbytes = part
                is_meta = made.device.type == "meta"  # where torch has no slices
                made = _empty(nbytes, device="meta") if is_meta else made[start : start + nbytes]
            self._storage_objects[key] = torch.storage.TypedStorage(  # type: ignore[no-untyped-call]
                wrap_storage=made, dtype=torch_dtype(dtype), _internal=True
            )
        return self._storage_objects[key]

    def size(self, items: tuple[Any, ...]) -> tuple[Any, ...]:
        """A `torch.Size`; a plain tuple if the items are not valid sizes."""
        try:
            return torch.Size(items)
        except (TypeError, ValueError, OverflowError, RuntimeError):
            return items

    def label(self, module: str, name: str) -> Any:
        """The class or constant of that name on the allowlist; None keeps it as a `Global`."""
        return _allowed.VALUES.get(f"{module}.{name}")

    def record(self, class_name: str, args: tuple[Any, ...]) -> Any:
        """A device, a layout, or a parameter of a sparse tensor; inert data if torch cannot create it."""
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
        """Called for a value that is kept as inert data.

        Raises:
            DisallowedError: `unknown="error"` is set.
        """
        if self._strict:
            _load_errors.refuse_class(class_name)

    def attributes(self, made: Any, attributes: dict[Any, Any]) -> None:
        """Sets the attributes of a mapping, such as a state dict's `_metadata`, or of a tensor.

        It writes only into the object's `__dict__`, and skips names that its class has, so no code runs and nothing is shadowed.
        """
        own = getattr(made, "__dict__", None)
        if not isinstance(own, dict):
            return
        own.update(
            (key, value)
            for key, value in attributes.items()
            if isinstance(key, str) and not hasattr(type(made), key)
        )
