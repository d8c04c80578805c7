"""Framework "dlpack": results stay `rustload.Buffer`, for any consumer of DLPack or the buffer protocol."""

from __future__ import annotations

from rustload._common.request import request_for_out
from rustload._rustload import Buffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rustload._common.request import Cast, Core, Request
    from rustload._cuda.gpu import Gpu
    from rustload._frameworks.adapters import HandleContext


COPIES_VIEWS = False
HAS_READ_ONLY = False


def check_device(device: Any) -> int | None:
    """The ordinal of a GPU; None for host memory.

    Raises:
        DeviceError: The device is neither, or there is no such GPU.
    """
    if device is None:
        return None
    from rustload._cuda.driver_gpu import ordinal

    return ordinal(device)


def gpu_for(device: int | None) -> Gpu | None:
    """The GPU, with memory that the CUDA driver allocates."""
    if device is None:
        return None
    from rustload._cuda.driver_gpu import DriverGpu

    return DriverGpu(device)


def make(core: Core, request: Request, device: None, context: HandleContext) -> Buffer:
    """The buffer itself."""
    return core.materialize(request)


def fast_view(core: Core, context: HandleContext) -> None:
    """None: there is no fast path."""


def wrap(buffer: Buffer, device: None) -> Buffer:
    """The buffer itself."""
    return buffer


def write_into(core: Core, out: Any, request: Request, *, cast: Cast, sync: bool) -> bool:
    """Materializes into another Buffer, on the CPU or a GPU."""
    if not isinstance(out, Buffer):
        return False
    request = request_for_out(core, out.dtype, out.shape, request)
    kind, number = out.__dlpack_device__()
    if kind == 1:
        core.materialize_into(request, out.as_bytes().__dlpack__(max_version=(1, 0)))
    else:
        from rustload._cuda import driver_gpu, results

        results.fill(core, request, out, driver_gpu.DriverGpu(number), cast="cpu", sync=sync)
    return True
