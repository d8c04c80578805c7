"""Framework "dlpack": results stay `rustload.Buffer`, for any consumer of DLPack or the buffer protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._common.request import wanted_for
from rustload._cuda import plain, results
from rustload._rustload import Buffer

if TYPE_CHECKING:
    from rustload._common.request import Cast, Core, Wanted
    from rustload._cuda.place import Place
    from rustload._frameworks.adapters import Shared


def check_device(device: Any) -> int | None:
    """The number of a GPU; None for host memory.

    Raises:
        DeviceError: It is neither, or there is no such GPU.
    """
    return plain.ordinal(device)


def place(device: int | None) -> Place | None:
    """The GPU; the driver allocates there."""
    return None if device is None else plain.Place(device)


def make(core: Core, wanted: Wanted, device: None, shared: Shared) -> Buffer:
    """The buffer itself."""
    return core.materialize(wanted)


def view(core: Core, shared: Shared) -> None:
    """Has no shorter way than `make`."""


def wrap(buffer: Buffer, device: None) -> Buffer:
    """The buffer itself."""
    return buffer


def into(core: Core, out: Any, wanted: Wanted, *, cast: Cast, sync: bool) -> bool:
    """Writes into another Buffer."""
    if not isinstance(out, Buffer):
        return False
    wanted = wanted_for(core, out.dtype, out.shape, wanted)
    kind, number = out.__dlpack_device__()
    if kind == 1:
        core.materialize_into(wanted, out.as_bytes().__dlpack__(max_version=(1, 0)))
    else:
        results.filled(core, wanted, out, plain.Place(number), cast="cpu", sync=sync)
    return True
