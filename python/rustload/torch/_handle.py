"""`TorchHandle`: what a lazy tensor looks like to code that expects a `torch.Tensor`.

Shape, dtype and the like are answered from the metadata. Indexing gives another handle where the index can be lazy. Anything
else, a method, an operator or a function of torch, gets the tensor, which is read at that moment and not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rustload import _rustload
from rustload._common.rules import PLAIN
from rustload._frameworks.torch import torch_dtype
from rustload.errors import _clipped
from rustload.torch._fill import WINDOW, check_numbers, fill
from rustload.torch._operators import Operators, read_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rustload._tensor.handle import LazyTensor
    from rustload.torch._own_views import OwnViews

__all__ = ["TorchHandle"]

_CODES = {name: code for name, _, code in _rustload.DTYPES if code is not None}


class TorchHandle(Operators):
    """A tensor of a checkpoint that torch's own code may take for a tensor, read when its elements are used.

    It has a tensor's attributes and methods, and functions of torch take it through `__torch_function__`. Every use of the
    elements reads them again, so `.to(...)`, `.clone()` or `.tensor()` are for keeping. `param.copy_(handle)` and
    `Module.load_state_dict` read straight into the parameter. It may be used from any thread.

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
    _views: OwnViews | None

    def __init__(
        self,
        lazy: LazyTensor,
        dtype: str | None = None,
        device: torch.device | None = None,
        views: OwnViews | None = None,
    ) -> None:
        """Wraps a lazy tensor; `dtype` and `device` are what reading it gives, by default the file's and the CPU.

        `views` says which mapping views are of; None takes that of the lazy tensor.
        """
        self._lazy = lazy
        self._views = views
        self._dtype = dtype or lazy.dtype
        self._device = device or torch.device("cpu")

    def tensor(self) -> torch.Tensor:
        """The tensor itself: a view of the file where that is possible, as `LazyTensor.materialize` gives it.

        Views of tensors that are read one after another share one private mapping. Reading a tensor again begins a new one, so
        two models that are loaded from one state dict share no memory.

        Raises:
            FormatError: The file was cut or changed meanwhile, or its member is damaged.
            UnsupportedError: It is quantized; see `dequantize` and `int_repr`.
        """
        return self._read()

    def _read(
        self, device: Any = None, dtype: str | None = None, *, copy: bool | None = None
    ) -> torch.Tensor:
        dtype = dtype or self._dtype
        check_numbers(self._lazy)
        lazy = self._lazy if self._views is None else self._views.of(self._lazy)
        if not _cast_alike(lazy.dtype, dtype):
            made = lazy.materialize(device or self._device, copy=copy, framework="torch")
            return made.to(torch_dtype(dtype))  # type: ignore[no-any-return]
        return lazy.materialize(  # type: ignore[no-any-return]
            device or self._device, dtype, copy=copy, framework="torch"
        )

    # Answered from the metadata.

    @property
    def lazy(self) -> LazyTensor:
        """The lazy tensor below."""
        return self._lazy

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that reading it gives; torch's own of quantized tensors for these."""
        found = self._lazy.quantization
        return torch_dtype(self._dtype if found is None else found.dtype)

    @property
    def shape(self) -> torch.Size:
        """Elements along each dimension."""
        return torch.Size(self._lazy.shape)

    @property
    def device(self) -> torch.device:
        """Where reading it puts it."""
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
        return self._lazy.size * self.dtype.itemsize

    @property
    def layout(self) -> torch.layout:
        """`torch.strided`."""
        return torch.strided

    @property
    def requires_grad(self) -> bool:
        """False: a handle is no leaf of any graph."""
        return False

    @property
    def is_meta(self) -> bool:
        """False: there is data to be had."""
        return False

    @property
    def is_cuda(self) -> bool:
        """Whether reading it puts it on a GPU."""
        return self._device.type == "cuda"

    @property
    def is_sparse(self) -> bool:
        """False."""
        return False

    @property
    def is_quantized(self) -> bool:
        """Whether its elements are integers that stand for numbers; `dequantize` gives these, and nothing else does."""
        return self._lazy.quantization is not None

    @property
    def grad(self) -> None:
        """None."""
        return

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
        return self._lazy.size

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
        """The shape, as slices of safetensors have it."""
        return list(self._lazy.shape)

    def get_dtype(self) -> str:
        """The dtype's code in safetensors, such as `"BF16"`; torch's name where it has none."""
        return _CODES.get(self._dtype, self._dtype)

    def detach(self) -> TorchHandle:
        """The handle itself: there is no graph."""
        return self

    def requires_grad_(self, requires_grad: bool = True) -> TorchHandle:  # noqa: ARG002, FBT001, FBT002 - torch's signature
        """Refuses: here a handle would become a parameter, which `Module.load_state_dict(assign=True)` asks for.

        Raises:
            TypeError: Always; `rustload.torch.load_into` is what gives a module its storage.
        """
        raise TypeError(
            "a lazy handle cannot become a parameter, as assign=True wants: "
            "use rustload.torch.load_into(model, path), or .tensor() for the tensor itself"
        )

    # Lazy still.

    def _like(self, lazy: LazyTensor) -> TorchHandle:
        """A handle of another part or order of the same tensor."""
        return TorchHandle(lazy, self._dtype, self._device, self._views)

    def __getitem__(self, key: Any) -> Any:
        """A part: another handle for ints, slices, `...` and None, and a tensor for what cannot be lazy, such as a mask."""
        try:
            part = self._lazy[key]
        except (TypeError, ValueError):
            return self.tensor()[key]
        return self._like(part)

    def permute(self, *dims: Any) -> TorchHandle:
        """The same elements with the dimensions in another order."""
        return self._like(self._lazy.permute(*dims))

    def t(self) -> TorchHandle:
        """The transpose of a matrix; a vector as it is."""
        return self.T if self.ndim == 2 else self

    @property
    def T(self) -> TorchHandle:  # noqa: N802 - torch's name
        """The dimensions reversed."""
        return self._like(self._lazy.T)

    def __len__(self) -> int:
        """The size of the first dimension."""
        return len(self._lazy)

    # Read here.

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The tensor with another dtype or on another device, cast while it is read.

        Args:
            *args: As for `torch.Tensor.to`.
            **kwargs: As for `torch.Tensor.to`.
        """
        device, dtype, _, memory_format = torch._C._nn._parse_to(*_without(args, kwargs))  # type: ignore[call-overload]
        copy = True if kwargs.get("copy") else None
        made = self._read(device, None if dtype is None else str(dtype).removeprefix("torch."), copy=copy)
        return made if memory_format is None else made.to(memory_format=memory_format)

    def dequantize(self) -> torch.Tensor:
        """The numbers that a quantized tensor stands for, in float32; another tensor as it is, in float32, as torch has it."""
        if self._lazy.quantization is None:
            return self.to(torch.float32)
        return self._lazy.materialize(self._device, dequantize=True, framework="torch")  # type: ignore[no-any-return]

    def int_repr(self) -> torch.Tensor:
        """The integers of a quantized tensor.

        Raises:
            RuntimeError: It is not quantized.
        """
        if self._lazy.quantization is None:
            raise RuntimeError(f"{self._lazy.name!r} is not quantized: it has no integers that stand for it")
        return self._lazy.materialize(self._device, framework="torch")  # type: ignore[no-any-return]

    def clone(self, *, memory_format: torch.memory_format = torch.preserve_format) -> torch.Tensor:
        """The tensor in memory of its own."""
        made = self._read(copy=True)
        return (
            made if memory_format is torch.preserve_format else made.contiguous(memory_format=memory_format)
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001 - NumPy's signature
        """NumPy's conversion protocol."""
        check_numbers(self._lazy)
        return self._lazy.__array__(dtype, copy=copy)

    def __bool__(self) -> bool:
        """The one element's truth, as torch has it."""
        return bool(self.tensor())

    def __float__(self) -> float:
        """The one element."""
        return float(self.tensor())

    def __int__(self) -> int:
        """The one element."""
        return int(self.tensor())

    def __index__(self) -> int:
        """The one element of an integer tensor."""
        return self.tensor().__index__()

    def __iter__(self) -> Any:
        """The parts along the first dimension, as handles."""
        return (self[position] for position in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        """Any other method or attribute of a tensor; a method reads the elements when it is called, not before."""
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
        """Functions of torch: those about metadata are answered, `copy_` reads into its target, the rest get the tensors."""
        kwargs = kwargs or {}
        if func in _ABOUT and len(args) == 1 and isinstance(args[0], TorchHandle):
            return _ABOUT[func](args[0])
        if func is torch.Tensor.copy_ and not kwargs and _copied(*args):
            return args[0]
        return func(*read_all(args), **read_all(kwargs))

    def __deepcopy__(self, memo: Any) -> TorchHandle:
        """The handle itself: it cannot be changed."""
        return self

    def __repr__(self) -> str:
        """Name, dtype and shape; reads nothing."""
        return f"<TorchHandle {_clipped(self._lazy.name)!r} {self._dtype} {list(self._lazy.shape)}>"

    def __reduce__(self) -> Any:
        """Handles do not pickle."""
        raise TypeError(
            "a lazy tensor does not pickle; open the checkpoint again, or take its .tensor() first"
        )


def _copied(target: Any, source: Any, *rest: Any) -> bool:
    """Reads `source` into `target` where that is the same as copying it there; False where it is not."""
    plain = (
        not rest
        and isinstance(source, TorchHandle)
        and isinstance(target, torch.Tensor)
        and not target.is_meta
    )
    if plain:
        check_numbers(source._lazy)
    if not plain or target.shape != source.shape or (target.requires_grad and torch.is_grad_enabled()):
        return False
    name = str(target.dtype).removeprefix("torch.")
    if source._dtype != source._lazy.dtype or not _cast_alike(source._lazy.dtype, name):
        return False
    fill(target.detach(), source._lazy, WINDOW)
    torch.autograd.graph.increment_version(target)
    return True


def _cast_alike(source: str, target: str) -> bool:
    """Whether rustload may cast in torch's place: to the same dtype, or to a float that both round to in the same way."""
    if source == target:
        return True
    return torch_dtype(source).is_floating_point and target in PLAIN


def _without(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of `.to`, positional, in one of the forms that torch parses; `copy` is looked at elsewhere."""
    args = tuple(
        torch.empty(0, dtype=arg.dtype, device=arg.device) if isinstance(arg, TorchHandle) else arg
        for arg in args
    )
    device, dtype = kwargs.get("device"), kwargs.get("dtype")
    given = [value for value in (device, dtype) if value is not None]
    if args and isinstance(args[-1], bool):
        args = tuple(arg for arg in args if not isinstance(arg, bool))
    return (*args, *given)


_ABOUT: dict[Any, Callable[[TorchHandle], Any]] = {
    torch.is_floating_point: TorchHandle.is_floating_point,
    torch.is_complex: TorchHandle.is_complex,
    torch.numel: TorchHandle.numel,
    torch.Tensor.size: TorchHandle.size,
    torch.Tensor.numel: TorchHandle.numel,
    torch.Tensor.dim: TorchHandle.dim,
    torch.dequantize: TorchHandle.dequantize,
    torch.int_repr: TorchHandle.int_repr,
}
