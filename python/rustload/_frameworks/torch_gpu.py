"""`TorchGpu`: the `Gpu` of torch. All uses of `torch.cuda` by uploads are here, because only a real GPU can test them.

Memory comes from torch's caching allocator, which reuses a freed block for the next allocation on the same stream, without
waiting for work that is enqueued there. So copies wait for the work on the caller's stream at the time of submission, and a
tensor that is used on another stream than that of its allocation is recorded there (`Tensor.record_stream`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack

from rustload import _rustload
from rustload._frameworks.torch_dtypes import IN_DLPACK, torch_dtype
from rustload._frameworks.torch_packed import decode
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rustload._cuda.packed import Tile
    from rustload._rustload import Buffer, Upload

# Without a cast, elements are copied as integers of their size, which torch can do for every dtype.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def checked(device: torch.device) -> torch.device:
    """The CUDA device with its index; `"cuda"` is the current device.

    Raises:
        DeviceError: torch does not have the GPU, or cannot use it in a forked process.
    """
    _check_fork()
    if not torch.cuda.is_available():
        built = "was built without CUDA" if torch.version.cuda is None else "sees no GPU"
        note = f"torch {torch.__version__} {built}; use device='cpu', or install a CUDA build and driver"
        raise _error("Device", f"device {str(device)!r} is not available", note)
    count = torch.cuda.device_count()
    number: int | None = device.index
    if number is None:
        return torch.device("cuda", torch.cuda.current_device())
    if number >= count:
        text = f"device {str(device)!r} is not available: there are {count} GPU(s)"
        raise _error("Device", text)
    return device


def _check_fork() -> None:
    """Raises DeviceError in a child forked after torch had used CUDA; torch raises RuntimeError there, or sees no GPU."""
    if torch.cuda._is_in_bad_fork():
        note = 'start the workers before CUDA is used, or by multiprocessing\'s "spawn"'
        text = "CUDA was started before the process forked, and cannot be used in the child"
        raise _error("Device", text, note)


class TorchStagingBuffer:
    """GPU memory that holds copied elements until the GPU casts, transposes or decodes them."""

    def __init__(self, tensor: torch.Tensor, byte_view: Buffer) -> None:
        self.tensor = tensor
        self.byte_view = byte_view
        self.nbytes = byte_view.nbytes

    def convert_into(self, start: int, dtype: str, shape: Sequence[int], target: torch.Tensor) -> None:
        """Enqueues a cast and copy from byte `start` of the buffer into `target`, which has this shape and any strides."""
        source = self.tensor[start:].view(torch_dtype(dtype))[: target.numel()].view(tuple(shape))
        bits = _BITS.get(source.itemsize) if source.dtype == target.dtype else None
        if bits is not None:
            source, target = source.view(bits), target.view(bits)
        with torch.no_grad():
            target.copy_(source)

    def decode_into(self, start: int, tile: Tile, target: torch.Tensor) -> None:
        """Enqueues the decoding of a tile, whose parts begin at byte `start` of the buffer, into `target`."""
        memory, parts = self.tensor[start:], zip(tile.offsets, tile.parts, strict=True)
        with torch.no_grad():
            target.copy_(decode(tile, [memory[offset:][: part.nbytes] for offset, part in parts]))


class TorchGpu:
    """One GPU, with torch's caching allocator and current stream."""

    can_convert = True

    def __init__(self, device: torch.device) -> None:
        _check_fork()
        self.device = device
        self.index: int = device.index
        self._stream: Any = None

    def current_stream(self) -> int:
        """The address of the caller's current stream."""
        stream: int = torch.cuda.current_stream(self.index).cuda_stream
        return stream

    def follow_current_stream(self, held: Iterable[torch.Tensor]) -> None:
        """Makes the caller's current stream wait for the previous one, if it changed."""
        now = torch.cuda.current_stream(self.index)
        with torch.cuda.device(self.index):
            is_capturing = torch.cuda.is_current_stream_capturing()
        if is_capturing:
            note = "load before the graph is captured, or on a stream that is not capturing"
            raise _error("Device", "the current stream is capturing a CUDA graph", note)
        if self._stream is not None and self._stream != now:
            now.wait_stream(self._stream)
            for tensor in held:
                tensor.record_stream(now)
        self._stream = now

    def free_memory(self) -> int | None:
        """What the driver says, and the memory that torch keeps for new tensors."""
        free = _rustload.gpu_free_memory(self.index)
        kept: int = torch.cuda.memory_reserved(self.index) - torch.cuda.memory_allocated(self.index)
        return None if free is None else free + kept

    def synchronize(self) -> None:
        """Waits for the caller's current stream."""
        torch.cuda.current_stream(self.index).synchronize()

    def new(self, shape: Sequence[int], dtype: str, _upload: Upload | None) -> tuple[torch.Tensor, Buffer]:
        """A new contiguous tensor, and its memory as 1-D `uint8`."""
        made = torch.empty(tuple(shape), dtype=torch_dtype(dtype), device=self.device)
        return made, self.byte_view(made)

    def empty(self, shape: Sequence[int], dtype: str, _upload: Upload) -> torch.Tensor:
        """A tensor without elements."""
        return torch.empty(tuple(shape), dtype=torch_dtype(dtype), device=self.device)

    def to_result(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor itself."""
        return tensor

    def staging_buffer(self, nbytes: int) -> TorchStagingBuffer:
        """A staging buffer of so many bytes."""
        return TorchStagingBuffer(*self.new([nbytes], "uint8", None))

    def byte_view(self, tensor: torch.Tensor) -> Buffer:
        """The memory of a contiguous tensor as 1-D `uint8`."""
        memory = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
        # `Tensor.__dlpack__` refuses memory of a device that is not the current one.
        return _rustload.adopt(torch.utils.dlpack.to_dlpack(memory))  # type: ignore[attr-defined]  # documented, and not in `__all__`

    def wrap(self, buffer: Buffer) -> torch.Tensor:
        """A tensor that shares the memory of a GPU buffer, with its own storage."""
        if buffer.dtype in IN_DLPACK:
            return torch.utils.dlpack.from_dlpack(buffer.__dlpack__())
        memory = torch.utils.dlpack.from_dlpack(buffer.as_bytes().__dlpack__())
        made = torch.empty(0, dtype=torch_dtype(buffer.dtype), device=self.device)
        return made.set_(memory.untyped_storage(), 0, buffer.shape, buffer.strides)
