"""Framework "dlpack": results stay `rustload.Buffer`, for any consumer of DLPack or the buffer protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._cuda import _plain, _results
from rustload._rustload import Buffer

if TYPE_CHECKING:
    from rustload._cast import Cast
    from rustload._cuda._place import Place
    from rustload._tensor import LazyTensor, Wanted


def check_device(device: Any) -> int | None:
    """The number of a GPU; None for host memory.

    Raises:
        DeviceError: It is neither, or there is no such GPU.
    """
    return _plain.ordinal(device)


def place(device: int | None) -> Place | None:
    """The GPU; the driver allocates there."""
    return None if device is None else _plain.Place(device)


def make(tensor: LazyTensor, wanted: Wanted, device: None) -> Buffer:
    """The buffer itself."""
    return tensor._core.materialize(wanted)


def wrap(buffer: Buffer, device: None) -> Buffer:
    """The buffer itself."""
    return buffer


def into(tensor: LazyTensor, out: Any, wanted: Wanted, *, cast: Cast, sync: bool) -> bool:
    """Writes into another Buffer."""
    if not isinstance(out, Buffer):
        return False
    wanted = tensor._wanted_for(out.dtype, out.shape, wanted)
    kind, number = out.__dlpack_device__()
    if kind == 1:
        tensor._core.materialize_into(wanted, out.as_bytes().__dlpack__(max_version=(1, 0)))
    else:
        _results.filled(tensor, wanted, out, _plain.Place(number), cast="cpu", sync=sync)
    return True
