"""Framework "jax": results are `jax.Array`, of every dtype that JAX has. torch is not used.

JAX shares host memory that is aligned to 64 bytes without a copy, so a view of an archive that torch wrote stays a view.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import jax

from rustload import _rustload
from rustload._cuda import driver_gpu
from rustload._frameworks.adapters import check_copy
from rustload._frameworks.numpy import wrap as wrap_numpy
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from rustload._common.request import Cast, Core, Request
    from rustload._cuda.gpu import Gpu
    from rustload._frameworks.adapters import HandleContext
    from rustload._rustload import Buffer

_NAMES_SHOWN = 5
"""The most tensors that a note names."""

# JAX truncates these to 32 bits unless `jax_enable_x64` is set.
_WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


COPIES_VIEWS = True
HAS_READ_ONLY = True


def check_device(device: Any) -> Any:
    """Converts `device=` to a JAX device of this process; a sharding is returned unchanged; None is JAX's default device.

    Raises:
        DeviceError: JAX has no such device.
    """
    if device is None or isinstance(device, (jax.Device, jax.sharding.Sharding)):
        return device
    platform, _, index = (
        f"cuda:{device}".partition(":") if isinstance(device, int) else str(device).partition(":")
    )
    try:
        return jax.local_devices(backend=platform)[int(index or 0)]
    except (RuntimeError, IndexError, ValueError) as error:
        there = ", ".join(f"{one.platform}:{one.id}" for one in jax.local_devices())
        raise _error("Device", f"JAX has no device {str(device)!r}", f"it has {there}") from error


class _JaxGpu(driver_gpu.DriverGpu):
    """A `Gpu` whose results are `jax.Array` over memory of the CUDA driver."""

    def to_result(self, tensor: Buffer) -> Any:
        """The array that shares the buffer's memory and keeps it alive."""
        check_width(tensor.dtype)
        try:
            return jax.dlpack.from_dlpack(tensor)
        except (TypeError, KeyError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "UNIMPLEMENTED" not in str(error):
                raise
            note = "cast it with dtype=..."
            raise _error("DtypeUnsupported", f"JAX has no {tensor.dtype} on a GPU", note) from error


def gpu_for(device: Any) -> Gpu | None:
    """The CUDA GPU, if the device (or JAX's default device) is one; None for other devices and for shardings."""
    if device is None:
        device = check_device(jax.config.jax_default_device) or jax.local_devices()[0]
    if not isinstance(device, jax.Device) or device.platform not in ("gpu", "cuda"):
        return None
    if "cuda" not in device.client.platform_version.lower():
        return None
    return _JaxGpu(device.local_hardware_id)


def make(core: Core, request: Request, device: Any, context: HandleContext) -> Any:
    """Materializes the tensor as an array on the device; raises BufferError if `copy=False` is not possible."""
    check_width(request.dtype or core.dtype, _name(core))
    if isinstance(device, jax.sharding.Sharding):
        check_sharding(device, core.result_shape(request), _name(core))
    buffer = core.materialize(request)
    check_copy(core, buffer)
    made = wrap(buffer, device)
    if request.copy is False and not _shares_memory(made, wrap_numpy(buffer, None)):
        note = "JAX shares memory of the CPU that is aligned to 64 bytes, contiguous and not empty; copy=None copies otherwise"
        raise _error("Buffer", f"{_name(core)!r} cannot be a JAX array without a copy", note)
    return made


def fast_view(core: Core, context: HandleContext) -> None:
    """None: there is no fast path."""


def wrap(buffer: Buffer, device: Any) -> Any:
    """An array that shares the buffer's memory if the device is the CPU and the alignment allows it; otherwise a copy."""
    check_width(buffer.dtype)
    try:
        return jax.device_put(wrap_numpy(buffer, None), device)
    except TypeError as error:
        raise _error("DtypeUnsupported", f"JAX has no {buffer.dtype}", "cast it with dtype=...") from error


def write_into(core: Core, out: Any, request: Request, *, cast: Cast, sync: bool) -> bool:
    """Always raises: JAX arrays are immutable."""
    raise _error(
        "Type",
        "is a JAX array, which cannot be written to",
        "use the result of materialize()",
        argument="out",
    )


def _name(core: Core) -> str:
    """The tensor's name; empty for a joined one."""
    return core.name if isinstance(core, _rustload.Tensor) else ""


def check_width(name: str, tensor: str = "") -> None:
    """Raises UnsupportedError for a dtype of 64 bits if JAX is set to 32 bits."""
    check_widths({tensor: name})


def check_widths(dtypes: Mapping[str, str]) -> None:
    """As `check_width`, for the dtypes of several tensors by their names."""
    wide = {tensor: name for tensor, name in dtypes.items() if name in _WIDE}
    if wide and not jax.config.read("jax_enable_x64"):
        first, name = next(iter(wide.items()))
        narrow: Any = {tensor: _WIDE[dtype] for tensor, dtype in itertools.islice(wide.items(), _NAMES_SHOWN)}
        narrow = repr(narrow if first else _WIDE[name])
        note = f"jax.config.update('jax_enable_x64', True) keeps them; dtype={narrow} casts them"
        what = f"{first!r} is {name}" if first else f"a tensor is {name}"
        more = f", {len(wide) - 1:,} more have 64 bits" if len(wide) > 1 else ""
        raise _error("DtypeUnsupported", f"{what}{more}, and JAX is set to 32 bits", note)


def check_sharding(sharding: jax.sharding.Sharding, shape: Sequence[int], tensor: str) -> None:
    """Raises ValueError for a sharding that does not divide a tensor of this shape into equal parts."""
    try:
        sharding.check_compatible_aval(tuple(shape))
        sharding.shard_shape(tuple(shape))
    except (ValueError, IndexError, AssertionError) as error:  # JAX words them without the tensor
        how = getattr(sharding, "spec", sharding)
        text = f"{how} does not divide {tensor!r}, whose shape is {list(shape)}"
        note = "a sharding has at most as many axes as the tensor, and divides each; give tensors theirs by patterns"
        raise _error("Value", text, f"{note}, as in shardings={{'*.weight': ...}}") from error


def _shares_memory(made: Any, array: np.ndarray[Any, Any]) -> bool:
    shards = made.addressable_shards
    return len(shards) == 1 and shards[0].data.unsafe_buffer_pointer() == array.ctypes.data
