"""The default allowlist of `torch.load(weights_only=True)` (torch/_weights_only_unpickler.py: `_get_allowed_globals`).

The names are those that the table of globals (src/index/pickled/globals.txt) marks. With `unknown="error"`, another name is an
error. Dtypes, quantization schemes and classes on the list (not functions) are returned if a file has them as values: nothing is
looked up by a name from the file.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch

from rustload import _rustload


def _value(module: str, name: str) -> Any:
    """The class or constant of that name; None if the installed torch does not have it."""
    if module in ("torch", "torch.cuda") and name.endswith("Storage"):
        # The object that torch returns for a typed storage class that is a value in a file.
        make = getattr(torch.serialization, "StorageType", None)
        return None if make is None else make(name)
    found = sys.modules.get(module)
    if found is None and module == "torch.cuda.sparse":
        found = getattr(torch.cuda, "sparse", None)
    return getattr(found, name, None)


VALUES = {
    f"{module}.{name}": value
    for module, name in _rustload.TORCH_GLOBALS
    if not inspect.isroutine(value := _value(module, name))
}
"""The classes and constants by `module.name`."""

NAMES = frozenset(f"{module}.{name}" for module, name in _rustload.TORCH_GLOBALS)
"""Every name on torch's allowlist."""
