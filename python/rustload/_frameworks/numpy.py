"""Framework "numpy": results are `numpy.ndarray`; ml_dtypes provides bfloat16 and fp8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rustload._common.dtype_rows import DTYPE_ROWS
from rustload._common.request import Request, request_for_out
from rustload.errors import _error

if TYPE_CHECKING:
    from rustload._common.request import Cast, Core
    from rustload._frameworks.adapters import HandleContext
    from rustload._rustload import Buffer

# The dtypes that only ml_dtypes provides; complex32 is not in its older versions.
_ML_DTYPES = {row.name for row in DTYPE_ROWS.values() if row.numpy_code is None and row.kind != "Packed"}

COPIES_VIEWS = False
HAS_READ_ONLY = True

_DTYPES: dict[str, np.dtype[Any]] = {}
"""The dtypes that were found before."""

_PLAIN = Request()


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Converts a torch dtype name to a NumPy dtype.

    Raises:
        UnsupportedError: Neither NumPy nor ml_dtypes has the dtype.
        ImportError: The dtype needs ml_dtypes, which is not installed.
    """
    if name in _DTYPES:
        return _DTYPES[name]
    found: Any = name
    if name in _ML_DTYPES:
        try:
            import ml_dtypes
        except ModuleNotFoundError as error:
            raise ImportError(f"{name} in NumPy needs ml_dtypes: pip install ml_dtypes") from error
        found = getattr(ml_dtypes, name, name)
    try:
        dtype: np.dtype[Any] = np.dtype(found)
    except TypeError:
        missing = _error(
            "DtypeUnsupported",
            f"NumPy has no {name}",
            "use .bytes(), or cast it with dtype=...",
        )
        raise missing from None
    _DTYPES[name] = dtype
    return dtype


def check_device(device: Any) -> None:
    """Accepts only the host.

    Raises:
        DeviceError: The device is another one.
    """
    if device is not None and str(device) != "cpu":
        raise _error(
            "Device",
            f"device {str(device)!r} needs another framework: NumPy has host memory only",
            "framework='torch', 'jax', 'cupy' and 'dlpack' have GPUs",
        )


def gpu_for(device: None) -> None:
    """None: NumPy has no GPU."""


def make(core: Core, request: Request, device: Any, context: HandleContext) -> np.ndarray[Any, Any]:
    """Materializes the tensor as an array: a view of the file, or owned."""
    numpy_dtype(request.dtype or core.dtype)  # raises for an unsupported dtype before anything is read
    return wrap(core.materialize(request), None)


def fast_view(core: Core, context: HandleContext) -> np.ndarray[Any, Any]:
    """As `make`, without conversion."""
    return make(core, _PLAIN, None, context)


def wrap(buffer: Buffer, device: Any) -> np.ndarray[Any, Any]:
    """An array that shares the buffer's memory and keeps it alive."""
    array, dtype = np.asarray(buffer), numpy_dtype(buffer.dtype)
    return array if array.dtype is dtype else array.view(dtype)


def write_into(core: Core, out: Any, request: Request, *, cast: Cast, sync: bool) -> bool:
    """Materializes into an array: directly into contiguous memory, otherwise through a temporary array."""
    if not isinstance(out, np.ndarray):
        return False
    if not out.flags.writeable:
        raise _error("Value", "is a read-only array", argument="out")
    request = request_for_out(core, out.dtype.name, out.shape, request)
    numpy_dtype(out.dtype.name)  # raises for a dtype that rustload does not have, such as strings
    if out.flags.c_contiguous and out.dtype.isnative:
        memory = np.asarray(out).reshape(-1)  # a matrix has two dimensions always
        core.materialize_into(request, memory.view(np.uint8).__dlpack__())
    else:
        out[...] = wrap(core.materialize(request), None)
    return True
