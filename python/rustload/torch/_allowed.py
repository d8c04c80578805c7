"""The default allowlist of `torch.load(weights_only=True)` (torch/_weights_only_unpickler.py: `_get_allowed_globals`).

With `unknown="error"`, a name that is not on the list is an error. Dtypes, quantization schemes and classes on the list (not
functions) are returned if a file has them as values. They come from this table; nothing is looked up by a name from the file.
"""

from __future__ import annotations

import collections
from typing import Any

import torch

__all__ = ["NAMES", "VALUES"]

_NUMBERS = ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
_STORAGES = (*_NUMBERS, "ComplexDouble", "ComplexFloat")
_QUANTIZED = ("QInt8", "QInt32", "QUInt8", "QUInt4x2", "QUInt2x4")
_SCHEMES = (
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
)
_FUNCTIONS = (
    "_codecs.encode",
    "torch.serialization._get_layout",
    "torch._tensor._rebuild_from_type_v2",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor",
    "torch._utils._rebuild_device_tensor_from_numpy",
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch._utils._rebuild_nested_tensor",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_qtensor",
    "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_wrapper_subclass",
)


def _values() -> dict[str, Any]:
    """The classes and constants by `module.name`; None for those that the installed torch does not have."""
    found: dict[str, Any] = {
        "collections.OrderedDict": collections.OrderedDict,
        "collections.Counter": collections.Counter,
        "builtins.bytearray": bytearray,
        "builtins.set": set,
        "builtins.complex": complex,
        "torch.nn.parameter.Parameter": torch.nn.Parameter,
        "torch.Size": torch.Size,
        "torch.Tensor": torch.Tensor,
        "torch.device": torch.device,
        "torch.storage.TypedStorage": torch.storage.TypedStorage,
        "torch.storage.UntypedStorage": torch.storage.UntypedStorage,
    }
    found |= {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    for scheme in _SCHEMES:
        found[f"torch.{scheme}"] = getattr(torch, scheme)
    for prefix, module in (("torch", torch), ("torch.cuda", torch.cuda)):
        sparse = module.sparse if prefix == "torch" else getattr(torch.cuda, "sparse", None)
        for number in _NUMBERS:
            found[f"{prefix}.{number}Tensor"] = getattr(module, f"{number}Tensor", None)
            if number != "Bool":
                found[f"{prefix}.sparse.{number}Tensor"] = getattr(sparse, f"{number}Tensor", None)
        for number in (*_STORAGES, *(_QUANTIZED if prefix == "torch" else ())):
            found[f"{prefix}.{number}Storage"] = _storage_type(f"{number}Storage")
    return found


def _storage_type(name: str) -> Any:
    """The object that torch returns for a typed storage class that is a value in a file."""
    make = getattr(torch.serialization, "StorageType", None)
    return None if make is None else make(name)


VALUES = _values()
"""The classes and constants by `module.name`."""

NAMES = frozenset((*VALUES, *_FUNCTIONS))
"""Every name on torch's allowlist."""
