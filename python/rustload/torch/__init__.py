"""rustload for torch: what `torch.load` gives, state dicts that read nothing until they are used, models filled in place.

Importing this imports torch, which `import rustload` does not.
"""

from rustload.torch import _require_torch as _require_torch

# isort: split
from rustload.torch._handle import TorchHandle
from rustload.torch._load import load
from rustload.torch._load_into import load_into
from rustload.torch._report import Converted, LoadReport, Mismatch
from rustload.torch._state_dict import StateDict, state_dict

__all__ = [
    "Converted",
    "LoadReport",
    "Mismatch",
    "StateDict",
    "TorchHandle",
    "load",
    "load_into",
    "state_dict",
]
