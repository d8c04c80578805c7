"""`LazyTensor`: a handle on a tensor of a checkpoint, or on a part of one, whose elements are read on demand."""

from __future__ import annotations

from collections import namedtuple

from rustload import _rustload
from rustload._common.options import ReadOptions, RequestOptions, StatsOptions, filled, part, takes
from rustload._common.request import Request, Transpose, checked_cast, dims_of, value_for
from rustload._common.sizes import format_bytes
from rustload._frameworks import adapters
from rustload._tensor.metadata import Metadata
from rustload._tensor.operators import Operators, index_note
from rustload.errors import _clipped, _error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Self, Unpack

    import numpy as np
    import torch

    from rustload._common.request import Cast
    from rustload._common.statistics import Statistics
    from rustload._frameworks.adapters import HandleContext

_Fields = namedtuple("_Fields", "dtype scheme scale zero_point axis packed")  # without `typing`


class Quantization(_Fields):
    """The quantization parameters of a tensor: an integer q means the number `(q - zero_point) * scale`.

    Attributes:
        dtype: The dtype as torch calls it: `"qint8"`, `"quint8"`, `"qint32"`, `"quint4x2"` or `"quint2x4"`.
        scheme: `"per_tensor_affine"`, `"per_channel_affine"` and the like.
        scale: A float; or, per channel, a LazyTensor or a list with one number per index of dimension `axis`.
        zero_point: The integer that means zero, in the same form; floats in `"per_channel_affine_float_qparams"`.
        axis: The channel dimension, in the tensor as the file has it; None for one scale for the whole tensor.
        packed: Shape, strides and offset in elements where these share bytes, and the LazyTensor is all bytes of the storage.
    """

    __slots__ = ()
    dtype: str
    scheme: str
    scale: float | LazyTensor | list[float]
    zero_point: int | LazyTensor | list[int]
    axis: int | None
    packed: tuple[tuple[int, ...], tuple[int, ...], int] | None


new_handle = _rustload.Handle.__new__


class LazyTensor(Operators, Metadata):
    """A tensor that has not been read yet.

    Indexing, `.T` and `.permute` return other lazy tensors and read nothing. `materialize` reads only the selected elements and
    returns a tensor of the framework. A handle keeps its file open, so it stays valid after the checkpoint is closed.

    >>> import rustload
    >>> t = rustload.open("model.pt")["q.weight"]
    >>> t.dtype, t.shape, t.nbytes
    ('float32', (8, 8), 256)
    >>> t[1:3, ::2].shape
    (2, 4)
    >>> t[1:3].materialize(dtype="bfloat16", transpose=True).shape
    torch.Size([8, 2])
    """

    __slots__ = ()

    def __new__(cls, *_: Any) -> Self:
        """Not for users: handles come from a checkpoint.

        Raises:
            TypeError: Always.
        """
        raise TypeError("lazy tensors come from a checkpoint: rustload.open(path)[name]")

    @classmethod
    def _wrap(cls, core: _rustload.Tensor, context: HandleContext) -> Self:
        return new_handle(cls, core, context)

    def _with_context(self, context: HandleContext) -> Self:
        """The same tensor with the mappings and storages of another context."""
        return self._wrap(self._core, context)

    @property
    def attributes(self) -> dict[str, Any]:
        """The Python attributes that the tensor had when it was saved, as values like those of `Checkpoint.objects`; a new dict.

        A state that is not a dict of attributes (for a class with `__setstate__`) is under the key `"__setstate__"`.
        """
        found: dict[str, Any] = {}
        for state in self._core.attributes(self._wrap_core):
            if isinstance(state, dict):
                found.update(state)
            elif state is not None:
                found["__setstate__"] = state
        return found

    @property
    def quantization(self) -> Quantization | None:
        """The quantization parameters; None for a tensor that is not quantized.

        They are those of the whole tensor, also for a part; `materialize(dequantize=True)` selects the scales of the part.
        """
        found = self._core.quantization(self._wrap_core)
        return None if found is None else Quantization(*found)

    def _wrap_core(self, core: _rustload.Tensor) -> LazyTensor:
        return LazyTensor._wrap(core, self._context)

    @property
    def T(self) -> Self:  # noqa: N802 - the name in NumPy and torch
        """The transpose: the dimensions in reverse order. Reads nothing."""
        return self._wrap(self._core.reversed(), self._context)

    @property
    def mT(self) -> Self:  # noqa: N802 - the name in NumPy and torch
        """The transpose of each matrix: the last two dimensions swapped. Reads nothing.

        Raises:
            ValueError: It has fewer than two dimensions.
        """
        if self.ndim < 2:
            raise _error(
                "Value", f".mT needs two dimensions, and the shape is {list(self.shape)}", ".T reverses all"
            )
        return self.permute(*dims_of(True, self.ndim))  # noqa: FBT003 - a transpose

    def permute(self, *dims: int | tuple[int, ...]) -> Self:
        """Permutes the dimensions; reads nothing.

        Args:
            *dims: A full permutation, as numbers or as one tuple; negative numbers count from the end.

        Raises:
            ValueError: `dims` is not a permutation.
        """
        order = dims[0] if len(dims) == 1 and isinstance(dims[0], (tuple, list)) else dims
        return self._wrap(self._core.permute(list(order)), self._context)  # type: ignore[arg-type]  # ints by now

    def reshape(self, *shape: int | tuple[int, ...]) -> Self:
        """The same elements in the same order, in another shape; reads and moves nothing.

        >>> import rustload
        >>> rustload.open("model.pt")["q.weight"].reshape(2, -1, 8).shape
        (2, 4, 8)

        Args:
            *shape: The sizes, as numbers or as one tuple. One may be -1: what is left.

        Raises:
            ValueError: The number of elements differs, or elements would need to be moved: of transposed and sliced tensors
                where their strides do not fit, of parts of a joined tensor that the new shape would cut, and of tensors in
                chunks (distributed checkpoints). Read first: `t.materialize().reshape(...)`.
        """
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return self._wrap(self._core.reshape(list(sizes)), self._context)  # type: ignore[arg-type]  # ints by now

    def view(self, *shape: int | tuple[int, ...]) -> Self:
        """As `reshape`, as torch calls it; reads nothing. The argument is no dtype: `materialize` casts."""
        return self.reshape(*shape)

    def __getitem__(self, key: Any) -> Self:
        """Selects a part by basic indexing, lazily: ints, slices with positive steps, `...` and None, as in NumPy and torch.

        Raises:
            IndexError: An index is out of bounds, or there are too many.
            ValueError: A slice's step is not positive; the note says how to reverse the result.
            TypeError: The index is a mask, a list or a tensor (advanced indexing); the note says what to use.
        """
        try:
            return self._wrap(self._core.index(key), self._context)
        except (TypeError, ValueError) as error:
            note = index_note(key)
            if note:
                error.add_note(note)
            raise

    def __len__(self) -> int:
        """The size of the first dimension."""
        if not self.shape:
            raise TypeError("len() of a tensor without dimensions")
        return self.shape[0]

    __contains__ = None
    """`in` is not supported, because it would read the elements: materialize first."""

    def item(self) -> bool | int | float | complex:
        """Reads the only element and returns it as a Python number; a quantized one as a float.

        Raises:
            ValueError: It has no element, or several.
        """
        if self.numel() != 1:
            note = "index it down to one element, or materialize it"
            raise _error("Value", f"item() of a tensor with {self.numel():,} elements", note)
        return self._number()

    def _number(self) -> bool | int | float | complex:
        from rustload._tensor.scalar import read_number

        return read_number(self._core, is_quantized=self.quantization is not None)

    def __bool__(self) -> bool:
        """Reads the only element, and returns whether it is not zero.

        Raises:
            TypeError: It has no element, or several: then it has no truth value.
        """
        if self.numel() == 1:
            return bool(self._number())
        raise TypeError("a lazy tensor has no truth value; compare with None, or materialize it")

    def __float__(self) -> float:
        """Reads the only element.

        Raises:
            TypeError: It has no element, several, or a complex one.
        """
        return float(self._only("float"))  # type: ignore[arg-type]  # a complex number raises the TypeError

    def __int__(self) -> int:
        """Reads the only element; a float is truncated towards zero.

        Raises:
            TypeError: It has no element, several, or a complex one.
            ValueError: It is NaN.
            OverflowError: It is infinite.
        """
        return int(self._only("int"))  # type: ignore[arg-type]  # as above

    def __complex__(self) -> complex:
        """Reads the only element.

        Raises:
            TypeError: It has no element, or several.
        """
        return complex(self._only("complex"))

    def _only(self, what: str) -> bool | int | float | complex:
        if self.numel() != 1:
            raise TypeError(
                f"{what}() of a lazy tensor with {self.numel():,} elements: only one can be converted"
            )
        return self._number()

    def __iter__(self) -> Iterator[Self]:
        """The parts along the first dimension."""
        return (self[position] for position in range(len(self)))

    @takes(StatsOptions)
    def stats(self, **options: Unpack[StatsOptions]) -> Statistics:
        """Reads the tensor and returns what its numbers are like: NaN, infinities, zeros, extremes, mean and standard deviation.

        Takes some MiB of memory per thread, whatever the size of the tensor.

        >>> import rustload
        >>> found = rustload.open("model.pt")["q.weight"].stats()
        >>> found.total, found.nan, found.zeros
        (64, 0, 0)

        Args:
            **options: How statistics are made (`StatsOptions`).

        Raises:
            ValueError: `sample` or `bins` is below 1, or there are more than 65,536 bins.
            KeyboardInterrupt: Ctrl-C, within a tenth of a second.
            RustloadError: As for `materialize`.
        """
        from rustload._common.statistics import statistics_of

        return statistics_of([self._core], filled(LazyTensor.stats, options))[0]

    @takes(ReadOptions)
    def materialize(
        self,
        device: Any = None,
        dtype: Any = None,
        transpose: Transpose | Mapping[str, Transpose] | Callable[[LazyTensor], Transpose] = None,
        *,
        out: Any = None,
        threads: int | None = None,
        **options: Unpack[ReadOptions],
    ) -> Any:
        """Reads the elements and returns them as a tensor of the framework; casts and transposes while reading.

        Args:
            device: `"cpu"` or None, `"cuda"`, `"cuda:1"`, a GPU number or a `torch.device`. Frameworks "torch", "jax" and
                "cupy" have GPUs; "jax" takes its own devices and shardings too.
            dtype: The dtype of the result: a name as torch, safetensors or NumPy spells it, a `torch.dtype` or a NumPy dtype; or
                a mapping from glob patterns of names to dtypes, or a callable that gets this handle. None keeps the file's dtype.
            transpose: True swaps the last two dimensions, a tuple is a permutation of all; or a mapping or a callable, as for
                `dtype`.
            out: An array or tensor of the result's shape to write into, on the CPU or a GPU; its dtype sets the cast.
                Nothing else may use its memory until the call returns; a concurrent call with the same `out` is an error.
            threads: The number of threads; None for up to one per core, depending on the size.
            **options: What the result is (`ReadOptions`).

        Returns:
            A `torch.Tensor`, `numpy.ndarray`, `jax.Array`, `cupy.ndarray` or `rustload.Buffer`; `out` if it was passed. Owned
            results are C-contiguous; views keep the file's strides.

        Raises:
            BufferError: `copy=False` and no view is possible.
            ValueError: The cast is lossy, or an argument has an invalid value.
            DeviceError: The device does not exist.
            FormatError: The file was truncated or changed since it was opened (code `FileChanged`), or is damaged.
            UnsupportedError: The cast is not supported, the tensor is on the meta device (code `MetaTensor`), or it is codes,
                and numbers are asked for (code `QuantUnknown`).
            LimitError: A broadcast tensor (stride 0) would need more than `Limits.materialize_bytes`.
            NotEnoughMemoryError: The result needs more memory than is left; nothing was allocated.
        """
        # The fast path of most calls: no arguments to resolve or check.
        if not options and device is dtype is transpose is out is threads is None:
            made = self._context.fast_view(self._core)
            if made is not None:
                return made
        how = filled(LazyTensor.materialize, options)
        requested, order = value_for(dtype, self), value_for(transpose, self)
        if how["dequantize"] and requested is None and out is None and self._is_scaled():
            requested = "float32"
        adapter, target, writable = None, None, False
        if out is None:
            adapter = adapters.load_adapter(how["framework"] or self._context.resolve_framework())
            target = adapter.check_device(device)
            writable = adapters.views_are_writable(adapter, target, given=how["writable"])
        if requested is not None and not how["dequantize"] and self.dtype.startswith("float8"):
            self._warn_of_codes()
        request = Request(
            dtype=requested,
            transpose=order,
            threads=threads,
            writable=writable,
            mappings=self._context.mappings,
            **part(RequestOptions, how),
        )
        cast, sync = checked_cast(how["cast"]), bool(how["sync"])
        if adapter is None:
            return self._materialize_out(out, device, request, cast=cast, sync=sync)
        gpu = None if self.is_meta else adapter.gpu_for(target)
        if gpu is None:
            return adapter.make(self._core, request, target, self._context)
        from rustload._cuda import results

        return results.make(self._core, request, gpu, cast=cast, sync=sync)

    def _materialize_out(self, out: Any, device: Any, request: Request, *, cast: Cast, sync: bool) -> Any:
        if device is not None:
            raise _error("Value", "out= and device= cannot be combined: the result is on the device of out=")
        if request.copy is False:
            raise _error("Buffer", "out= and copy=False cannot be combined: writing into out= is a copy")
        adapter = adapters.load_adapter(adapters.framework_of(out))
        if not adapter.write_into(self._core, out, request, cast=cast, sync=sync):
            text = f"is a {type(out).__name__}, not an array or tensor that can be written to"
            raise _error("Type", text, argument="out")
        return out

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a NumPy array in the file's dtype; a view if possible."""
        return self.materialize(framework="numpy")  # type: ignore[no-any-return]

    def torch(self) -> torch.Tensor:
        """The elements as a torch tensor in the file's dtype; a view if possible."""
        return self.materialize(framework="torch")  # type: ignore[no-any-return]

    def bytes(self) -> bytes:
        """The bytes of the elements in C order, for every dtype."""
        return self._core.materialize(Request(copy=True)).tobytes()

    def __jax_array__(self) -> Any:
        """JAX's conversion protocol: `jax.numpy.asarray(handle)`."""
        return self.materialize(framework="jax")

    def __array__(
        self,
        dtype: Any = None,
        copy: bool | None = None,  # noqa: FBT001 - NumPy's signature
    ) -> np.ndarray[Any, Any]:
        """NumPy's conversion protocol: `np.asarray(handle)`.

        Raises:
            ValueError: `copy=False` and no view is possible, as in NumPy.
        """
        try:
            array: np.ndarray[Any, Any] = self.materialize(framework="numpy", copy=copy)
        except BufferError as error:
            raise ValueError(f"a copy is needed: {error}") from error
        if dtype is None or array.dtype == dtype:
            return array
        if copy is False:
            raise ValueError(f"a copy is needed to make {dtype} of {self.dtype}")
        adapters.check_copy(self._core)
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
            BufferError: The consumer requests another device, a stream, or a view that is not possible.
        """
        buffer = self._core.materialize(Request(copy=copy, writable=True, mappings=self._context.mappings))
        return buffer.hand_over(stream=stream, max_version=max_version, dl_device=dl_device, **extra)

    def __dlpack_device__(self) -> tuple[int, int]:
        """`(kDLCPU, 0)`."""
        return (1, 0)

    def __repr__(self) -> str:
        """Name, dtype, shape and size; reads nothing."""
        kind = " parameter" if self.is_parameter else ""
        return f"<LazyTensor {_clipped(self.name)!r} {self.dtype} {list(self.shape)} {format_bytes(self.nbytes)}{kind}>"

    def _repr_html_(self) -> str:
        """HTML for notebooks: a table of its properties; reads nothing."""
        from rustload._html.tensors import tensor_html

        return tensor_html(type(self).__name__, repr(self), self._properties(), self._shown_parts())

    def _properties(self) -> list[tuple[str, str]]:
        """The names and values that `_repr_html_` shows."""
        rows = [("name", self.name)] if self.name else []
        rows += [("dtype", self.dtype), ("shape", str(list(self.shape))), ("size", format_bytes(self.nbytes))]
        if not self.is_contiguous and isinstance(self._core, _rustload.Tensor):
            rows.append(("strides", str(list(self.strides))))
        if quantization := self.quantization:
            rows.append(("quantized", f"{quantization.dtype}, {quantization.scheme}"))
        if self.part is not None:
            rows.append(("part", self.part._text()))
        if self.class_name:
            rows.append(("class", self.class_name))
        flags = {"parameter": self.is_parameter, "requires grad": self.requires_grad, "meta": self.is_meta}
        if any(flags.values()):
            rows.append(("flags", ", ".join(name for name, is_set in flags.items() if is_set)))
        return rows

    def _shown_parts(self) -> list[tuple[str, str, str]]:
        """Name, shape and size of what it joins."""
        return []

    if not TYPE_CHECKING:  # type checkers must still report unknown attributes

        def __getattr__(self, name: str) -> Any:
            """Raises, with a note that a framework tensor may have the attribute."""
            raise self._no_attribute(name)  # not held by a variable: with the frame it would be a cycle

    def _no_attribute(self, name: str) -> AttributeError:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        error = AttributeError(text, name=name, obj=self)
        note = f"a lazy tensor holds no elements; the result of .materialize() may have {name!r}"
        made = f"; materialize(framework={name!r}) makes one" if name in ("jax", "cupy") else ""
        if not name.startswith("_"):
            error.add_note(note + made)
        return error

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the paths, the identity of the files, the name and the slice: no elements.

        Unpickling opens the checkpoint, once for each process. A file that was changed meanwhile is a FormatError (code
        `FileChanged`).

        Raises:
            TypeError: It comes from bytes, a file object or a URL, which another process cannot open.
        """
        from rustload._tensor.pickling import origin_of

        core = self._core
        return restored, (origin_of(core.checkpoint, self._context.framework), *core.state())


def restored(context: HandleContext, *state: Any) -> LazyTensor:
    """The handle that was pickled; called by unpickling.

    `state` is what `_rustload.Tensor.state` gave. Fails if the checkpoint of `context` has other tensors.
    """
    from rustload._tensor.pickling import opened_core

    return LazyTensor._wrap(opened_core(context).restored(*state), context)
