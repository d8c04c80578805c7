"""What stands in an object tree for things that a file names and rustload never makes: labels and plain data."""

from __future__ import annotations

from typing import Any

__all__ = ["Global", "Opaque"]


class Global:
    """The name of a class or function that a pickle mentions. It is a label: nothing was looked up or imported.

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
        """Two labels are equal if they spell the same name."""
        return isinstance(other, Global) and (self.module, self.name) == (other.module, other.name)

    def __hash__(self) -> int:
        """Hashes the name."""
        return hash((self.module, self.name))

    def __repr__(self) -> str:
        """The name in angle brackets."""
        return f"<global {self.module}.{self.name}>"


class Opaque:
    """A value of a class that rustload keeps as data: what the file says, and nothing made from it.

    Attributes:
        class_name: `module.name` of the class, as the pickle spells it.
        args: The arguments that unpickling would have passed to the class or function.
        kwargs: The keyword arguments, or None.
        state: What unpickling would have set on the object, or None.
        items: The pairs that unpickling would have set as items.
        appended: The values that unpickling would have appended.
    """

    __slots__ = ("appended", "args", "class_name", "items", "kwargs", "state")

    class_name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] | None
    state: Any
    items: list[tuple[Any, Any]]
    appended: list[Any]

    def __init__(self, class_name: str) -> None:
        """Makes an empty value; the extension fills it, so that it may contain itself."""
        self.class_name = class_name
        self.args = ()
        self.kwargs = None
        self.state = None
        self.items = []
        self.appended = []

    def __repr__(self) -> str:
        """The class alone: the contents may be large, or contain the value itself."""
        return f"<opaque {self.class_name}>"
