"""Framework "cupy": results are `cupy.ndarray` on a GPU, in memory of CuPy's pool; they are cast on the CPU."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import cupy

from rustload import _rustload
from rustload._common.request import wanted_for
from rustload._cuda import plain, results
from rustload._frameworks.numpy import numpy_dtype
from rustload._frameworks.numpy import wrap as wrap_numpy
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rustload._common.request import Cast, Core, Wanted
    from rustload._cuda.place import Place
    from rustload._frameworks.adapters import Shared
    from rustload._rustload import Buffer, Upload


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


class _Gpu(plain.Place):
    """A GPU of CuPy's."""

    def __init__(self, device: Any) -> None:
        super().__init__(int(device.id))
        self._device = device
        self._stream: Any = None

    def _now(self) -> Any:
        with self._device:
            return cupy.cuda.get_current_stream()

    def stream(self) -> int:  # type: ignore[override]  # here there is one
        """The address of the caller's current stream."""
        return int(self._now().ptr)

    def follow(self, _held: Iterable[Any]) -> None:
        """Waits for the stream before, if the caller is on another: CuPy's pool has blocks by stream."""
        now = self._now()
        if self._stream is not None and self._stream != now:
            self._stream.synchronize()
        self._stream = now

    def new(self, shape: Sequence[int], dtype: str, upload: Upload) -> tuple[Any, Buffer]:
        """A new array, and its memory as a row of bytes."""
        made = self.empty(shape, dtype, upload)
        return made, self.row(made)

    def empty(self, shape: Sequence[int], dtype: str, _upload: Upload) -> Any:
        """An array of CuPy's, without values."""
        with self._device, _refusals(dtype):
            return cupy.empty(tuple(shape), numpy_dtype(dtype))

    def wrap(self, buffer: Buffer) -> Any:
        """An array over the buffer's memory, keeping it alive."""
        with self._device, _refusals(buffer.dtype):
            row = cupy.from_dlpack(buffer.as_bytes())
            return row.view(numpy_dtype(buffer.dtype)).reshape(buffer.shape)

    def row(self, tensor: Any) -> Buffer:
        """The memory of a contiguous array, as a row of bytes."""
        with self._device:
            return _rustload.adopt(tensor.reshape(-1).view(cupy.uint8).__dlpack__(stream=-1))


@contextlib.contextmanager
def _refusals(dtype: str) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        note = "cast it with dtype=..., or view its .bytes()"
        raise _make("Unsupported", "DtypeUnsupported", f"CuPy has no {dtype}", note) from error


def place(device: Any) -> Place | None:
    """The GPU; None where there is no driver of CUDA, as with a CuPy for other GPUs."""
    return _Gpu(device) if _rustload.cuda_info()["available"] else None


def make(core: Core, wanted: Wanted, device: Any, shared: Shared) -> Any:
    """The array on the device."""
    if wanted.copy is False:
        raise _make("Buffer", "Buffer", "an array on a GPU is a copy by nature: copy=False cannot be had")
    return wrap(core.materialize(wanted), device)


def view(core: Core, shared: Shared) -> None:
    """Has no shorter way than `make`."""


def wrap(buffer: Buffer, device: Any) -> Any:
    """A copy of the buffer on the device."""
    array = wrap_numpy(buffer, None)
    with device, _refusals(array.dtype.name):
        return cupy.asarray(array)


def into(core: Core, out: Any, wanted: Wanted, *, cast: Cast, sync: bool) -> bool:
    """Writes into an array on a GPU."""
    if not isinstance(out, cupy.ndarray):
        return False
    wanted = wanted_for(core, out.dtype.name, tuple(out.shape), wanted)
    gpu = place(out.device)
    if gpu is not None and out.flags.c_contiguous:
        results.filled(core, wanted, out, gpu, cast=cast, sync=sync)
        return True
    with out.device:
        out[...] = cupy.asarray(wrap_numpy(core.materialize(wanted), None))
    return True
