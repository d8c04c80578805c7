"""rustload opens PyTorch and safetensors checkpoints safely, lazily and fast; see `rustload.open`."""

from rustload._rustload import DEBUG as _DEBUG
from rustload._rustload import Buffer, Limits, __version__

# isort: split
from rustload import errors
from rustload._checkpoint.checkpoint import Checkpoint
from rustload._checkpoint.open import open
from rustload._checkpoint.tensors import Selection
from rustload._tensor.handle import LazyTensor, Quantization
from rustload.errors import (
    DeviceError,
    DisallowedError,
    FormatError,
    InternalError,
    LimitError,
    ModelMismatchError,
    NotEnoughMemoryError,
    RustloadError,
    RustloadWarning,
    SafetensorError,
    TensorNotFoundError,
    UnsupportedError,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rustload._checkpoint.nesting import unflatten
    from rustload._checkpoint.opaque_class import OpaqueClass
    from rustload._checkpoint.stream import Stream
    from rustload._common.dtypes import DType
    from rustload._common.files import Ranges
    from rustload._common.manifest import Fault, Manifest
    from rustload._common.memory import Memory, memory, trim
    from rustload._common.statistics import ExponentCount, Histogram, Statistics
    from rustload._cuda.info import cuda_info
    from rustload._diff.diff import diff
    from rustload._diff.report import DiffReport, TensorDiff, ValueDiff
    from rustload._safe_open.surface import PySafeSlice, TensorMeta, safe_open
    from rustload._save.convert import convert
    from rustload._save.report import SaveReport
    from rustload._save.save import save
    from rustload._save.writer import Writer
    from rustload._scan.policy import Policy
    from rustload._scan.report import FileReport, Finding, ScanReport
    from rustload._scan.scan import scan
    from rustload._tensor.inert import DefaultDict, Global, Opaque, Sparse
    from rustload._tensor.joined import JoinedTensor, concat, stack
    from rustload._tensor.part import Part
    from rustload._tensor.scheme import Scheme
    from rustload._view.view import view

__all__ = [
    "Buffer",
    "Checkpoint",
    "DType",
    "DefaultDict",
    "DeviceError",
    "DiffReport",
    "DisallowedError",
    "ExponentCount",
    "Fault",
    "FileReport",
    "Finding",
    "FormatError",
    "Global",
    "Histogram",
    "InternalError",
    "JoinedTensor",
    "LazyTensor",
    "LimitError",
    "Limits",
    "Manifest",
    "Memory",
    "ModelMismatchError",
    "NotEnoughMemoryError",
    "Opaque",
    "OpaqueClass",
    "Part",
    "Policy",
    "PySafeSlice",
    "Quantization",
    "Ranges",
    "RustloadError",
    "RustloadWarning",
    "SafetensorError",
    "SaveReport",
    "ScanReport",
    "Scheme",
    "Selection",
    "Sparse",
    "Statistics",
    "Stream",
    "TensorDiff",
    "TensorMeta",
    "TensorNotFoundError",
    "UnsupportedError",
    "ValueDiff",
    "Writer",
    "__version__",
    "concat",
    "convert",
    "cuda_info",
    "diff",
    "errors",
    "memory",
    "open",
    "safe_open",
    "save",
    "scan",
    "stack",
    "trim",
    "unflatten",
    "view",
]

if not TYPE_CHECKING:  # type checkers must still report unknown attributes
    _HINTS = {
        "load": "rustload.open(path) opens a checkpoint; rustload.torch.load(path) replaces torch.load",
        "load_file": "rustload.open(path).materialize() gives a dict of tensors",
        "info": "print(rustload.open(path)), or on the command line: rustload info PATH",
        "stats": "rustload.open(path).stats()",
    }
    _HINTS |= dict.fromkeys(
        ("save_file", "save_model"), "rustload.save(tensors, path) writes a safetensors file"
    )

    # Public names that few programs use are imported at the first access (PEP 562).
    _LAZY_MODULES = {
        "_common.dtypes": ("DType",),
        "_common.files": ("Ranges",),
        "_common.manifest": ("Fault", "Manifest"),
        "_common.memory": ("Memory", "memory", "trim"),
        "_common.statistics": ("ExponentCount", "Histogram", "Statistics"),
        "_checkpoint.nesting": ("unflatten",),
        "_checkpoint.opaque_class": ("OpaqueClass",),
        "_checkpoint.stream": ("Stream",),
        "_cuda.info": ("cuda_info",),
        "_diff.diff": ("diff",),
        "_diff.report": ("DiffReport", "TensorDiff", "ValueDiff"),
        "_safe_open.surface": ("PySafeSlice", "TensorMeta", "safe_open"),
        "_save.convert": ("convert",),
        "_save.report": ("SaveReport",),
        "_save.save": ("save",),
        "_save.writer": ("Writer",),
        "_scan.policy": ("Policy",),
        "_scan.report": ("FileReport", "Finding", "ScanReport"),
        "_scan.scan": ("scan",),
        "_tensor.inert": ("DefaultDict", "Global", "Opaque", "Sparse"),
        "_tensor.joined": ("JoinedTensor", "concat", "stack"),
        "_tensor.part": ("Part",),
        "_tensor.scheme": ("Scheme",),
        "_view.view": ("view",),
    }
    # Of other libraries, which an access to an attribute does not import.
    _OF_FRAMEWORKS = ("diffusers", "jax", "lightning", "peft", "sglang", "torch", "transformers", "vllm")
    _LAZY_IMPORTS = {name: f"rustload.{module}" for module, names in _LAZY_MODULES.items() for name in names}

    def __getattr__(name: str) -> object:
        """Imports a lazy public name at its first access; for an unknown name, raises with a note on what to use."""
        import importlib

        if name == "remote":
            return importlib.import_module("rustload.remote")
        if name in _LAZY_IMPORTS:
            found = globals()[name] = getattr(importlib.import_module(_LAZY_IMPORTS[name]), name)
            return found
        if name in _OF_FRAMEWORKS:
            raise AttributeError(f"rustload.{name} has to be imported: import rustload.{name}")
        error = AttributeError(f"module 'rustload' has no attribute {name!r}", name=name)
        if name in _HINTS:
            error.add_note(_HINTS[name])
        raise error

    def __dir__() -> list[str]:
        """All names, those that are imported lazily included."""
        return sorted({*globals(), *_LAZY_IMPORTS})


del TYPE_CHECKING

if _DEBUG:
    import warnings

    warnings.warn("rustload's extension is a debug build: it is slow", RuntimeWarning, stacklevel=2)
