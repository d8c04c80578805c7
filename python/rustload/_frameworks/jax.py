"""Framework "jax": results are `jax.Array`, of every dtype that JAX has; torch has no part in it.

JAX takes host memory as it is where that is aligned to 64 bytes, so a view of an archive that torch wrote stays a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from rustload import _rustload
from rustload._cuda import plain
from rustload._frameworks.numpy import wrap as wrap_numpy
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from rustload._common.request import Cast, Core, Wanted
    from rustload._cuda.place import Place
    from rustload._frameworks.adapters import Shared
    from rustload._rustload import Buffer, Upload

# JAX makes 32 bits of these unless it is told otherwise.
_WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def check_device(device: Any) -> Any:
    """JAX's device, or a sharding as it is; None for JAX's default.

    Raises:
        DeviceError: JAX has no such device.
    """
    if device is None or isinstance(device, (jax.Device, jax.sharding.Sharding)):
        return device
    platform, _, index = (
        f"cuda:{device}".partition(":") if isinstance(device, int) else str(device).partition(":")
    )
    try:
        return jax.devices(platform)[int(index or 0)]
    except (RuntimeError, IndexError, ValueError) as error:
        there = ", ".join(f"{one.platform}:{one.id}" for one in jax.devices())
        raise _make("Device", "Device", f"JAX has no device {str(device)!r}", f"it has {there}") from error


class _Gpu(plain.Place):
    """A GPU of JAX's."""

    def new(self, shape: Sequence[int], dtype: str, upload: Upload) -> tuple[Buffer, Buffer]:
        """As for buffers; refuses what JAX would make narrower."""
        _check_width(dtype)
        return super().new(shape, dtype, upload)

    def wrap(self, buffer: Buffer) -> Buffer:
        """The buffer itself, if JAX has its dtype."""
        _check_width(buffer.dtype)
        return buffer

    def given(self, made: Buffer) -> Any:
        """The array over the buffer's memory, keeping it alive."""
        try:
            return jax.dlpack.from_dlpack(made)
        except (TypeError, KeyError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "type" not in str(error):
                raise
            note = "cast it with dtype=..."
            raise _make(
                "Unsupported", "DtypeUnsupported", f"JAX has no {made.dtype} on a GPU", note
            ) from error


def place(device: Any) -> Place | None:
    """The GPU of CUDA that the device is, or that is JAX's default; None for all others, and shardings."""
    found = jax.devices()[0] if device is None else device
    if not isinstance(found, jax.Device) or found.platform not in ("gpu", "cuda"):
        return None
    if "cuda" not in found.client.platform_version.lower():
        return None
    return _Gpu(found.local_hardware_id)


def make(core: Core, wanted: Wanted, device: Any, shared: Shared) -> Any:
    """The array on the device."""
    _check_width(wanted.dtype or core.dtype, _name(core))
    buffer = core.materialize(wanted)
    made = wrap(buffer, device)
    if wanted.copy is False and not _shares(made, wrap_numpy(buffer, None)):
        note = "JAX takes memory of the CPU that is aligned to 64 bytes, contiguous and not empty; copy=None copies the rest"
        raise _make("Buffer", "Buffer", f"{_name(core)!r} cannot be a JAX array without a copy", note)
    return made


def view(core: Core, shared: Shared) -> None:
    """Has no shorter way than `make`."""


def wrap(buffer: Buffer, device: Any) -> Any:
    """An array over the buffer's memory where the device is the CPU and can take it, else with a copy of it."""
    _check_width(buffer.dtype)
    try:
        return jax.device_put(wrap_numpy(buffer, None), device)
    except TypeError as error:
        raise _make(
            "Unsupported", "DtypeUnsupported", f"JAX has no {buffer.dtype}", "cast it with dtype=..."
        ) from error


def into(core: Core, out: Any, wanted: Wanted, *, cast: Cast, sync: bool) -> bool:
    """Refuses: JAX's arrays cannot be written to."""
    raise _make(
        "Type", "Type", "out= is a JAX array, which cannot be written to", "take the result of materialize()"
    )


def _name(core: Core) -> str:
    """The tensor's name; empty for a joined one."""
    return core.name if isinstance(core, _rustload.Tensor) else ""


def _check_width(name: str, tensor: str = "") -> None:
    if name in _WIDE and not jax.config.read("jax_enable_x64"):
        narrow = {tensor: _WIDE[name]} if tensor else _WIDE[name]
        note = f"jax.config.update('jax_enable_x64', True) keeps it; dtype={narrow!r} casts it"
        what = f"{tensor!r} is {name}" if tensor else f"a tensor is {name}"
        raise _make("Unsupported", "DtypeUnsupported", f"{what}, and JAX is set to 32 bits", note)


def _shares(made: Any, array: np.ndarray[Any, Any]) -> bool:
    shards = made.addressable_shards
    return len(shards) == 1 and shards[0].data.unsafe_buffer_pointer() == array.ctypes.data
