"""Instruments the unpicklers of this process: what they resolve, call and change is compared with the report of a scan.

Classes and functions that the report lists are resolved and called as usual, since a later step of an attack may depend
on their results. In place of any other, the unpickler gets `StandIn`, so that the oracle sees what follows.
"""

from __future__ import annotations

import _pickle
import collections
import contextlib
import operator
import pickle
import re
import sys
import types
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Name = tuple[str, str]
    """Module and name of a class or function."""

try:
    import numpy as np
except ImportError:
    np = None  # in an interpreter without libraries

PASSES_ON = {
    (module, name)
    for module in ("torch._tensor", "torch.tensor")
    for name in ("_rebuild_from_type", "_rebuild_from_type_v2")
}
"""The functions that call one of their arguments."""

CODE_RUNNERS = {
    "builtins": {
        "__import__",
        "compile",
        "delattr",
        "eval",
        "exec",
        "getattr",
        "open",
        "setattr",
        "type",
        "vars",
    },
}
CODE_RUNNING_MODULES = {
    "_io", "_pickle", "ctypes", "importlib", "io", "marshal", "nt", "os", "pickle", "posix", "runpy", "shutil", "socket",
    "subprocess", "sys",
}  # fmt: skip
"""A second opinion on what no report should list as inert: these are not resolved in any case."""


MODULE = re.compile(r"\s*[\w-]+(\.[\w-]+)*\s*")
"""The names that a module may have."""


class Find(NamedTuple):
    """Something that a reader did with a file that the scan calls inert."""

    kind: str
    """`global`: resolved a name that the report does not list. `call`: called a function more often than the report counts.
    `inner call`: a function called another one that it was given. `dangerous`: resolved a listed name that runs code.
    `changed`: changed a class or function of the process. `audit`: did what the fence forbids. `canary`: created a file."""

    reader: str
    detail: str


class StandIn:
    """In place of a class or function that must not be used: accepts whatever an unpickler does with it."""

    def __new__(cls, *_args: Any, **_kwargs: Any) -> StandIn:
        return object.__new__(cls)

    def __call__(self, *_args: Any, **_kwargs: Any) -> StandIn:
        return self

    def __setstate__(self, _state: Any) -> None: ...

    def __setitem__(self, _key: Any, _value: Any) -> None: ...

    def append(self, _value: Any) -> None: ...

    def extend(self, _values: Any) -> None: ...

    def add(self, _value: Any) -> None: ...


@dataclass
class _Load:
    """One run of an unpickler."""

    calls: collections.Counter[Name] = field(default_factory=collections.Counter)
    running: list[Name] = field(default_factory=list)
    """The functions that the pickle called and that have not returned."""


class Watch:
    """Collects the finds of one input."""

    def __init__(self) -> None:
        self.begin({})

    def begin(self, inert: Mapping[Name, int]) -> None:
        """Starts with an input, for which the report lists these names as inert and counts so many calls of each."""
        self.inert = inert
        self.finds: list[Find] = []
        self.reader = ""
        self.resolved = 0
        self._resolving = False
        self._loads: list[_Load] = []
        self._types: set[type] = set()

    def find(self, kind: str, detail: str) -> None:
        """Records a find."""
        found = Find(kind, self.reader, detail)
        if found not in self.finds:
            self.finds.append(found)

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """The run of an unpickler; runs may nest."""
        self._loads.append(_Load())
        try:
            yield
        finally:
            self._loads.pop()
            if not self._loads:
                self._compare()

    def resolve(self, module: str, name: str, really: Callable[[str, str], Any]) -> Any:
        """What `find_class` returns."""
        self.resolved += 1
        if not MODULE.fullmatch(module):
            raise ModuleNotFoundError(module)  # as for users, who have no module of this name
        key = self._listed(module, name)
        if key is None:
            self.find("global", f"{module}.{name}")
            return StandIn
        if key[0].split(".")[0] in CODE_RUNNING_MODULES or key[1] in CODE_RUNNERS.get(key[0], ()):
            self.find("dangerous", f"{module}.{name}")
            return StandIn
        self._resolving, before = True, self._resolving
        try:
            value = really(module, name)
        except ImportError:
            if np is not None:
                raise
            return StandIn  # the library is not installed here, and it would be for its users
        finally:
            self._resolving = before
        if isinstance(value, (types.FunctionType, types.BuiltinFunctionType)):
            return self._recorder(key, value)
        if isinstance(value, type):
            self._types.add(value)
            if value not in ATTRIBUTES:
                ATTRIBUTES[value] = dict(vars(value))
        return value

    def _listed(self, module: str, name: str) -> Name | None:
        """The name as the report spells it, or None."""
        mapped = pickle._compat_pickle.NAME_MAPPING.get((module, name))
        mapped = mapped or (pickle._compat_pickle.IMPORT_MAPPING.get(module, module), name)
        # torch's reader renames this module before it asks.
        old = ("torch.tensor" if module == "torch._tensor" else module, name)
        return next((key for key in ((module, name), mapped, old) if key in self.inert), None)

    def _recorder(self, key: Name, function: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            load = self._loads[-1] if self._loads else _Load()
            if load.running:
                if load.running[-1] not in PASSES_ON:
                    self.find("inner call", f"{'.'.join(load.running[-1])} calls {'.'.join(key)}")
            else:
                load.calls[key] += 1
                # Bytes that several calls load are scanned once, so only the calls of an outermost run were counted.
                if len(self._loads) == 1 and load.calls[key] > self.inert[key]:
                    self.find("call", f"{'.'.join(key)}, more often than {self.inert[key]} time(s)")
            load.running.append(key)
            try:
                return function(*args, **kwargs)
            finally:
                load.running.pop()

        return recorded

    def _compare(self) -> None:
        """Records the classes that changed, and NumPy's dtypes, which are shared by the process."""
        for value in self._types:
            before, after = ATTRIBUTES[value], vars(value)
            if before.keys() != after.keys() or not all(map(operator.is_, before.values(), after.values())):
                names = sorted(name for name in {*before, *after} if before.get(name) is not after.get(name))
                self.find("changed", f"{value.__module__}.{value.__qualname__}: {', '.join(names)}")
        if np is not None and np.dtype in self._types and _dtypes() != DTYPES:
            self.find("changed", "a dtype of NumPy")
        self._types.clear()

    @property
    def tainted(self) -> bool:
        """Whether this process is no longer as it was."""
        return any(found.kind == "changed" for found in self.finds)

    def audit(self, event: str, args: tuple[Any, ...]) -> str | None:
        """Why the fence should refuse an audit event of a reader; None if it is part of resolving a name that is listed."""
        if self._resolving:
            return None
        if event == "pickle.find_class":
            return f"{args[0]}.{args[1]} by an unpickler that is not instrumented"
        return event


ATTRIBUTES: dict[type, dict[str, Any]] = {}
"""Those of the classes that this process has resolved, as they were then."""


def _dtypes() -> list[tuple[Any, ...]]:
    if np is None:
        return []
    return [
        (one.byteorder, one.itemsize, one.alignment, one.hasobject)
        for one in map(np.dtype, "?bBhHiIqQefdgFDGO")
    ]


DTYPES = _dtypes()
WATCH = Watch()


class CUnpickler(_pickle.Unpickler):
    """CPython's unpickler written in C."""

    def find_class(self, module: str, name: str) -> Any:
        return WATCH.resolve(module, name, super().find_class)

    def load(self) -> Any:
        with WATCH.load():
            return super().load()


def _load(file: Any, **options: Any) -> Any:
    return CUnpickler(file, **options).load()


def _loads(data: Any, **options: Any) -> Any:
    import io

    return CUnpickler(io.BytesIO(data), **options).load()


def install() -> None:
    """Replaces the unpicklers of the module `pickle`, which NumPy, torch and joblib use."""
    find_class, load = pickle._Unpickler.find_class, pickle._Unpickler.load

    def watched_find_class(self: Any, module: str, name: str) -> Any:
        return WATCH.resolve(module, name, lambda module, name: find_class(self, module, name))

    def watched_load(self: Any) -> Any:
        with WATCH.load():
            return load(self)

    pickle._Unpickler.find_class, pickle._Unpickler.load = watched_find_class, watched_load
    pickle.Unpickler, pickle.load, pickle.loads = CUnpickler, _load, _loads
    assert "_compat_pickle" in sys.modules
