"""torch's side of a GPU. All of `torch.cuda` that uploads need is here, and only a real GPU can test it: so it is short.

Memory comes from torch's caching allocator, which hands a block that was freed to the next who asks on the same stream. So
copies wait for what is enqueued on the caller's stream when they are submitted, and a result that is given to another stream than
the one it was allocated for is recorded there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack

from rustload import _rustload
from rustload._frameworks.torch_dtypes import IN_DLPACK, torch_dtype
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rustload._rustload import Buffer, Upload

__all__ = ["Panel", "Place", "checked"]

# Elements are moved as integers of their size where nothing is cast: torch can do that for every dtype.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checked(device: torch.device) -> torch.device:
    """The CUDA device with its number, which for bare "cuda" is the caller's current one.

    Raises:
        DeviceError: torch sees no such GPU.
    """
    if not torch.cuda.is_available():
        built = "was built without CUDA" if torch.version.cuda is None else "sees no GPU"
        note = f"torch {torch.__version__} {built}; use device='cpu', or install a CUDA build and driver"
        raise _make("Device", "Device", f"device {str(device)!r} is not available", note)
    count = torch.cuda.device_count()
    number: int | None = device.index
    if number is None:
        return torch.device("cuda", torch.cuda.current_device())
    if number >= count:
        text = f"device {str(device)!r} is not available: there are {count} GPU(s)"
        raise _make("Device", "Device", text)
    return device


class Panel:
    """Memory through which tensors go that the GPU casts or orders."""

    __slots__ = ("held", "nbytes", "row")

    def __init__(self, held: torch.Tensor, row: Buffer) -> None:
        self.held = held
        self.row = row
        self.nbytes = row.nbytes

    def move(self, start: int, dtype: str, shape: Sequence[int], target: torch.Tensor) -> None:
        """Enqueues the cast and copy of a part into a tensor of the same shape, with any strides."""
        source = self.held[start:].view(torch_dtype(dtype))[: target.numel()].view(tuple(shape))
        bits = _BITS.get(source.itemsize) if source.dtype == target.dtype else None
        if bits is not None:
            source, target = source.view(bits), target.view(bits)
        with torch.no_grad():
            target.copy_(source)


class Place:
    """One GPU under torch."""

    computes = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.index: int = device.index
        self._stream: Any = None

    def stream(self) -> int:
        """The address of the caller's current stream."""
        stream: int = torch.cuda.current_stream(self.index).cuda_stream
        return stream

    def follow(self, held: Iterable[torch.Tensor]) -> None:
        """Has the caller's current stream wait for the one before, if it is another."""
        now = torch.cuda.current_stream(self.index)
        with torch.cuda.device(self.index):
            is_recording = torch.cuda.is_current_stream_capturing()
        if is_recording:
            note = "load before the graph is recorded, or on a stream that records none"
            raise _make("Device", "Device", "the current stream is recording a CUDA graph", note)
        if self._stream is not None and self._stream != now:
            now.wait_stream(self._stream)
            for tensor in held:
                tensor.record_stream(now)
        self._stream = now

    def finish(self) -> None:
        """Waits for the caller's current stream."""
        torch.cuda.current_stream(self.index).synchronize()

    def new(self, shape: Sequence[int], dtype: str, _upload: Upload | None) -> tuple[torch.Tensor, Buffer]:
        """A new contiguous tensor, and its memory as a row of bytes."""
        made = torch.empty(tuple(shape), dtype=torch_dtype(dtype), device=self.device)
        return made, self.row(made)

    def empty(self, shape: Sequence[int], dtype: str, _upload: Upload) -> torch.Tensor:
        """A tensor without elements."""
        return torch.empty(tuple(shape), dtype=torch_dtype(dtype), device=self.device)

    def given(self, made: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return made

    def panel(self, nbytes: int) -> Panel:
        """Memory for what the GPU is to convert."""
        return Panel(*self.new([nbytes], "uint8", None))

    def row(self, tensor: torch.Tensor) -> Buffer:
        """The memory of a contiguous tensor, as a row of bytes."""
        row = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        return _rustload.adopt(row.__dlpack__(stream=-1))

    def wrap(self, buffer: Buffer) -> torch.Tensor:
        """A tensor over a buffer in the GPU's memory, with a storage of its own."""
        if buffer.dtype in IN_DLPACK:
            return torch.utils.dlpack.from_dlpack(buffer.__dlpack__())
        row = torch.utils.dlpack.from_dlpack(buffer.as_bytes().__dlpack__())
        made = torch.empty(0, dtype=torch_dtype(buffer.dtype), device=self.device)
        return made.set_(row.untyped_storage(), 0, buffer.shape, buffer.strides)
