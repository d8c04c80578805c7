"""Which framework makes a result: what its adapter offers, and how it is chosen and imported."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload._common.request import Cast, Core, Wanted
    from rustload._cuda.place import Place
    from rustload._rustload import Buffer, Mappings

__all__ = ["NAMES", "Adapter", "Shared", "adapter", "default", "imported", "named"]

NAMES = ("torch", "numpy", "jax", "cupy", "dlpack")
_OTHER_WORDS = {"pt": "torch", "pytorch": "torch", "np": "numpy", "flax": "jax"}
_OTHERS = ("tf", "tensorflow", "keras", "mlx", "paddle", "tinygrad", "mindspore")
_OLDEST = {"torch": "2.4", "numpy": "1.26", "jax": "0.5"}  # as the extras have it


class Shared:
    """What all handles of one checkpoint share, or those that are read for one model."""

    __slots__ = ("framework", "mappings", "storages", "view")

    def __init__(self, framework: str | None, mappings: Mappings | None = None) -> None:
        """Starts with the framework that was asked for, if any. Views are of `mappings`, or else of the checkpoint's mapping."""
        self.framework = framework
        self.mappings = mappings
        # The adapter's short way to views, once the framework is imported.
        self.view: Callable[[Core, Shared], Any | None] | None = None
        # By storage and standing; a storage lives as long as a tensor on it.
        self.storages: weakref.WeakValueDictionary[tuple[int, int, str], Any] = weakref.WeakValueDictionary()

    def settle(self) -> str:
        """The framework; chosen now if it was not asked for."""
        if self.framework is None:
            self.framework = default()
        return self.framework

    def view_of(self, core: Core) -> Any | None:
        """What the framework's adapter gives by its short way to views; None where there is none for this tensor."""
        if self.view is None:
            self.view = adapter(self.settle()).view
        return self.view(core, self)


class Adapter(Protocol):
    """What a framework's module offers."""

    def check_device(self, device: Any) -> Any:
        """The device as the framework has it, or a DeviceError."""

    def place(self, device: Any) -> Place | None:
        """Where results are uploaded to for what `check_device` gave; None for the host, and devices that are no GPU of CUDA."""

    def make(self, core: Core, wanted: Wanted, device: Any, shared: Shared) -> Any:
        """The framework's object for what is wanted of the tensor, on a device that has no `place`."""

    def view(self, core: Core, shared: Shared) -> Any | None:
        """What `make` gives for a request without arguments, where there is a short way to it; None where `make` has to."""

    def wrap(self, buffer: Buffer, device: Any) -> Any:
        """The framework's object over a finished, owned or viewed buffer, on a device that has no `place`."""

    def into(self, core: Core, out: Any, wanted: Wanted, *, cast: Cast, sync: bool) -> bool:
        """Writes into `out` if it is of this framework; False if it is not."""


def default() -> str:
    """torch if it is installed, else NumPy, else plain buffers; nothing is imported to find out."""
    return next((name for name in ("torch", "numpy") if _is_installed(name)), "dlpack")


def _is_installed(name: str) -> bool:
    """Whether there is such a package. A mere folder of that name, such as one of the user's, is none."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def named(name: str) -> str:
    """The framework that is meant: one of `NAMES`, or what safetensors calls it.

    Raises:
        ValueError: There is no such framework; the note says how to reach it all the same.
    """
    found = _OTHER_WORDS.get(name, name)
    if found not in NAMES:
        note = "a dtype goes into dtype=, a device into device="
        if str(name).lower() in _OTHERS:
            note = "take framework='numpy' and convert the arrays, or 'dlpack' where it has from_dlpack"
        elif str(name).lower() in {*NAMES, *_OTHER_WORDS}:
            note = f"write {str(name).lower()!r}"
        raise _make("Value", "Value", f"framework {name!r} is not one of {', '.join(NAMES)}", note)
    return found


def adapter(name: str) -> Adapter:
    """The module for a framework.

    Raises:
        ValueError: There is no such framework.
        ImportError: It is not installed; the message says which line installs it.
    """
    name = named(name)
    module = f"rustload._frameworks.{name}"
    if name != "dlpack" and module not in sys.modules:
        imported(name)
    return importlib.import_module(module)


def imported(name: str) -> Any:
    """The framework's own package, or another that rustload has a room for.

    Raises:
        ImportError: It is not installed, is older than what rustload works with, or is a folder or file of that name.
        Exception: What importing it raised, with a note that says what to do.
    """
    line = {"cupy": "the CuPy package of your CUDA version, such as cupy-cuda13x", "transformers": name}.get(
        name, f"'rustload[{name}]'"
    )
    what = f"framework {name!r}" if name in NAMES else f"rustload.{name}"
    if name not in sys.modules and importlib.util.find_spec(name) is not None and not _is_installed(name):
        folder = next(
            iter(getattr(importlib.util.find_spec(name), "submodule_search_locations", None) or ()), ""
        )
        raise ImportError(
            f"{what} needs {name}, and {folder!r} is a folder of that name only: pip install {line}"
        )
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise ImportError(f"{what} needs {name}: pip install {line}") from error
        error.add_note(_broken(name, line))
        raise
    except Exception as error:
        error.add_note(_broken(name, line))
        raise
    _check_version(name, module, line)
    return module


def _broken(name: str, line: str) -> str:
    spec = importlib.util.find_spec(name)
    place = f" ({spec.origin})" if spec and spec.origin else ""
    other = "dlpack" if name == "numpy" else "numpy"
    without = f", or do without: framework={other!r}" if name in NAMES else ""
    return (
        f"{name} is installed{place} and fails to import: that is not rustload's doing, and python -c 'import {name}' shows it. "
        f"Install it anew (pip install --force-reinstall {line}){without}"
    )


def _check_version(name: str, module: Any, line: str) -> None:
    if name not in _OLDEST:
        return
    version = getattr(module, "__version__", None)
    if version is None:
        raise ImportError(
            f"the module {name!r} at {getattr(module, '__file__', None)!r} is not {name}: give a file of that name another"
        )
    oldest = _OLDEST[name]
    if _number(str(version)) < _number(oldest):
        raise ImportError(
            f"{name} {version} is too old: rustload works with {oldest} and newer: pip install -U {line}, "
            "or name another framework="
        )


def _number(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
