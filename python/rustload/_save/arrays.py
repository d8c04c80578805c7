"""Arrays of any framework as what the extension writes: a dtype, a shape, and a function that returns the bytes.

The function is called when the array's turn comes, so that only few arrays are copied at a time: from a GPU, or to make them
contiguous.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeAlias

from rustload import _rustload
from rustload._common.request import Request
from rustload._rustload import dtype_name
from rustload._tensor.handle import LazyTensor
from rustload.errors import _error, _Remedy

Deferred: TypeAlias = tuple[str, tuple[int, ...], int | None, Callable[[], Any]]
"""dtype, shape, the storage that it shares with others (any number), and a function that returns a DLPack capsule of all
bytes, as one-dimensional `uint8` in host memory."""

Values: TypeAlias = "_rustload.Tensor | _rustload.Joined | Deferred"
"""What the extension writes."""


# The letters of `struct` for each kind of number; the size of an element says the rest. NumPy spells complex numbers so.
_FORMATS = {
    "bool": ("?",),
    "int": tuple("bhilqn"),
    "uint": tuple("BHILQN"),
    "float": tuple("efd"),
    "complex": ("Zf", "Zd"),
}
# The prefix of a format in this machine's byte order.
_NATIVE = {"little": "<", "big": ">"}

_HOST = 1
"""The host's memory among the kinds of devices of DLPack."""


def values_of(name: str, value: Any) -> Values:
    """Returns what the extension writes for a tensor.

    Raises:
        TypeError: The value is not a tensor or array.
        UnsupportedError: It is a sparse, quantized or meta tensor, or a wrapper of others, which safetensors has no form for.
    """
    if isinstance(value, LazyTensor):
        return value._core
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _of_torch(name, value, torch)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        if isinstance(value, numpy.ma.MaskedArray):
            raise unsupported(name, "a masked array", "write .filled(), and .mask beside it")
        return _of_numpy(name, numpy.asarray(value), numpy)
    if isinstance(value, _rustload.Buffer) and value.__dlpack_device__()[0] == _HOST:
        return value.dtype, value.shape, None, lambda: value.as_bytes().__dlpack__()
    if type(value).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return _copied(name, value, lambda numpy: numpy.asarray(value))
    if hasattr(value, "__dlpack__"):
        return _of_dlpack(name, value)
    try:
        view = memoryview(value)
    except TypeError:
        note = (
            "tensors, arrays, and objects with __dlpack__ or the buffer protocol are written, with keep_nesting=True also"
            " numbers, texts, bytes and None: make it one of these, or leave it out"
        )
        raise _error("Type", f"{name!r} is {kind_of(value)}, not a tensor", note) from None
    try:
        numpy = _numpy(name)
    except ImportError:
        plain = _of_buffer(view)
        if plain is None:
            raise
        return plain
    return _of_numpy(name, numpy.asarray(view), numpy)


def kind_of(value: Any) -> str:
    """The name of a value's class with an article, and with its module unless that is `builtins`: `an int`."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def unsupported(name: str, what: str, *remedies: str | _Remedy) -> BaseException:
    """The error for a tensor that has no form in a safetensors file."""
    text = f"{name!r} is {what}, which has no form in a safetensors file"
    return _error("NotSafetensors", text, *remedies)


def _dtype(name: str, dtype: Any) -> str:
    """The dtype of a tensor or array, as torch spells it.

    Raises:
        UnsupportedError: rustload does not know it.
    """
    try:
        return dtype_name(dtype)
    except ValueError:
        raise unsupported(name, f"of dtype {dtype}", "convert it to another dtype, or leave it out") from None


def _of_torch(name: str, tensor: Any, torch: Any) -> Deferred:
    if tensor.is_nested:
        raise unsupported(name, "a nested tensor", "write the tensors of .unbind()")
    if tensor.layout != torch.strided:
        raise unsupported(name, "a sparse tensor", "write its components, or .to_dense()")
    if tensor.is_quantized:
        raise unsupported(name, "a quantized tensor", "write .dequantize() or .int_repr()")
    if tensor.device.type == "meta":
        raise unsupported(name, "on the meta device", "it has no elements: give it some first")
    dtype = _dtype(name, tensor.dtype)
    try:
        shape = tuple(tensor.shape)
        tie = tensor.untyped_storage().data_ptr() if tensor.numel() else None
    except RuntimeError:  # a wrapper of other tensors, or without a shape yet
        tie = 0
    if tie == 0:
        raise unsupported(
            name,
            f"{kind_of(tensor)} without elements of its own",
            "write the tensors in it, such as .full_tensor() of a DTensor, or leave it out",
        )

    def make() -> Any:
        if not tensor.numel():
            return torch.utils.dlpack.to_dlpack(torch.empty(0, dtype=torch.uint8))
        plain = tensor.detach().resolve_conj().resolve_neg().to("cpu").contiguous()
        if type(plain) is not torch.Tensor:
            plain = plain.as_subclass(torch.Tensor)
        # A contiguous tensor of one element may have any stride.
        flat = plain.reshape(-1).as_strided((plain.numel(),), (1,))
        return torch.utils.dlpack.to_dlpack(flat.view(torch.uint8))

    return dtype, shape, tie, make


def _of_numpy(name: str, array: Any, numpy: Any) -> Deferred:
    if array.dtype.hasobject or array.dtype.kind not in "biufcV" or array.dtype.fields is not None:
        raise unsupported(name, f"a NumPy array of {array.dtype}", "convert it to numbers, or leave it out")
    dtype, shape = _dtype(name, array.dtype.newbyteorder("=")), tuple(array.shape)

    def make() -> Any:
        plain = (
            numpy.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(-1).view(numpy.uint8)
        )
        # A read-only array has no DLPack export in older versions of NumPy.
        return (plain if plain.flags.writeable else plain.copy()).__dlpack__()

    return dtype, shape, None, make


def _of_buffer(view: memoryview) -> Deferred | None:
    """Plain numbers of the buffer protocol, without NumPy, which would not copy them; None for other formats."""
    format_ = view.format.removeprefix(_NATIVE[sys.byteorder]).removeprefix("=").removeprefix("@")
    kind = next((kind for kind, codes in _FORMATS.items() if format_ in codes), None)
    if kind is None:
        return None
    dtype = kind if kind == "bool" else f"{kind}{8 * view.itemsize}"

    def make() -> Any:
        data = view if view.c_contiguous and view.ndim else view.tobytes()
        header = b'{"":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (view.nbytes, view.nbytes)
        file = b"".join([len(header).to_bytes(8, "little"), header, data])
        opened = _rustload.open(file, _rustload.OpenOptions())
        return opened.tensor("").materialize(Request()).__dlpack__()

    return dtype, view.shape or (), None, make


def _copied(name: str, array: Any, copy: Callable[[Any], Any]) -> Deferred:
    """An array that is copied to the host, as one of NumPy, when its turn comes."""
    dtype, numpy = _dtype(name, array.dtype), _numpy(name)

    def make() -> Any:
        return _of_numpy(name, copy(numpy), numpy)[3]()

    return dtype, tuple(array.shape), None, make


def _of_dlpack(name: str, value: Any) -> Deferred:
    if int(value.__dlpack_device__()[0]) != _HOST:
        cupy = sys.modules.get("cupy")
        if cupy is None or not isinstance(value, cupy.ndarray):
            raise _error("Type", f"{name!r} is on a device: copy it to the host first")
        return _copied(name, value, lambda _: value.get())
    numpy = _numpy(name)
    return _of_numpy(name, numpy.from_dlpack(value), numpy)


def _numpy(name: str) -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError(f"{name!r} is an array that rustload reads by NumPy: pip install numpy") from error
    return numpy
