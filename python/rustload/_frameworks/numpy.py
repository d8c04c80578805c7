"""Framework "numpy": results are `numpy.ndarray`; bfloat16 and fp8 have their dtypes from ml_dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rustload._frameworks.dlpack import check_device as check_device  # host memory only, as there
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload import _rustload
    from rustload._tensor import LazyTensor, Wanted

_ML_DTYPES = {
    "bfloat16",
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
    if name in _ML_DTYPES:
        try:
            import ml_dtypes
        except ModuleNotFoundError as error:
            raise ImportError(f"{name} in NumPy needs ml_dtypes: pip install 'rustload[numpy]'") from error
        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    try:
        return np.dtype(name)
    except TypeError:
        missing = _make(
            "Unsupported",
            "DtypeUnsupported",
            f"NumPy has no {name}",
            "use .bytes(), or cast it with dtype=...",
        )
        raise missing from None


def make(tensor: LazyTensor, buffer: _rustload.Buffer, device: Any) -> np.ndarray[Any, Any]:
    """An array over the buffer's memory, writable, keeping it alive."""
    return np.asarray(buffer).view(numpy_dtype(buffer.dtype))


def into(tensor: LazyTensor, out: Any, wanted: Wanted) -> bool:
    """Writes into an array; straight into its memory where that is contiguous."""
    if not isinstance(out, np.ndarray):
        return False
    if not out.flags.writeable:
        raise _make("Value", "Value", "out= is a read-only array")
    wanted = tensor._wanted_for(out.dtype.name, out.shape, wanted)
    numpy_dtype(out.dtype.name)  # refuses what has no counterpart, such as strings
    if out.flags.c_contiguous and out.dtype.isnative:
        tensor._core.materialize_into(wanted, out.reshape(-1).view(np.uint8).__dlpack__())
    else:
        out[...] = make(tensor, tensor._core.materialize(wanted), None)
    return True
