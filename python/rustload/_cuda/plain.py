"""Frameworks without an allocator or streams to be told of: memory is the driver's own, and results are complete when given."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._cuda.place import ITEMSIZE
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rustload._cuda.place import Panel
    from rustload._rustload import Buffer, Upload

__all__ = ["Place"]


class Place:
    """One GPU; results are `rustload.Buffer`."""

    computes = False

    def __init__(self, index: int) -> None:
        self.index = index

    def stream(self) -> None:
        """None."""

    def follow(self, held: Iterable[Any]) -> None:
        """Nothing: the host waits for every result."""

    def finish(self) -> None:
        """Nothing: there is no work but the copies."""

    def new(self, shape: Sequence[int], dtype: str, upload: Upload) -> tuple[Buffer, Buffer]:
        """A new buffer, twice: typed, and as a row of bytes."""
        row = upload.allocate(math.prod(shape) * ITEMSIZE[dtype])
        return row.part(0, dtype, shape), row

    def empty(self, shape: Sequence[int], dtype: str, upload: Upload) -> Buffer:
        """A buffer without elements; CUDA does not allocate nothing."""
        return upload.allocate(1).part(0, dtype, shape)

    def given(self, made: Buffer) -> Any:
        """The buffer itself."""
        return made

    def wrap(self, buffer: Buffer) -> Buffer:
        """The buffer itself."""
        return buffer

    def row(self, tensor: Buffer) -> Buffer:
        """The buffer as a row of bytes.

        Raises:
            DeviceError: It is on another GPU.
        """
        if tensor.__dlpack_device__() != (2, self.index):
            raise _make("Device", "Device", f"the buffer is not on GPU {self.index}")
        return tensor.as_bytes()

    def panel(self, nbytes: int) -> Panel:
        """None is asked for: nothing is computed on the GPU.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError


def ordinal(device: Any) -> int | None:
    """The GPU of a device as frameworks without devices of their own have it: "cuda", "cuda:1" or a number; None for the CPU.

    Raises:
        DeviceError: It is something else.
    """
    if device is None or str(device) == "cpu":
        return None
    text = f"cuda:{device}" if isinstance(device, int) else str(device)
    kind, colon, number = text.partition(":")
    if kind != "cuda" or not (number.isdecimal() if colon else True):
        raise _make("Device", "Device", f"device {str(device)!r} is none of 'cpu', 'cuda', 'cuda:1'")
    info = _rustload.cuda_info()
    if not info["available"]:
        raise _make("Device", "Device", f"device {text!r} is not available: {info['reason']}")
    if int(number or 0) >= info["devices"]:
        raise _make(
            "Device", "Device", f"device {text!r} is not available: there are {info['devices']} GPU(s)"
        )
    return int(number or 0)
