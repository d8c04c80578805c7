"""`Gpu`: one GPU as one framework sees it: its allocator, its current stream, and its conversion kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from rustload._common.dtype_rows import DTYPE_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rustload._rustload import Buffer, Upload

# Bytes per element, by dtype.
ITEMSIZE = {name: row.itemsize for name, row in DTYPE_ROWS.items()}


class Gpu(Protocol):
    """The operations that uploads need from a framework on one GPU. A tensor is the framework's own object."""

    index: int
    """The GPU's ordinal in the CUDA driver of this process."""

    can_convert: bool
    """Whether the framework casts and transposes on the GPU; only then `staging_buffer` works."""

    def current_stream(self) -> int | None:
        """The address of the caller's current CUDA stream; None for a framework without streams."""

    def follow_current_stream(self, held: Iterable[Any]) -> None:
        """Makes the caller's current stream wait for the stream that was current at the last call, if it is another.

        Args:
            held: Tensors of copies in flight, and staging buffers: memory that is now used on the new stream too.

        Raises:
            DeviceError: The current stream is capturing a CUDA graph.
        """

    def new(self, shape: Sequence[int], dtype: str, upload: Upload) -> tuple[Any, Buffer]:
        """Allocates a C-contiguous tensor with at least one element; returns it and its memory as 1-D `uint8`."""

    def wrap(self, buffer: Buffer) -> Any:
        """A tensor that shares the memory of a GPU buffer and keeps it alive."""

    def empty(self, shape: Sequence[int], dtype: str, upload: Upload) -> Any:
        """A tensor without elements."""

    def to_result(self, tensor: Any) -> Any:
        """The object to return to the caller for a finished result of `new`, `wrap` or `empty`."""

    def byte_view(self, tensor: Any) -> Buffer:
        """The memory of an existing contiguous tensor as 1-D `uint8`."""

    def staging_buffer(self, nbytes: int) -> StagingBuffer:
        """Allocates a staging buffer of so many bytes."""

    def free_memory(self) -> int | None:
        """The bytes that new tensors may take, the allocator's unused ones included; None if the driver does not say."""

    def synchronize(self) -> None:
        """Waits until all work on the caller's current stream is done."""


class StagingBuffer(Protocol):
    """GPU memory that holds copied elements until the GPU casts, transposes or decodes them into the result."""

    nbytes: int
    tensor: Any
    """The framework's tensor that owns the memory."""

    byte_view: Buffer
    """The same memory as 1-D `uint8`."""

    def convert_into(self, start: int, dtype: str, shape: Sequence[int], target: Any) -> None:
        """Enqueues a cast and copy from byte `start` of the buffer into `target`, which has this shape and any strides."""

    def decode_into(self, start: int, tile: Any, target: Any) -> None:
        """Enqueues the decoding of a `Tile`, whose parts begin at byte `start` of the buffer, into `target`."""
