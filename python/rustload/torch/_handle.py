"""`TorchHandle`: a lazy tensor with the interface of `torch.Tensor`.

Shape, dtype and other metadata need no read. Basic indexing returns another handle. Every other method, operator or torch
function reads the tensor at that moment and does not keep it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rustload._common.dtype_rows import DTYPE_ROWS
from rustload._common.rules import DEFAULT_CAST_DTYPES
from rustload._frameworks.torch import torch_dtype
from rustload.errors import _clipped
from rustload.torch._fill import WINDOW_BYTES, check_numbers, fill
from rustload.torch._operators import Operators, read_all
from rustload.torch._shards import is_dtensor, local_of, local_runs, local_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rustload._tensor.handle import LazyTensor
    from rustload.torch._private_views import PrivateViews


class TorchHandle(Operators):
    """A lazy tensor that torch functions accept in place of a tensor; its elements are read when they are used.

    It has the attributes and methods of a tensor, and torch functions accept it through `__torch_function__`. Every use of the
    elements reads them again; keep the result of `.to(...)`, `.clone()` or `.tensor()` to avoid that. `param.copy_(handle)` and
    `Module.load_state_dict` read directly into the parameter. Thread-safe.

    >>> import torch, rustload.torch
    >>> handle = rustload.torch.state_dict("model.pt")["q.weight"]
    >>> handle.dtype, handle.shape, handle[0:2].shape
    (torch.float32, torch.Size([8, 8]), torch.Size([2, 8]))
    >>> torch.equal(handle.to(torch.bfloat16), handle.tensor().bfloat16())
    True
    """

    __slots__ = ("_device", "_dtype", "_lazy", "_views")

    _lazy: LazyTensor
    _dtype: str
    _device: torch.device
    _views: PrivateViews | None
    layout = torch.strided
    """`torch.strided`."""
    requires_grad = False
    """False: a handle is not part of an autograd graph."""
    is_meta = False
    """False: it has data."""
    is_sparse = False
    """Never."""
    grad = None
    """None, as for a tensor that is not part of a graph."""

    def __init__(
        self,
        lazy: LazyTensor,
        dtype: str | None = None,
        device: torch.device | None = None,
        views: PrivateViews | None = None,
    ) -> None:
        """Wraps a lazy tensor.

        Args:
            lazy: The tensor.
            dtype: The dtype of the read tensor; None is the file's.
            device: The device of the read tensor; None is the CPU.
            views: Chooses the mapping of views; None is that of the lazy tensor.
        """
        self._lazy = lazy
        self._views = views
        self._dtype = dtype or lazy.dtype
        self._device = device or torch.device("cpu")

    def tensor(self) -> torch.Tensor:
        """Reads the tensor; a view of the file if possible, as by `LazyTensor.materialize`.

        Views of tensors that are read one after another share one private mapping. Reading a tensor again starts a new mapping:
        two models that are loaded from one state dict share no memory if one is loaded after the other, not at the same time.

        Raises:
            FormatError: The file was truncated or changed since it was opened, or is damaged.
            UnsupportedError: It is quantized; see `dequantize` and `int_repr`.
        """
        return self._read()

    def _read(
        self, device: Any = None, dtype: str | None = None, *, copy: bool | None = None
    ) -> torch.Tensor:
        dtype = dtype or self._dtype
        if self._dtype not in (dtype, self._lazy.dtype):
            # The numbers are those of the handle's dtype, rounded to it, as `tensor()` gives them.
            return self._read(device, copy=copy).to(torch_dtype(dtype))
        check_numbers(self._lazy)
        lazy = self._lazy if self._views is None else self._views.of(self._lazy)
        if not _casts_as_torch(lazy.dtype, dtype):
            made = lazy.materialize(device or self._device, copy=copy, framework="torch")
            return made.to(torch_dtype(dtype))  # type: ignore[no-any-return]
        return lazy.materialize(  # type: ignore[no-any-return]
            device or self._device, dtype, copy=copy, framework="torch"
        )

    # Metadata: no read.

    @property
    def lazy(self) -> LazyTensor:
        """The wrapped lazy tensor."""
        return self._lazy

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the read tensor; a quantized tensor has torch's quantized dtype."""
        found = self._lazy.quantization
        return torch_dtype(self._dtype if found is None else found.dtype)

    @property
    def shape(self) -> torch.Size:
        """Elements along each dimension."""
        return torch.Size(self._lazy.shape)

    @property
    def device(self) -> torch.device:
        """The device of the read tensor."""
        return self._device

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self._lazy.ndim

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together."""
        return self._lazy.numel() * self.dtype.itemsize

    @property
    def is_cuda(self) -> bool:
        """Whether the read tensor is on a GPU."""
        return self._device.type == "cuda"

    @property
    def is_quantized(self) -> bool:
        """Whether the tensor is quantized; only `dequantize` returns its numbers."""
        return self._lazy.quantization is not None

    @property
    def data(self) -> TorchHandle:
        """The handle itself."""
        return self

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the elements along one dimension."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of dimensions."""
        return self._lazy.ndim

    def numel(self) -> int:
        """The number of elements."""
        return self._lazy.numel()

    nelement = numel

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the dtype is a float."""
        return self.dtype.is_floating_point

    def is_complex(self) -> bool:
        """Whether the dtype is complex."""
        return self.dtype.is_complex

    def get_shape(self) -> list[int]:
        """The shape as a list, as safetensors' `PySafeSlice` returns it."""
        return list(self._lazy.shape)

    def get_dtype(self) -> str:
        """The safetensors dtype code, such as `"BF16"`; torch's name if there is no code."""
        return DTYPE_ROWS[self._dtype].code or self._dtype

    def detach(self) -> TorchHandle:
        """The handle itself: it is not part of an autograd graph."""
        return self

    def requires_grad_(self, requires_grad: bool = True) -> TorchHandle:  # noqa: ARG002, FBT001, FBT002 - torch's signature
        """Not supported: `Module.load_state_dict(assign=True)` calls this to make the handle a parameter.

        Raises:
            TypeError: Always; use `rustload.torch.load_into` to assign storage.
        """
        raise TypeError(
            "a lazy handle cannot become a parameter, as assign=True requires: "
            "use rustload.torch.load_into(model, path), or .tensor() for the tensor itself"
        )

    def untyped_storage(self) -> Any:
        """Not supported, as `storage` and `data_ptr`: each use reads into other memory, so an address would be of freed memory.

        Raises:
            TypeError: Always; use `.tensor()`.
        """
        raise TypeError(
            "a lazy handle has no memory, and so no address: use .tensor() for the tensor itself, "
            "or rustload.save(state_dict, path) to write a file or shards"
        )

    storage = data_ptr = untyped_storage

    # Lazy: returns handles, no read.

    def _like(self, lazy: LazyTensor) -> TorchHandle:
        """A handle of another part or order of the same tensor."""
        return TorchHandle(lazy, self._dtype, self._device, self._views)

    def __getitem__(self, key: Any) -> Any:
        """A handle for basic indexing (ints, slices, `...`, None); a tensor for advanced indexing, such as a mask."""
        try:
            part = self._lazy[key]
        except (TypeError, ValueError):
            return self.tensor()[key]
        return self._like(part)

    def permute(self, *dims: Any) -> TorchHandle:
        """The same elements with the dimensions in another order."""
        return self._like(self._lazy.permute(*dims))

    def t(self) -> TorchHandle:
        """The transpose of a matrix; a vector as it is.

        Raises:
            RuntimeError: It has more than two dimensions, as in torch.
        """
        if self.ndim > 2:
            raise RuntimeError(f"t() is for at most two dimensions, and the shape is {list(self.shape)}")
        return self.T if self.ndim == 2 else self

    @property
    def T(self) -> TorchHandle:  # noqa: N802 - torch's name
        """The dimensions reversed."""
        return self._like(self._lazy.T)

    def __len__(self) -> int:
        """The size of the first dimension."""
        return len(self._lazy)

    # These read the elements.

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Reads the tensor with another dtype or on another device; casts while reading.

        Args:
            *args: As for `torch.Tensor.to`.
            **kwargs: As for `torch.Tensor.to`.
        """
        args, kwargs, copy = _without_copy(args, kwargs)
        parsed: tuple[Any, Any, bool, Any] = torch._C._nn._parse_to(*args, **kwargs)
        device, dtype, _, memory_format = parsed
        name = None if dtype is None else str(dtype).removeprefix("torch.")
        made = self._read(device, name, copy=True if copy else None)
        return made if memory_format is None else made.to(memory_format=memory_format)

    def dequantize(self) -> torch.Tensor:
        """The dequantized numbers in float32; a tensor that is not quantized is cast to float32, as in torch.

        Raises:
            UnsupportedError: It is codes of a quantized weight (code `QuantUnknown`).
        """
        if not self._lazy._is_scaled():
            return self.to(torch.float32)
        return self._lazy.materialize(self._device, dequantize=True, framework="torch")  # type: ignore[no-any-return]

    def int_repr(self) -> torch.Tensor:
        """The integers of a quantized tensor.

        Raises:
            RuntimeError: It is not quantized.
        """
        if self._lazy.quantization is None:
            raise RuntimeError(f"{self._lazy.name!r} is not quantized: int_repr() is for quantized tensors")
        return self._lazy.materialize(self._device, framework="torch")  # type: ignore[no-any-return]

    def clone(self, *, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        """Reads the tensor into its own memory."""
        made = self._read(copy=True)
        return (
            made if memory_format is torch.preserve_format else made.contiguous(memory_format=memory_format)
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001 - NumPy's signature
        """NumPy's conversion protocol."""
        check_numbers(self._lazy)
        if self._dtype == self._lazy.dtype:
            return self._lazy.__array__(dtype, copy=copy)
        if copy is False:
            raise ValueError(f"a copy is needed to make {self._dtype} of {self._lazy.dtype}")
        is_exact = _casts_as_torch(self._lazy.dtype, self._dtype)
        array = (
            self._lazy.materialize(dtype=self._dtype, framework="numpy")
            if is_exact
            else self.tensor().numpy()
        )
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **how: Any) -> Any:
        """DLPack's conversion protocol, which `torch.as_tensor` and others use."""
        return self.tensor().__dlpack__(**how)

    def __dlpack_device__(self) -> Any:
        """The device of the read tensor, for DLPack."""
        return torch.empty(0, device=self._device).__dlpack_device__()

    def __contains__(self, element: Any) -> bool:
        """Whether an element equals it, as in torch."""
        return element in self.tensor()

    def __format__(self, spec: str) -> str:
        """The only element, formatted as a number; else as `repr`."""
        return format(repr(self) if self.ndim else self.tensor(), spec)

    def __bool__(self) -> bool:
        """The truth value of the only element, as in torch."""
        return bool(self.tensor())

    def __float__(self) -> float:
        """The only element."""
        return float(self.tensor())

    def __int__(self) -> int:
        """The only element."""
        return int(self.tensor())

    def __index__(self) -> int:
        """The only element of an integer tensor."""
        return self.tensor().__index__()

    def __iter__(self) -> Any:
        """The parts along the first dimension, as handles.

        Raises:
            TypeError: It has no dimensions, as in torch.
        """
        if not self.ndim:
            raise TypeError("iteration over a 0-d tensor")
        return (self[position] for position in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        """Any other attribute of `torch.Tensor`; a method reads the elements when it is called."""
        found = None if name.startswith("_") else getattr(torch.Tensor, name, None)
        if found is None:
            raise AttributeError(f"'TorchHandle' object has no attribute {name!r}")
        if callable(found):
            return lambda *args, **kwargs: getattr(self.tensor(), name)(*read_all(args), **read_all(kwargs))
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """torch functions: metadata needs no read, `copy_` reads into its target, all others get the read tensors."""
        kwargs = kwargs or {}
        if func in _METADATA_FUNCTIONS and len(args) == 1 and isinstance(args[0], TorchHandle):
            return _METADATA_FUNCTIONS[func](args[0])
        if func is torch.Tensor.copy_ and not kwargs and _read_into(*args):
            return args[0]
        return func(*read_all(args), **read_all(kwargs))

    def __deepcopy__(self, memo: Any) -> TorchHandle:
        """The handle itself: it cannot be changed."""
        return self

    def __repr__(self) -> str:
        """Name, dtype and shape; reads nothing."""
        return f"<TorchHandle {_clipped(self._lazy.name)!r} {self._dtype} {list(self._lazy.shape)}>"

    def __copy__(self) -> TorchHandle:
        """The handle itself: it cannot be changed."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the lazy tensor, without elements: see `rustload.LazyTensor`. So does `torch.save` of a handle.

        Raises:
            TypeError: As for a lazy tensor.
        """
        return TorchHandle, (self._lazy, str(self._dtype), self._device, self._views)


def _read_into(target: Any, source: Any, *rest: Any) -> bool:
    """Reads `source` directly into `target`; returns False if the result could differ from that of `copy_`."""
    is_supported = (
        not rest
        and isinstance(source, TorchHandle)
        and isinstance(target, torch.Tensor)
        and not target.is_meta
    )
    if is_supported:
        check_numbers(source._lazy)
    if not is_supported or target.shape != source.shape or (target.requires_grad and torch.is_grad_enabled()):
        return False
    name = str(target.dtype).removeprefix("torch.")
    if source._dtype != source._lazy.dtype or not _casts_as_torch(source._lazy.dtype, name):
        return False
    lazy = source._lazy
    if is_dtensor(target):
        runs = local_runs(target, lazy.name)
        if runs is not None:
            fill(local_tensor(target), local_of(lazy, runs, lazy.name), WINDOW_BYTES)
    else:
        fill(target.detach(), lazy, WINDOW_BYTES)
    torch.autograd.graph.increment_version(target)
    return True


def _casts_as_torch(source: str, target: str) -> bool:
    """Whether rustload's cast equals torch's: to the same dtype, or between floats with the same rounding."""
    if source == target:
        return True
    return torch_dtype(source).is_floating_point and target in DEFAULT_CAST_DTYPES


def _without_copy(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """The arguments of `.to` without `copy`, which torch's parser refuses, and its value."""
    like = tuple(
        torch.empty(0, dtype=arg.dtype, device=arg.device) if isinstance(arg, TorchHandle) else arg
        for arg in args
    )
    kwargs = dict(kwargs)
    copy = bool(kwargs.pop("copy", False))
    # By position, `copy` is the second bool, after `non_blocking`.
    if len(like) > 2 and all(isinstance(arg, bool) for arg in like[-2:]):
        like, copy = like[:-1], bool(like[-1])
    return like, kwargs, copy


_METADATA_FUNCTIONS: dict[Any, Callable[[TorchHandle], Any]] = {
    torch.is_floating_point: TorchHandle.is_floating_point,
    torch.is_complex: TorchHandle.is_complex,
    torch.numel: TorchHandle.numel,
    torch.Tensor.size: TorchHandle.size,
    torch.Tensor.numel: TorchHandle.numel,
    torch.Tensor.dim: TorchHandle.dim,
    torch.dequantize: TorchHandle.dequantize,
    torch.int_repr: TorchHandle.int_repr,
}
