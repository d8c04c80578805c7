"""`Place`: one GPU as one framework sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from rustload import _rustload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rustload._rustload import Buffer, Upload

__all__ = ["ITEMSIZE", "Panel", "Place"]

# Bytes of an element, by dtype.
ITEMSIZE = {name: itemsize for name, itemsize, _ in _rustload.DTYPES}


class Place(Protocol):
    """What uploads need of a framework and a GPU. A tensor is the framework's own object."""

    index: int
    """The GPU's ordinal, as the driver counts in this process."""

    computes: bool
    """Whether the framework casts and transposes on the GPU: whether there are `panel` and `move`."""

    def stream(self) -> int | None:
        """The address of the stream on which the caller works now; None where the framework has none to be told of."""

    def follow(self, held: Iterable[Any]) -> None:
        """Looks where the caller works now; what was done for him on another stream comes before what he does next.

        Args:
            held: Tensors that are on their way, and panels.

        Raises:
            DeviceError: That stream is recording a graph.
        """

    def new(self, shape: Sequence[int], dtype: str, upload: Upload) -> tuple[Any, Buffer]:
        """A new C-contiguous tensor of one element at least, and its memory as a row of bytes."""

    def wrap(self, buffer: Buffer) -> Any:
        """A tensor over a buffer in the GPU's memory, keeping it alive."""

    def empty(self, shape: Sequence[int], dtype: str, upload: Upload) -> Any:
        """A tensor without elements."""

    def given(self, made: Any) -> Any:
        """What the caller gets for a finished result of `new`, `wrap` or `empty`."""

    def row(self, tensor: Any) -> Buffer:
        """The memory of a contiguous tensor that is there, as a row of bytes."""

    def panel(self, nbytes: int) -> Panel:
        """Memory for what the GPU is to convert."""

    def finish(self) -> None:
        """Waits until all is done that was enqueued on the caller's stream."""


class Panel(Protocol):
    """Memory of a GPU through which tensors go that it casts or transposes."""

    nbytes: int
    held: Any
    """The tensor below."""

    row: Buffer
    """The same as a row of bytes."""

    def move(self, start: int, dtype: str, shape: Sequence[int], target: Any) -> None:
        """Enqueues the cast and copy of a part into a tensor of the same shape, with any strides."""
