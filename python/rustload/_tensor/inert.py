"""Inert stand-ins in an object tree for classes and functions that a file names: rustload never imports or calls them."""

from __future__ import annotations

import collections

from rustload import _rustload
from rustload._tensor.deep_copy import Container, copied_key
from rustload.errors import _clipped, _shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    import torch

    from rustload._common.dtypes import DType
    from rustload._tensor.handle import LazyTensor
else:
    Any = object


def _raise_not_picklable(what: str, note: str) -> NoReturn:
    """Raises for a stand-in that is pickled: the new file would name a class of rustload in place of the original class.

    Raises:
        TypeError: Always.
    """
    error = TypeError(f"{what} cannot be pickled: it is a stand-in for an object that was not created")
    error.add_note(note)
    raise error


class Global:
    """The name of a class or function that a pickle names (opcode GLOBAL). Nothing is looked up or imported.

    `copy.copy` and `copy.deepcopy` return the object itself; pickling it is a TypeError.

    Attributes:
        module: The module, as the pickle spells it.
        name: The name in the module.
    """

    __slots__ = ("module", "name")

    module: str
    name: str

    def __init__(self, module: str, name: str) -> None:
        """Keeps the two parts of the name."""
        self.module = module
        self.name = name

    def __eq__(self, other: object) -> bool:
        """Equal if module and name are equal."""
        return isinstance(other, Global) and (self.module, self.name) == (other.module, other.name)

    def __hash__(self) -> int:
        """Hashes the name."""
        return hash((self.module, self.name))

    def __copy__(self) -> Global:
        """The object itself."""
        return self

    def __deepcopy__(self, memo: Any) -> Global:
        """The object itself."""
        return self

    def __reduce__(self) -> NoReturn:
        """Not picklable.

        Raises:
            TypeError: Always.
        """
        name = f"{self.module}.{self.name}"
        _raise_not_picklable(
            f"the label of {name!r}", "put the class or function itself, or its name, in the label's place"
        )

    def __repr__(self) -> str:
        """The name in angle brackets."""
        return f"<global {_shown(f'{self.module}.{self.name}')}>"


class Opaque(Container):
    """A value of a class that rustload does not know, kept as inert data: the arguments and the state that the pickle has.

    It has none of the attributes or items of the class; the errors say where the data are. It can be copied, but not pickled.

    Attributes:
        class_name: `module.name` of the class, as the pickle spells it.
        function: The callable, if it is itself the result of a call; None otherwise.
        args: The arguments that unpickling would have passed to the class or function.
        kwargs: The keyword arguments, or None.
        state: What unpickling would have set on the object, or None.
        items: The pairs that unpickling would have set as items.
        appended: The values that unpickling would have appended.
    """

    __slots__ = ("appended", "args", "class_name", "function", "items", "kwargs", "state")

    class_name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    state: Any
    items: list[tuple[Any, Any]]
    appended: list[Any]

    def __init__(self, class_name: str) -> None:
        """Makes an empty value; the extension fills it, so that it may contain itself."""
        self.class_name = class_name
        self.function = None
        self.args = ()
        self.kwargs = None
        self.state = None
        self.items = []
        self.appended = []

    def __getitem__(self, key: Any) -> NoReturn:
        """Raises, with a note on where the items of the value are.

        Raises:
            TypeError: Always.
        """
        raise self._with_note(TypeError("'Opaque' object is not subscriptable"), key)

    def __contains__(self, key: object) -> bool:
        """Raises, with a note on where the items of the value are.

        Raises:
            TypeError: Always.
        """
        raise self._with_note(TypeError("'Opaque' object is not a container"), key)

    def keys(self) -> NoReturn:
        """Raises, with a note on where the items of the value are; `dict(value)` and `**value` call this.

        Raises:
            TypeError: Always.
        """
        raise self._with_note(TypeError("'Opaque' object is not a mapping"))

    if not TYPE_CHECKING:  # type checkers must still report unknown attributes

        def __getattr__(self, name: str) -> Any:
            """Raises, with a note on where the attributes of the value are."""
            raise self._no_attribute(name)  # not held by a variable: with the frame it would be a cycle

    def _no_attribute(self, name: str) -> Exception:
        error = AttributeError(f"'Opaque' object has no attribute {name!r}", name=name, obj=self)
        if name == "__dict__":
            self._with_note(error)
        elif not name.startswith("_"):
            self._with_note(error, name)
        return error

    def _with_note(self, error: Exception, key: Any = None) -> Exception:
        """Adds a note to the error on where the data of the value are, in particular those of `key`."""
        if isinstance(key, str) and isinstance(self.state, dict) and key in self.state:
            found = f".state[{key!r}] is what the file has"
        elif isinstance(key, str) and any(isinstance(name, str) and name == key for name, _ in self.items):
            found = f"dict(value.items)[{key!r}] is what the file has"
        else:
            found = self._data_attributes()
        error.add_note(f"{_clipped(self.class_name)!r} is kept as data, and no object was made: {found}")
        return error

    def _data_attributes(self) -> str:
        """The attributes that hold the data, as text."""
        held = [] if self.state is None else [".state"]
        held += [f".{name}" for name in ("items", "appended", "args", "kwargs") if getattr(self, name)]
        return f"see {' and '.join(held)}" if held else "the file has nothing of it"

    def _empty(self) -> Opaque:
        return Opaque(self.class_name)

    def _held(self) -> list[Any]:
        return [getattr(self, name) for name in Opaque.__slots__]

    def _fill(self, made: Opaque, copied: Callable[[Any], Any]) -> None:
        for name in Opaque.__slots__:
            setattr(made, name, copied(getattr(self, name)))

    def __reduce__(self) -> NoReturn:
        """Not picklable.

        Raises:
            TypeError: Always.
        """
        _raise_not_picklable(
            f"the value kept for {self.class_name!r}",
            f"put in its place what is to be saved, made from what it holds: {self._data_attributes()}",
        )

    def __repr__(self) -> str:
        """Only the class: the contents may be large, or contain the value itself."""
        return f"<opaque {_shown(self.class_name)}>"


class DefaultDict(Container, collections.defaultdict[Any, Any]):
    """A `collections.defaultdict` whose factory is inert: a missing key is a KeyError. It can be copied, but not pickled.

    Attributes:
        factory: The factory in the file, usually a `Global` such as `<global builtins.list>`.
    """

    __slots__ = ("factory",)

    factory: Any

    def __init__(self) -> None:
        """Makes an empty mapping; the extension fills it, so that it may contain itself."""
        super().__init__(None)
        self.factory = None

    copy = Container.__copy__

    def _empty(self) -> DefaultDict:
        made = DefaultDict()
        made.factory = self.factory
        return made

    def _held(self) -> list[Any]:
        return [*self.keys(), *self.values()]

    def _fill(self, made: DefaultDict, copied: Callable[[Any], Any]) -> None:
        made.update({copied_key(key, copied): copied(value) for key, value in self.items()})

    def __reduce__(self) -> NoReturn:
        """Not picklable.

        Raises:
            TypeError: Always.
        """
        _raise_not_picklable(
            f"a DefaultDict with {self.factory!r}",
            "put in its place dict(value), or collections.defaultdict(factory, value) with a factory of yours",
        )

    def __repr__(self) -> str:
        """Like the repr of a defaultdict, with the name of the factory."""
        return f"DefaultDict({self.factory!r}, {dict.__repr__(self)})"


class Sparse:
    """A sparse tensor: its layout and shape, and the tensors that hold its indices and values.

    Attributes:
        layout: `"sparse_coo"`, `"sparse_csr"`, `"sparse_csc"`, `"sparse_bsr"` or `"sparse_bsc"`.
        shape: Elements along each dimension, zeros included.
        is_coalesced: Whether the file says that the indices are sorted and unique; None if it does not say.
        parts: The tensors by name: `indices` and `values`; `crow_indices`, `col_indices` and `values`; or `ccol_indices`,
            `row_indices` and `values`.
    """

    __slots__ = ("is_coalesced", "layout", "parts", "shape")

    layout: str
    shape: tuple[int, ...]
    is_coalesced: bool | None
    parts: dict[str, LazyTensor]

    def __init__(self, layout: str, shape: tuple[int, ...], is_coalesced: bool | None) -> None:  # noqa: FBT001 - as filed
        """Creates one without parts; the extension adds them."""
        self.layout = layout
        self.shape = shape
        self.is_coalesced = is_coalesced
        self.parts = {}

    @property
    def dtype(self) -> DType:
        """The dtype of the values, as torch spells it."""
        return self.parts["values"].dtype

    def check(self) -> None:
        """Reads the indices, a block at a time, and checks that they are within the shape and consistent.

        Raises:
            FormatError: They are not (code `SparseInvariant`).
        """
        parts = [part._core for part in self.parts.values()]
        _rustload.check_sparse(self.layout, self.shape, self.is_coalesced, parts)

    def torch(self) -> torch.Tensor:
        """Calls `check` and creates the sparse torch tensor; its values are a view if possible.

        Raises:
            FormatError: The indices are out of bounds or inconsistent (code `SparseInvariant`).
        """
        from rustload._frameworks import torch as adapter

        self.check()
        # Indices are copied, so that a later change of the file cannot invalidate the check.
        parts = [
            part.materialize(framework="torch", copy=name != "values" or None)
            for name, part in self.parts.items()
        ]
        return adapter.sparse(self.layout, self.shape, parts, is_coalesced=self.is_coalesced)

    def __repr__(self) -> str:
        """Layout, dtype and shape; reads nothing."""
        return f"<Sparse {self.layout} {self.dtype} {list(self.shape)}>"
