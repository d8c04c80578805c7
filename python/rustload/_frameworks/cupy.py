"""Framework "cupy": results are `cupy.ndarray` on a GPU, read and cast on the CPU and then copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy

from rustload._frameworks.numpy import make as make_numpy
from rustload._frameworks.numpy import wrap as wrap_numpy
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload._rustload import Buffer
    from rustload._tensor import LazyTensor, Wanted


def check_device(device: Any) -> Any:
    """CuPy's device; the current one for None.

    Raises:
        DeviceError: It is no GPU, or CuPy sees none of that number.
    """
    if device is None:
        return cupy.cuda.Device()
    text = str(device)
    platform, _, index = f"cuda:{text}".partition(":") if text.isdecimal() else text.partition(":")
    if platform != "cuda" or not (index or "0").isdecimal():
        raise _make(
            "Device", "Device", f"CuPy has no device {text!r}", "for arrays on the CPU, framework='numpy'"
        )
    count = cupy.cuda.runtime.getDeviceCount()
    if int(index or 0) >= count:
        raise _make("Device", "Device", f"device {text!r} is not available: there are {count} GPU(s)")
    return cupy.cuda.Device(int(index)) if index else cupy.cuda.Device()


def make(tensor: LazyTensor, wanted: Wanted, device: Any) -> Any:
    """The array on the device."""
    if wanted.copy is False:
        raise _make("Buffer", "Buffer", "an array on a GPU is a copy by nature: copy=False cannot be had")
    return wrap(tensor._core.materialize(wanted), device)


def wrap(buffer: Buffer, device: Any) -> Any:
    """A copy of the buffer on the device."""
    array = wrap_numpy(buffer, None)
    with device:
        try:
            return cupy.asarray(array)
        except (TypeError, ValueError) as error:
            note = "cast it with dtype=..., or view its .bytes()"
            raise _make("Unsupported", "DtypeUnsupported", f"CuPy has no {array.dtype.name}", note) from error


def into(tensor: LazyTensor, out: Any, wanted: Wanted) -> bool:
    """Writes into an array on a GPU."""
    if not isinstance(out, cupy.ndarray):
        return False
    wanted = tensor._wanted_for(out.dtype.name, tuple(out.shape), wanted)
    with out.device:
        out[...] = cupy.asarray(make_numpy(tensor, wanted, None))
    return True
