"""rustload for torch: state dicts that read nothing until they are used, models filled in place. It imports torch."""

from rustload.torch._handle import TorchHandle
from rustload.torch._load_into import load_into
from rustload.torch._report import Converted, LoadReport, Mismatch
from rustload.torch._state_dict import StateDict, state_dict

__all__ = [
    "Converted",
    "LoadReport",
    "Mismatch",
    "StateDict",
    "TorchHandle",
    "load_into",
    "state_dict",
]
