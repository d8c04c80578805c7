"""The frameworks that results can be made for. Each module imports its framework; none is imported before it is needed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any, Protocol

from rustload.errors import _make

if TYPE_CHECKING:
    from rustload._cast import Cast
    from rustload._cuda._place import Place
    from rustload._rustload import Buffer
    from rustload._tensor import LazyTensor, Wanted

__all__ = ["NAMES", "Adapter", "adapter", "default"]

NAMES = ("torch", "numpy", "jax", "cupy", "dlpack")


class Adapter(Protocol):
    """What a framework's module offers."""

    def check_device(self, device: Any) -> Any:
        """The device as the framework has it, or a DeviceError."""

    def place(self, device: Any) -> Place | None:
        """Where results are uploaded to for what `check_device` gave; None for the host, and devices that are no GPU of CUDA."""

    def make(self, tensor: LazyTensor, wanted: Wanted, device: Any) -> Any:
        """The framework's object for what is wanted of the tensor, on a device that has no `place`."""

    def wrap(self, buffer: Buffer, device: Any) -> Any:
        """The framework's object over a finished, owned or viewed buffer, on a device that has no `place`."""

    def into(self, tensor: LazyTensor, out: Any, wanted: Wanted, *, cast: Cast, sync: bool) -> bool:
        """Writes into `out` if it is of this framework; False if it is not."""


def default() -> str:
    """torch if it is installed, else NumPy, else plain buffers; nothing is imported to find out."""
    return next((name for name in ("torch", "numpy") if importlib.util.find_spec(name)), "dlpack")


def adapter(name: str) -> Adapter:
    """The module for a framework.

    Raises:
        ValueError: There is no such framework.
        ImportError: It is not installed; the message says which line installs it.
    """
    if name not in NAMES:
        raise _make("Value", "Value", f"framework {name!r} is not one of {', '.join(NAMES)}")
    try:
        return importlib.import_module(f"rustload._frameworks.{name}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("rustload"):
            raise
        line = (
            "the CuPy package of your CUDA version, such as cupy-cuda13x"
            if name == "cupy"
            else f"'rustload[{name}]'"
        )
        raise ImportError(f"framework {name!r} needs {error.name}: pip install {line}") from error
