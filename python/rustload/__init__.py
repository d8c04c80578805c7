"""rustload opens PyTorch and safetensors checkpoints safely, lazily and fast; see `rustload.open`."""

from rustload._rustload import DEBUG as _DEBUG
from rustload._rustload import Buffer, __version__

# isort: split
from rustload import errors
from rustload._checkpoint import Checkpoint, OpaqueClass, open
from rustload._inert import DefaultDict, Global, Opaque, Quantization, Sparse
from rustload._join import JoinedTensor, concat, stack
from rustload._limits import Limits
from rustload._memory import Memory, memory, trim
from rustload._safe_open import PySafeSlice, TensorMeta, safe_open
from rustload._scan import FileReport, Finding, ScanReport, scan
from rustload._stream import Stream
from rustload._tensor import LazyTensor
from rustload.errors import (
    DeviceError,
    DisallowedError,
    FormatError,
    InternalError,
    LimitError,
    ModelMismatchError,
    RustloadError,
    RustloadWarning,
    SafetensorError,
    TensorNotFoundError,
    UnsupportedError,
)

__all__ = [
    "Buffer",
    "Checkpoint",
    "DefaultDict",
    "DeviceError",
    "DisallowedError",
    "FileReport",
    "Finding",
    "FormatError",
    "Global",
    "InternalError",
    "JoinedTensor",
    "LazyTensor",
    "LimitError",
    "Limits",
    "Memory",
    "ModelMismatchError",
    "Opaque",
    "OpaqueClass",
    "PySafeSlice",
    "Quantization",
    "RustloadError",
    "RustloadWarning",
    "SafetensorError",
    "ScanReport",
    "Sparse",
    "Stream",
    "TensorMeta",
    "TensorNotFoundError",
    "UnsupportedError",
    "__version__",
    "concat",
    "errors",
    "memory",
    "open",
    "safe_open",
    "scan",
    "stack",
    "trim",
]


def __getattr__(name: str) -> object:
    """Says what to import where somebody uses a room that is not imported with `rustload`."""
    if name in ("jax", "torch", "transformers"):
        raise AttributeError(f"rustload.{name} has to be imported: import rustload.{name}")
    raise AttributeError(f"module 'rustload' has no attribute {name!r}")


if _DEBUG:
    import warnings

    warnings.warn("rustload's extension is a debug build: it is slow", RuntimeWarning, stacklevel=2)
