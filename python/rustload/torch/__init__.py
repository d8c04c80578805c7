"""rustload for torch: `load` in place of `torch.load`, lazy state dicts, `load_into` and `save_model` for modules.

Importing this module imports torch; `import rustload` does not.
"""

from rustload.torch import _require_torch as _require_torch

# isort: split
from rustload.torch._handle import TorchHandle
from rustload.torch._load import load
from rustload.torch._load_into import load_into
from rustload.torch._report import Converted, LoadReport, Mismatch
from rustload.torch._save_model import save_model
from rustload.torch._state_dict import StateDict, state_dict

__all__ = [
    "Converted",
    "LoadReport",
    "Mismatch",
    "StateDict",
    "TorchHandle",
    "load",
    "load_into",
    "save_model",
    "state_dict",
]
