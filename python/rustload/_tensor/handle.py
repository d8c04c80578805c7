"""`LazyTensor`: a tensor of a checkpoint, or a part of one, until somebody asks for its elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

from rustload._common.dtype_args import choose, dtype_name, order_of
from rustload._common.request import (
    Cast,
    Overflow,
    Transpose,
    Wanted,
    checked_cast,
    checked_copy,
    checked_overflow,
    checked_threads,
)
from rustload._common.sizes import format_bytes
from rustload._frameworks import adapters
from rustload.errors import _clipped, _make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import numpy as np
    import torch

    from rustload import _rustload
    from rustload._frameworks.adapters import Shared

__all__ = ["LazyTensor", "Quantization"]


class Quantization(NamedTuple):
    """How a quantized tensor's integers stand for numbers: `(q - zero_point) * scale`.

    Attributes:
        dtype: The dtype as torch calls it: `"qint8"`, `"quint8"`, `"qint32"`, `"quint4x2"` or `"quint2x4"`.
        scheme: `"per_tensor_affine"`, `"per_channel_affine"` and the like.
        scale: What to multiply with: a float, or a LazyTensor or a list with one number for each step along `axis`.
        zero_point: The integer that is zero, likewise; floats in `"per_channel_affine_float_qparams"`.
        axis: The dimension of the scales, in the tensor as the file has it; None for one scale for all.
        packed: Shape, strides and offset in numbers, where several share a byte: the tensor itself is then all bytes of its
            storage. None elsewhere.
    """

    dtype: str
    scheme: str
    scale: float | LazyTensor | list[float]
    zero_point: int | LazyTensor | list[int]
    axis: int | None
    packed: tuple[tuple[int, ...], tuple[int, ...], int] | None


class LazyTensor:
    """A tensor that has not been read yet.

    Indexing, `.T` and `.permute` give other lazy tensors and read nothing. `materialize` reads the elements that are asked for,
    no more, and makes a tensor of the framework. A handle keeps its checkpoint's file open, so it outlives the checkpoint.

    >>> import rustload
    >>> t = rustload.open("model.pt")["q.weight"]
    >>> t.dtype, t.shape, t.nbytes
    ('float32', (8, 8), 256)
    >>> t[1:3, ::2].shape
    (2, 4)
    >>> t[1:3].materialize(dtype="bfloat16", transpose=True).shape
    torch.Size([8, 2])
    """

    __slots__ = ("_core", "_shared")

    _core: _rustload.Tensor
    _shared: Shared

    def __init__(self) -> None:
        """Not for users: handles come from a checkpoint.

        Raises:
            TypeError: Always.
        """
        raise TypeError("lazy tensors come from a checkpoint: rustload.open(path)[name]")

    @classmethod
    def _wrap(cls, core: _rustload.Tensor, shared: Shared) -> Self:
        made = cls.__new__(cls)
        made._core = core
        made._shared = shared
        return made

    def _with_views_in(self, shared: Shared) -> Self:
        """The same tensor, whose views under torch are of the mapping and the storages of `shared`."""
        return self._wrap(self._core, shared)

    @property
    def name(self) -> str:
        """The tensor's name in its checkpoint; empty for one that only `Checkpoint.objects` leads to."""
        return self._core.name

    @property
    def path(self) -> tuple[Any, ...]:
        """The keys and indices that lead to it from the root of `Checkpoint.objects`."""
        return self._core.path

    @property
    def dtype(self) -> str:
        """The element type in the file, in torch's words: `"bfloat16"`."""
        return self._core.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements along each dimension."""
        return self._core.shape

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each dimension, in the file."""
        return self._core.strides

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._core.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._core.size

    @property
    def nbytes(self) -> int:
        """Bytes of all elements together, in the file's dtype."""
        return self._core.nbytes

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie in C order without gaps."""
        return self._core.is_contiguous

    @property
    def is_parameter(self) -> bool:
        """Whether the file has it as a `torch.nn.Parameter`."""
        return self._core.is_parameter

    @property
    def requires_grad(self) -> bool:
        """Whether the file says that it wants gradients."""
        return self._core.requires_grad

    @property
    def is_meta(self) -> bool:
        """Whether it was saved on the meta device: a shape without elements, which only framework "torch" can make."""
        return self._core.is_meta

    @property
    def class_name(self) -> str | None:
        """The subclass of `torch.Tensor` that the file has it as, as `module.name`; None for plain tensors and parameters."""
        return self._core.class_name

    @property
    def attributes(self) -> dict[str, Any]:
        """What was set on the tensor when it was saved, as `Checkpoint.objects` has values; a fresh dict.

        A state of another form than attributes, as classes with a `__setstate__` have it, is under `"__setstate__"`.
        """
        found: dict[str, Any] = {}
        for state in self._core.attributes(self._wrap_core):
            for half in state if isinstance(state, tuple) and len(state) == 2 else (state,):
                if isinstance(half, dict):
                    found.update(half)
                elif half is not None:
                    found["__setstate__"] = state
        return found

    @property
    def quantization(self) -> Quantization | None:
        """How the integers stand for numbers; None for a tensor that is not quantized.

        It is that of the whole tensor; `materialize(dequantize=True)` takes the scales of a part.
        """
        found = self._core.quantization(self._wrap_core)
        return None if found is None else Quantization(*found)

    def _wrap_core(self, core: _rustload.Tensor) -> LazyTensor:
        return LazyTensor._wrap(core, self._shared)

    @property
    def T(self) -> Self:  # noqa: N802 - the field's name for it
        """The same elements with the dimensions reversed."""
        return self._wrap(self._core.reversed(), self._shared)

    def permute(self, *dims: int | tuple[int, ...]) -> Self:
        """The same elements with the dimensions in another order.

        Args:
            *dims: A full permutation, as numbers or as one tuple; negative numbers count from the end.

        Raises:
            ValueError: `dims` is no permutation.
        """
        order = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
        return self._wrap(self._core.permute(list(order)), self._shared)  # type: ignore[arg-type]  # ints by now

    def __getitem__(self, key: Any) -> Self:
        """A part by basic indexing: ints, slices with positive steps, `...` and None, as in NumPy and torch.

        Raises:
            IndexError: An index is out of bounds, or there are too many.
            ValueError: A slice's step is not positive.
            TypeError: The index is a mask, a list or a tensor; these are not read lazily.
        """
        return self._wrap(self._core.index(key), self._shared)

    def __len__(self) -> int:
        """The size of the first dimension."""
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    __contains__ = None
    """Membership would read the elements: materialize them first."""

    def __bool__(self) -> bool:
        """Refuses: a tensor's truth is that of its elements, which are not read.

        Raises:
            TypeError: Always.
        """
        raise TypeError("a lazy tensor has no truth value; compare with None, or materialize it")

    def __iter__(self) -> Iterator[Self]:
        """The parts along the first dimension."""
        return (self[position] for position in range(len(self)))

    def materialize(
        self,
        device: Any = None,
        dtype: Any = None,
        transpose: Transpose | Mapping[str, Transpose] | Callable[[LazyTensor], Transpose] = None,
        *,
        copy: bool | None = None,
        out: Any = None,
        framework: str | None = None,
        allow_lossy: bool = False,
        dequantize: bool = False,
        overflow: Overflow = "nan",
        threads: int | None = None,
        cast: Cast = "auto",
        sync: bool = True,
    ) -> Any:
        """Reads the elements and makes a tensor of them, cast and transposed on the way.

        Args:
            device: `"cpu"` or None, `"cuda"`, `"cuda:1"`, a GPU number or a `torch.device`. Frameworks "torch", "jax" and
                "cupy" have GPUs; "jax" takes its own devices and shardings too.
            dtype: The dtype of the result: a string in torch's, safetensors' or NumPy's words, a `torch.dtype` or a NumPy dtype;
                a mapping from glob patterns of names, or a callable that gets this handle, gives one per tensor. None keeps
                the file's.
            transpose: True swaps the last two dimensions, a tuple is a full permutation; mappings and callables as for `dtype`.
            copy: None gives a view of the file (private, copy-on-write, no memory of its own) where neither cast nor transpose
                is asked for, and owned memory otherwise; True always gives owned memory; False gives a view or an error.
            out: An array or tensor of the result's shape to write into, on the CPU or a GPU; its dtype decides the cast.
                Nothing else may use its memory until the call returns; another call that writes to it is refused.
            framework: `"torch"`, `"numpy"`, `"jax"`, `"cupy"` or `"dlpack"`, in place of the checkpoint's.
            allow_lossy: Whether the cast may turn complex to real, float to int, or anything to bool. Floats that an int cannot
                hold saturate, NaN gives 0.
            dequantize: Whether the integers of a quantized tensor become the numbers that they stand for, in float32 or another
                float that `dtype` asks for. Other tensors are as without it.
            overflow: What a cast to fp8 makes of values that are too large: `"nan"` (as OCP says) or `"saturate"`.
            threads: Threads to use; None for one per core where the work is worth it.
            cast: Who casts and transposes for a result on a GPU: `"cpu"`, while it reads; `"gpu"`, after the copy, where that
                gives the same bits; `"auto"`: the CPU casts where that shortens the copy and does not slow it down, and the
                GPU does the rest. For results on the CPU it has no effect.
            sync: Whether a result on a GPU is complete when it is given. If not, it is so for all that you do on the stream
                that is current now (torch and CuPy; others are always complete). For results on the CPU it has no effect.

        Returns:
            A `torch.Tensor`, `numpy.ndarray`, `jax.Array`, `cupy.ndarray` or `rustload.Buffer`; `out` where that was given. Owned
            results are C-contiguous; views keep the file's strides.

        Raises:
            BufferError: `copy=False` and no view is possible.
            ValueError: The cast is lossy, or an argument does not fit.
            DeviceError: The device is not there.
            FormatError: The file was cut or changed meanwhile (code `FileChanged`), or its member is damaged.
            UnsupportedError: There is no such cast; or the tensor is on the meta device (code `MetaTensor`).
            LimitError: A tensor of repeated elements would grow beyond `Limits.materialize_bytes`.
        """
        # Most calls ask for nothing but the tensor: nothing is to be chosen or checked.
        is_plain = device is None and dtype is None and transpose is None and copy is None and out is None
        is_plain = is_plain and framework is None and threads is None and not dequantize
        if is_plain and overflow == "nan" and cast == "auto":
            made = self._shared.view_of(self._core)
            if made is not None:
                return made
        found = choose(dtype, self)
        if dequantize and found is None and out is None and self.quantization is not None:
            found = "float32"
        wanted = Wanted(
            dtype=None if found is None else dtype_name(found),
            transpose=order_of(choose(transpose, self)),
            copy=checked_copy(copy),
            allow_lossy=bool(allow_lossy),
            dequantize=bool(dequantize),
            overflow=checked_overflow(overflow),
            threads=checked_threads(threads),
            mappings=self._shared.mappings,
        )
        cast = checked_cast(cast)
        if out is not None:
            return self._materialize_out(out, device, wanted, cast=cast, sync=bool(sync))
        adapter = adapters.adapter(framework or self._shared.settle())
        where = adapter.check_device(device)
        gpu = None if self.is_meta else adapter.place(where)
        if gpu is None:
            return adapter.make(self._core, wanted, where, self._shared)
        from rustload._cuda import results  # few need it

        return results.make(self._core, wanted, gpu, cast=cast, sync=bool(sync))

    def _materialize_out(self, out: Any, device: Any, wanted: Wanted, *, cast: Cast, sync: bool) -> Any:
        if device is not None:
            raise _make("Value", "Value", "out= has a device of its own: leave device= away")
        if wanted.copy is False:
            raise _make("Buffer", "Buffer", "out= is a copy by nature: copy=False cannot be had")
        module = type(out).__module__.partition(".")[0]
        name = {"numpy": "numpy", "rustload": "dlpack", "jaxlib": "jax", "jax": "jax", "cupy": "cupy"}.get(
            module, "torch"
        )
        if not adapters.adapter(name).into(self._core, out, wanted, cast=cast, sync=sync):
            raise _make(
                "Type",
                "Type",
                f"out= is a {type(out).__name__}, not an array or tensor that can be written to",
            )
        return out

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array in the file's dtype; a view where possible."""
        return self.materialize(framework="numpy")  # type: ignore[no-any-return]

    def torch(self) -> torch.Tensor:
        """The elements as a torch tensor in the file's dtype; a view where possible."""
        return self.materialize(framework="torch")  # type: ignore[no-any-return]

    def bytes(self) -> bytes:
        """The elements' bytes in C order, whatever the dtype."""
        return self._core.materialize(Wanted(copy=True)).tobytes()

    def __array__(
        self,
        dtype: Any = None,
        copy: bool | None = None,  # noqa: FBT001 - NumPy's signature
    ) -> np.ndarray[Any, Any]:
        """NumPy's conversion protocol: `np.asarray(handle)`.

        Raises:
            ValueError: `copy=False` and no view is possible, as NumPy has it.
        """
        try:
            array: np.ndarray[Any, Any] = self.materialize(framework="numpy", copy=copy)
        except BufferError as error:
            raise ValueError(f"a copy is needed: {error}") from error
        if dtype is None or array.dtype == dtype:
            return array
        if copy is False:
            raise ValueError(f"a copy is needed to make {dtype} of {self.dtype}")
        return array.astype(dtype)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
        **extra: Any,
    ) -> Any:
        """DLPack: materializes on the CPU in the file's dtype and exports the result.

        Raises:
            BufferError: The consumer wants another device, a stream, or a view where none is possible.
        """
        buffer = self._core.materialize(Wanted(copy=copy, mappings=self._shared.mappings))
        return buffer.hand_over(stream=stream, max_version=max_version, dl_device=dl_device, **extra)

    def __dlpack_device__(self) -> tuple[int, int]:
        """`(kDLCPU, 0)`."""
        return (1, 0)

    def __repr__(self) -> str:
        """Name, dtype, shape and size; reads nothing."""
        kind = " parameter" if self.is_parameter else ""
        return f"<LazyTensor {_clipped(self.name)!r} {self.dtype} {list(self.shape)} {format_bytes(self.nbytes)}{kind}>"

    def __copy__(self) -> Self:
        """The handle itself: it cannot be changed."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """The handle itself: it cannot be changed."""
        return self

    if not TYPE_CHECKING:  # type checkers are to go on seeing what is not there

        def __getattr__(self, name: str) -> Any:
            """Says how to get at what a tensor of a framework has."""
            error = AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self
            )
            if not name.startswith("_"):
                error.add_note(
                    f"nothing is read before .materialize() is called; what it gives may have {name!r}"
                )
            raise error

    def __reduce__(self) -> Any:
        """Handles do not pickle."""
        raise TypeError("a lazy tensor does not pickle; open the checkpoint again, or materialize it first")
