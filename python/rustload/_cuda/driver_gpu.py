"""`DriverGpu`: a GPU for frameworks without an allocator or streams: the CUDA driver allocates, and every result is complete."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._cuda.gpu import ITEMSIZE
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rustload._cuda.gpu import StagingBuffer
    from rustload._rustload import Buffer, Upload


class DriverGpu:
    """A `Gpu` whose results are `rustload.Buffer`."""

    can_convert = False

    def __init__(self, index: int) -> None:
        self.index = index

    def current_stream(self) -> None:
        """None: there is no stream."""

    def follow_current_stream(self, held: Iterable[Any]) -> None:
        """Does nothing: the host waits for every result."""

    def free_memory(self) -> int | None:
        """What the driver says."""
        return _rustload.gpu_free_memory(self.index)

    def synchronize(self) -> None:
        """Does nothing: there is no work but the copies, and the host has waited for these."""

    def new(self, shape: Sequence[int], dtype: str, upload: Upload) -> tuple[Buffer, Buffer]:
        """A new buffer: typed, and as 1-D `uint8`."""
        memory = upload.allocate(math.prod(shape) * ITEMSIZE[dtype])
        return memory.part(0, dtype, shape), memory

    def empty(self, shape: Sequence[int], dtype: str, upload: Upload) -> Buffer:
        """A buffer without elements. It has one byte of memory, because CUDA does not allocate zero bytes."""
        return upload.allocate(1).part(0, dtype, shape)

    def to_result(self, tensor: Buffer) -> Any:
        """The buffer itself."""
        return tensor

    def wrap(self, buffer: Buffer) -> Buffer:
        """The buffer itself."""
        return buffer

    def byte_view(self, tensor: Buffer) -> Buffer:
        """The buffer as 1-D `uint8`.

        Raises:
            DeviceError: It is on another GPU.
        """
        kind, index = tensor.__dlpack_device__()
        if kind == 1 or index != self.index:
            raise _error("Device", f"the buffer is not on GPU {self.index}")
        return tensor.as_bytes()

    def staging_buffer(self, nbytes: int) -> StagingBuffer:
        """Not supported, and never called, because `can_convert` is False.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError


def ordinal(device: Any) -> int | None:
    """The GPU ordinal of `"cuda"`, `"cuda:1"` or a number; None for `"cpu"` and None.

    Raises:
        DeviceError: The device is none of these, or there is no such GPU.
    """
    if device is None or str(device) == "cpu":
        return None
    text = f"cuda:{device}" if isinstance(device, int) else str(device)
    kind, colon, number = text.partition(":")
    if kind != "cuda" or not (number.isdecimal() if colon else True):
        raise _error("Device", f"device {str(device)!r} is none of 'cpu', 'cuda', 'cuda:1'")
    info = _rustload.cuda_info()
    if not info["available"]:
        raise _error("Device", f"device {text!r} is not available: {info['reason']}")
    if int(number or 0) >= info["devices"]:
        raise _error("Device", f"device {text!r} is not available: there are {info['devices']} GPU(s)")
    return int(number or 0)
