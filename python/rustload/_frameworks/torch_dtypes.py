"""torch's dtypes by name."""

from __future__ import annotations

import torch

from rustload.errors import _error

# The dtypes that every supported torch imports by DLPack; others are imported as bytes and viewed.
IN_DLPACK = {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}


def torch_dtype(name: str) -> torch.dtype:
    """The `torch.dtype` of that name.

    Raises:
        UnsupportedError: The installed torch does not have it.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise _error("DtypeUnsupported", f"torch {torch.__version__} has no {name}", "use a newer torch")
    return found
