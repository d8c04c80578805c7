"""Framework "numpy": results are `numpy.ndarray`; bfloat16 and fp8 have their dtypes from ml_dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rustload._common.request import wanted_for
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload._common.request import Cast, Core, Wanted
    from rustload._frameworks.adapters import Shared
    from rustload._rustload import Buffer

# What NumPy has from ml_dtypes alone; complex32 came to it late.
_ML_DTYPES = {
    "bfloat16",
    "complex32",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name in torch's words.

    Raises:
        UnsupportedError: NumPy has none, even with ml_dtypes.
        ImportError: ml_dtypes is needed and not installed.
    """
    found: Any = name
    if name in _ML_DTYPES:
        try:
            import ml_dtypes
        except ModuleNotFoundError as error:
            raise ImportError(f"{name} in NumPy needs ml_dtypes: pip install 'rustload[numpy]'") from error
        found = getattr(ml_dtypes, name, name)
    try:
        dtype: np.dtype[Any] = np.dtype(found)
    except TypeError:
        missing = _make(
            "Unsupported",
            "DtypeUnsupported",
            f"NumPy has no {name}",
            "use .bytes(), or cast it with dtype=...",
        )
        raise missing from None
    return dtype


def check_device(device: Any) -> None:
    """Only host memory.

    Raises:
        DeviceError: It is another.
    """
    if device is not None and str(device) != "cpu":
        raise _make(
            "Device",
            "Device",
            f"device {str(device)!r} needs another framework: NumPy has host memory only",
            "framework='torch', 'jax', 'cupy' and 'dlpack' have GPUs",
        )


def place(device: None) -> None:
    """None: NumPy has no GPU."""


def make(core: Core, wanted: Wanted, device: Any, shared: Shared) -> np.ndarray[Any, Any]:
    """An array over the memory of the view or the result, writable, keeping it alive."""
    numpy_dtype(wanted.dtype or core.dtype)  # refuses before anything is read
    return wrap(core.materialize(wanted), None)


def view(core: Core, shared: Shared) -> None:
    """Has no shorter way than `make`."""


def wrap(buffer: Buffer, device: Any) -> np.ndarray[Any, Any]:
    """An array over the buffer's memory, keeping it alive."""
    return np.asarray(buffer).view(numpy_dtype(buffer.dtype))


def into(core: Core, out: Any, wanted: Wanted, *, cast: Cast, sync: bool) -> bool:
    """Writes into an array; straight into its memory where that is contiguous."""
    if not isinstance(out, np.ndarray):
        return False
    if not out.flags.writeable:
        raise _make("Value", "Value", "out= is a read-only array")
    wanted = wanted_for(core, out.dtype.name, out.shape, wanted)
    numpy_dtype(out.dtype.name)  # refuses what has no counterpart, such as strings
    if out.flags.c_contiguous and out.dtype.isnative:
        core.materialize_into(wanted, out.reshape(-1).view(np.uint8).__dlpack__())
    else:
        out[...] = wrap(core.materialize(wanted), None)
    return True
