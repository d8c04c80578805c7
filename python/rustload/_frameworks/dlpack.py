"""Framework "dlpack": results stay `rustload.Buffer`, for any consumer of DLPack or the buffer protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._rustload import Buffer
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload._tensor import LazyTensor, Wanted


def check_device(device: Any) -> None:
    """Only host memory."""
    if device is not None and str(device) != "cpu":
        raise _make(
            "Device",
            "Device",
            f"device {str(device)!r} needs framework 'torch'; this framework has host memory only",
        )


def make(tensor: LazyTensor, wanted: Wanted, device: Any) -> Buffer:
    """The buffer itself."""
    return tensor._core.materialize(wanted)


def wrap(buffer: Buffer, device: Any) -> Buffer:
    """The buffer itself."""
    return buffer


def into(tensor: LazyTensor, out: Any, wanted: Wanted) -> bool:
    """Writes into another Buffer."""
    if not isinstance(out, Buffer):
        return False
    wanted = tensor._wanted_for(out.dtype, out.shape, wanted)
    tensor._core.materialize_into(wanted, out.as_bytes().__dlpack__(max_version=(1, 0)))
    return True
