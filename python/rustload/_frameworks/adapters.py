"""The interface of the framework adapters, and how a framework is chosen and imported."""

from __future__ import annotations

import importlib
import os
import sys
from _thread import allocate_lock  # defined there; importing `threading` takes longer
from _weakref import ref  # as well

from rustload import _rustload
from rustload.errors import _error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from typing import Any, Literal, Protocol, TypeAlias

    from rustload._common.request import Cast, Core, Request
    from rustload._cuda.gpu import Gpu
    from rustload._rustload import Buffer, Mappings

    Framework: TypeAlias = Literal["torch", "numpy", "jax", "cupy", "dlpack", "pt", "pytorch", "np", "flax"]
else:
    Protocol = object

NAMES: tuple[Framework, ...] = ("torch", "numpy", "jax", "cupy", "dlpack")
ALIASES = {"pt": "torch", "pytorch": "torch", "np": "numpy", "flax": "jax"}
_OWNERS = {"rustload": "dlpack", "jaxlib": "jax"}
"""The framework of objects of packages with other names."""
_UNSUPPORTED = ("tf", "tensorflow", "keras", "mlx", "paddle", "tinygrad", "mindspore")
_MINIMUM_VERSIONS = {"torch": "2.4", "numpy": "1.26", "jax": "0.5"}  # as in the extras of pyproject.toml


_STORAGES_LOCK = allocate_lock()
if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(
        before=_STORAGES_LOCK.acquire,
        after_in_parent=_STORAGES_LOCK.release,
        after_in_child=_STORAGES_LOCK.release,
    )


class Storages:
    """The framework's storages by checkpoint, storage of its files and kind ("view", "copy"), so that tied tensors share one.

    Held weakly: a storage lives as long as its tensors. An entry of `weakref.WeakValueDictionary` takes a third of the time of a
    small view.
    """

    __slots__ = ("_references", "_room")

    def __init__(self) -> None:
        self._references: dict[tuple[int, int, int, str], ref[Any]] = {}
        self._room = 1024

    def get(self, key: tuple[int, int, int, str]) -> Any | None:
        """The storage; None if it never was, or is no more."""
        found = self._references.get(key)
        return None if found is None else found()

    def setdefault(self, key: tuple[int, int, int, str], storage: Any) -> Any:
        """The storage of the key; if there is none, it is this one from now on."""
        mine = ref(storage)
        if self._references.setdefault(key, mine) is not mine:
            with _STORAGES_LOCK:
                live = self.get(key)
                if live is not None:
                    return live
                self._references[key] = mine
        elif len(self._references) > self._room:
            with _STORAGES_LOCK:
                for other, reference in list(self._references.items()):
                    if reference() is None:
                        del self._references[other]
                self._room = max(1024, 2 * len(self._references))
        return storage


class HandleContext:
    """State that all handles of one checkpoint, model or join share: framework, mappings, and the storages of live views."""

    __slots__ = ("__weakref__", "checkpoint", "framework", "mappings", "storages", "view_function")

    def __init__(self, framework: str | None, mappings: Mappings | None = None) -> None:
        """Sets the framework (None chooses it at the first use) and the mappings of views (None is the checkpoint's mapping)."""
        self.framework = framework
        self.mappings = mappings
        # The extension's checkpoint, if it was opened by unpickling.
        self.checkpoint: _rustload.Checkpoint | None = None
        # The adapter's `fast_view`, once the framework is imported.
        self.view_function: Callable[[Core, HandleContext], Any | None] | None = None
        self.storages = Storages()

    def resolve_framework(self) -> str:
        """The framework; chooses the default at the first call if the user chose none."""
        if self.framework is None:
            self.framework = default_framework()
        return self.framework

    def fast_view(self, core: Core) -> Any | None:
        """The adapter's `fast_view` of the tensor; None if it does not apply."""
        if self.view_function is None:
            self.view_function = load_adapter(self.resolve_framework()).fast_view
        return self.view_function(core, self)


def views_are_writable(adapter: Adapter, device: Any, *, given: bool | None) -> bool:
    """Whether a view is of a copy-on-write mapping, for a result on a device (None: the host) and what the caller says.

    What is copied to a device comes from a read-only mapping: the device's driver pins the pages of the copy's source, and each
    page of a writable private mapping becomes memory of the process then.
    """
    return device is None and (not adapter.HAS_READ_ONLY if given is None else bool(given))


class Adapter(Protocol):
    """The functions of an adapter module."""

    COPIES_VIEWS: bool
    """Whether `wrap` may copy the buffer, also for the host."""

    HAS_READ_ONLY: bool
    """Whether its arrays can be read-only, or are immutable. Where they cannot, a write to a read-only view ends the process, and
    views are copy-on-write unless the caller says otherwise."""

    def check_device(self, device: Any) -> Any:
        """Converts `device=` to the framework's device; raises DeviceError if it does not exist."""

    def gpu_for(self, device: Any) -> Gpu | None:
        """The CUDA GPU for a result of `check_device`; None for the host and for other devices."""

    def make(self, core: Core, request: Request, device: Any, context: HandleContext) -> Any:
        """Materializes a tensor as the framework's object, on a device without a `Gpu`."""

    def fast_view(self, core: Core, context: HandleContext) -> Any | None:
        """A fast path of `make` for a view without conversion; None if it does not apply, and `make` has to be called."""

    def wrap(self, buffer: Buffer, device: Any) -> Any:
        """The framework's object that shares the memory of a buffer, on a device without a `Gpu`."""

    def write_into(self, core: Core, out: Any, request: Request, *, cast: Cast, sync: bool) -> bool:
        """Materializes a tensor into `out`; returns False if `out` is not an object of this framework."""


_ADAPTERS: dict[str, Adapter] = {}
"""The adapters whose import has ended, by every name that was asked for."""


def check_copy(core: Core, buffer: Buffer | None = None) -> None:
    """Checks the limit on repeated elements before a framework copies a view of them; the core checks only its own copies.

    Args:
        core: The tensor.
        buffer: Its elements; nothing is checked if they are a copy already. None: they are a view.

    Raises:
        LimitError: The copy would be larger than the limit `materialize_bytes`.
    """
    if not isinstance(core, _rustload.Tensor):
        return  # a joined tensor has no views
    is_view = buffer is None or buffer.strides == core.strides
    if is_view and not core.is_contiguous:
        core.check_repeats()


def default_framework() -> str:
    """torch if it is installed, else NumPy, else plain buffers. Imports nothing."""
    return next((name for name in ("torch", "numpy") if _is_installed(name)), "dlpack")


def _find_spec(name: str) -> ModuleSpec | None:
    import importlib.util

    return importlib.util.find_spec(name)


def _is_installed(name: str) -> bool:
    """Whether the package is installed. A namespace package, such as a user's folder of that name, does not count."""
    spec = _find_spec(name)
    return spec is not None and spec.origin is not None


def framework_name(name: Any) -> str:
    """Normalizes a framework name: one of `NAMES`, or an alias that safetensors uses.

    Raises:
        ValueError: The framework is not supported; the note says how to convert to it.
    """
    found = ALIASES.get(name, name) if isinstance(name, str) else ""
    if found not in NAMES:
        note = "a dtype goes into dtype=, a device into device="
        if str(name).lower() in _UNSUPPORTED:
            note = "use framework='numpy' and convert the arrays, or 'dlpack' if it has from_dlpack"
        elif str(name).lower() in {*NAMES, *ALIASES}:
            note = f"write {str(name).lower()!r}"
        raise _error("Value", f"framework {name!r} is not one of {', '.join(NAMES)}", note)
    return found


def framework_of(value: object) -> str:
    """The framework of a tensor or array; torch for what is of none, such as a subclass of `torch.Tensor`."""
    package = type(value).__module__.partition(".")[0]
    name = _OWNERS.get(package, package)
    return name if name in NAMES else "torch"


def load_adapter(name: str) -> Adapter:
    """Imports the adapter module of a framework.

    Raises:
        ValueError: The framework is not supported.
        ImportError: It is not installed; the message has the pip command.
    """
    adapter = _ADAPTERS.get(name)
    if adapter is None:
        found = framework_name(name)
        if found != "dlpack":
            import_framework(found)
        module: Any = importlib.import_module(f"rustload._frameworks.{found}")
        adapter = _ADAPTERS[name] = module
    return adapter


def import_framework(name: str) -> Any:
    """Imports the package of a framework, or a library such as transformers.

    Raises:
        ImportError: It is not installed, is too old, or is a user's folder or file of that name.
        Exception: The error of the import itself, with a note on what to do.
    """
    requirement = {
        "cupy": "the CuPy package of your CUDA version, such as cupy-cuda13x",
        "numpy": "numpy ml_dtypes",
    }.get(name, name)
    what = f"framework {name!r}" if name in NAMES else f"rustload.{name}"
    if name not in sys.modules and _find_spec(name) is not None and not _is_installed(name):
        folder = next(iter(getattr(_find_spec(name), "submodule_search_locations", None) or ()), "")
        raise ImportError(
            f"{what} needs {name}, and {folder!r} is a folder of that name only: pip install {requirement}"
        )
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            raise ImportError(f"{what} needs {name}: pip install {requirement}") from error
        error.add_note(_import_failed_note(name, requirement))
        raise
    except Exception as error:
        error.add_note(_import_failed_note(name, requirement))
        raise
    _check_version(name, module, requirement)
    return module


def _import_failed_note(name: str, requirement: str) -> str:
    spec = _find_spec(name)
    where = f" ({spec.origin})" if spec and spec.origin else ""
    other = "dlpack" if name == "numpy" else "numpy"
    without = f", or do without: framework={other!r}" if name in NAMES else ""
    return (
        f"{name} is installed{where} and fails to import: that is not rustload's doing, and python -c 'import {name}' shows it. "
        f"Install it anew (pip install --force-reinstall {requirement}){without}"
    )


def _check_version(name: str, module: Any, requirement: str) -> None:
    if name not in _MINIMUM_VERSIONS:
        return
    version = getattr(module, "__version__", None)
    if version is None:
        raise ImportError(
            f"the module {name!r} at {getattr(module, '__file__', None)!r} is not {name}: give a file of that name another"
        )
    minimum = _MINIMUM_VERSIONS[name]
    if _major_minor(str(version)) < _major_minor(minimum):
        raise ImportError(
            f"{name} {version} is too old: rustload works with {minimum} and newer: pip install -U {requirement}, "
            "or name another framework="
        )


def _major_minor(version: str) -> tuple[int, ...]:
    """The major and minor number of a version."""
    import re

    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
