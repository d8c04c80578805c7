"""Framework "cupy": results are `cupy.ndarray` on a GPU, in memory of CuPy's pool. The CPU casts."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import cupy

from rustload import _rustload
from rustload._common.request import request_for_out
from rustload._cuda import driver_gpu, results
from rustload._frameworks.adapters import check_copy
from rustload._frameworks.numpy import numpy_dtype
from rustload._frameworks.numpy import wrap as wrap_numpy
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rustload._common.request import Cast, Core, Request
    from rustload._cuda.gpu import Gpu
    from rustload._frameworks.adapters import HandleContext
    from rustload._rustload import Buffer, Upload


COPIES_VIEWS = True
HAS_READ_ONLY = True


def check_device(device: Any) -> Any:
    """CuPy's device; the current one for None.

    Raises:
        DeviceError: It is not a GPU, or there is no GPU with that number.
    """
    if device is None:
        return cupy.cuda.Device()
    if isinstance(device, cupy.cuda.Device):
        return device
    text = str(device)
    platform, _, index = f"cuda:{text}".partition(":") if text.isdecimal() else text.partition(":")
    if platform != "cuda" or not (index or "0").isdecimal():
        raise _error("Device", f"CuPy has no device {text!r}", "for arrays on the CPU, framework='numpy'")
    count = cupy.cuda.runtime.getDeviceCount()
    if int(index or 0) >= count:
        raise _error("Device", f"device {text!r} is not available: there are {count} GPU(s)")
    return cupy.cuda.Device(int(index)) if index else cupy.cuda.Device()


class _CupyGpu(driver_gpu.DriverGpu):
    """A `Gpu` with the allocator and streams of CuPy."""

    def __init__(self, device: Any) -> None:
        super().__init__(int(device.id))
        self._device = device
        self._stream: Any = None

    def _stream_now(self) -> Any:
        with self._device:
            return cupy.cuda.get_current_stream()

    def current_stream(self) -> int:  # type: ignore[override]  # CuPy has streams
        """The address of the caller's current stream."""
        return int(self._stream_now().ptr)

    def follow_current_stream(self, _held: Iterable[Any]) -> None:
        """Waits for the previous stream if the caller's stream changed, because CuPy's pool keeps free blocks per stream."""
        now = self._stream_now()
        if now.is_capturing():
            # An allocation of CuPy would end the capture.
            note = "load before the graph is captured, or on a stream that is not capturing"
            raise _error("Device", "the current stream is capturing a CUDA graph", note)
        if self._stream is not None and self._stream != now:
            self._stream.synchronize()
        self._stream = now

    def free_memory(self) -> int | None:
        """What the driver says, and the memory that CuPy keeps for new arrays."""
        free = super().free_memory()
        with self._device:
            kept: int = cupy.get_default_memory_pool().free_bytes()
        return None if free is None else free + kept

    def synchronize(self) -> None:
        """Waits for the caller's current stream."""
        self._stream_now().synchronize()

    def new(self, shape: Sequence[int], dtype: str, upload: Upload) -> tuple[Any, Buffer]:
        """A new array, and its memory as 1-D `uint8`."""
        array = self.empty(shape, dtype, upload)
        return array, self.byte_view(array)

    def empty(self, shape: Sequence[int], dtype: str, _upload: Upload) -> Any:
        """An uninitialized array."""
        with self._device, _unsupported_dtype(dtype):
            return cupy.empty(tuple(shape), numpy_dtype(dtype))

    def wrap(self, buffer: Buffer) -> Any:
        """An array that shares the buffer's memory and keeps it alive."""
        with self._device, _unsupported_dtype(buffer.dtype):
            data = cupy.from_dlpack(buffer.as_bytes())
            return data.view(numpy_dtype(buffer.dtype)).reshape(buffer.shape)

    def byte_view(self, tensor: Any) -> Buffer:
        """The memory of a contiguous array as 1-D `uint8`."""
        with self._device:
            capsule = tensor.reshape(-1).view(cupy.uint8).__dlpack__(stream=-1)
            return _rustload.adopt(capsule, managed_on=self.index)


@contextlib.contextmanager
def _unsupported_dtype(dtype: str) -> Iterator[None]:
    """Raises UnsupportedError in place of CuPy's errors for a dtype that it does not have."""
    try:
        yield
    except (TypeError, ValueError) as error:
        note = "cast it with dtype=..., or view its .bytes()"
        raise _error("DtypeUnsupported", f"CuPy has no {dtype}", note) from error


def gpu_for(device: Any) -> Gpu | None:
    """The GPU; None without a CUDA driver, as with CuPy for ROCm."""
    return _CupyGpu(device) if _rustload.cuda_info()["available"] else None


def make(core: Core, request: Request, device: Any, context: HandleContext) -> Any:
    """Materializes the tensor on the device through a host array."""
    if request.copy is False:
        raise _error("Buffer", "copy=False is not possible for an array on a GPU: it is always a copy")
    buffer = core.materialize(request)
    check_copy(core, buffer)
    return wrap(buffer, device)


def fast_view(core: Core, context: HandleContext) -> None:
    """None: there is no fast path."""


def wrap(buffer: Buffer, device: Any) -> Any:
    """Copies the buffer to the device."""
    array = wrap_numpy(buffer, None)
    with device, _unsupported_dtype(array.dtype.name):
        return cupy.asarray(array)


def write_into(core: Core, out: Any, request: Request, *, cast: Cast, sync: bool) -> bool:
    """Materializes into an array on a GPU; a strided one through a temporary array."""
    if not isinstance(out, cupy.ndarray):
        return False
    request = request_for_out(core, out.dtype.name, tuple(out.shape), request)
    gpu = gpu_for(out.device)
    if gpu is not None and out.flags.c_contiguous:
        results.fill(core, request, out, gpu, cast=cast, sync=sync)
        return True
    with out.device:
        out[...] = cupy.asarray(wrap_numpy(core.materialize(request), None))
        if sync:
            cupy.cuda.get_current_stream().synchronize()
    return True
