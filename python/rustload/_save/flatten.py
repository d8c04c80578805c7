"""Flattens nested dicts, lists and tuples to named tensors, by the rules that `rustload.open` names tensors by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Path: TypeAlias = tuple[Any, ...]
"""The keys and indices that lead to a value."""


class Named:
    """A tensor in a tree, in whose place there is its name."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        """Keeps the name."""
        self.name = name


class Flat(NamedTuple):
    """What is in a nesting.

    Attributes:
        tensors: The tensors, by name, in the order of the containers.
        others: The other values, each after its path.
        paths: The name of the tensor at each path.
    """

    tensors: dict[str, Any]
    others: list[tuple[Path, Any]]
    paths: dict[Path, str]

    def tree(self, values: Any) -> Any:
        """The nesting, with a `Named` for each tensor.

        Raises:
            ValueError: Containers are nested too deeply for a program to read them again.
        """

        def copy(path: Path, value: Any) -> Any:
            if isinstance(value, Mapping):
                return {key: copy((*path, key), item) for key, item in value.items()}
            if isinstance(value, (list, tuple)):
                items = [copy((*path, at), item) for at, item in enumerate(value)]
                return items if isinstance(value, list) else tuple(items)
            name = self.paths.get(path)
            return value if name is None else Named(name)

        try:
            return copy((), values)
        except RecursionError:
            raise _error("Value", "the containers are nested too deeply to be kept") from None


def flatten(values: Any, is_value: Callable[[Any], bool]) -> Flat:
    """Names the tensors of a nesting of mappings, lists and tuples.

    Keys and indices are joined with dots: `{"layers": [{"w": t}]}` gives `layers.0.w`. Names that would be equal get brackets, as
    in `rustload.open`: `["a.b"]` and `a.b`.

    Args:
        values: The nesting.
        is_value: Whether a value that is not a container is no tensor either.

    Raises:
        ValueError: A container holds itself, or two values would get one name in either form.
    """
    found: list[tuple[Path, Any]] = []
    others: list[tuple[Path, Any]] = []
    for path, value in _walk(values):
        (others if is_value(value) else found).append((path, value))
    counts: dict[str, int] = {}
    for path, _ in found:
        name = dotted(path)
        counts[name] = counts.get(name, 0) + 1
    tensors: dict[str, Any] = {}
    paths: dict[Path, str] = {}
    for path, value in found:
        name = dotted(path)
        if counts[name] > 1:
            name = _bracketed(path)
        if name in tensors:
            raise _error("DuplicateName", f"two values would both be named {name!r}", "rename one of them")
        tensors[name], paths[path] = value, name
    return Flat(tensors, others, paths)


def _walk(root: Any) -> Iterator[tuple[Path, Any]]:
    """Every value that is not a container, with its path; without recursion, since containers may be nested deeply."""
    stack: list[tuple[Path, Any, frozenset[int]]] = [((), root, frozenset())]
    while stack:
        path, value, outer = stack.pop()
        if isinstance(value, Mapping):
            items = list(value.items())
        elif isinstance(value, (list, tuple)):
            items = list(enumerate(value))
        else:
            yield path, value
            continue
        if id(value) in outer:
            raise _error("Value", f"the container at {_bracketed(path) or 'the root'!s} holds itself")
        inner = outer | {id(value)}
        stack.extend(((*path, key), item, inner) for key, item in reversed(items))


def dotted(path: Path) -> str:
    """The keys and indices, joined with dots."""
    return ".".join(step if isinstance(step, str) else repr(step) for step in path)


def _bracketed(path: Path) -> str:
    text = ""
    for step in path:
        if isinstance(step, str) and step.isidentifier():
            text += f".{step}" if text else step
        elif isinstance(step, str):
            text += '["' + step.replace("\\", "\\\\").replace('"', '\\"') + '"]'
        else:
            text += f"[{step!r}]"
    return text
