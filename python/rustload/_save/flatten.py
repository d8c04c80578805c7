"""Flattens nested dicts, lists and tuples to named tensors, by the rules that `rustload.open` names tensors by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload._checkpoint.names import unflatten as split_names
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NESTING_KEY", "Path", "flatten", "skeleton", "unflatten"]

NESTING_KEY = "rustload.nesting"
"""The metadata key of the containers that a nested argument of `save` had."""

Path: TypeAlias = tuple[Any, ...]
"""The keys and indices that lead to a value."""


def flatten(values: Any) -> dict[str, tuple[Path, Any]]:
    """Names every value of a nesting of mappings, lists and tuples.

    Keys and indices are joined with dots: `{"layers": [{"w": t}]}` gives `layers.0.w`. Names that would be equal get brackets, as
    in `rustload.open`: `["a.b"]` and `a.b`.

    Returns:
        A dict from names to paths and values, in the order of the containers.

    Raises:
        ValueError: A container holds itself, or two values would get one name in either form.
    """
    found = list(_walk(values))
    dotted: dict[str, int] = {}
    for path, _ in found:
        name = _dotted(path)
        dotted[name] = dotted.get(name, 0) + 1
    named: dict[str, tuple[Path, Any]] = {}
    for path, value in found:
        name = _dotted(path)
        if dotted[name] > 1:
            name = _bracketed(path)
        if name in named:
            raise _error("DuplicateName", f"two values would both be named {name!r}", "rename one of them")
        named[name] = (path, value)
    return named


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


def _dotted(path: Path) -> str:
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


def skeleton(values: Any) -> str:
    """The containers of a nesting as JSON, with names in place of the values: what `unflatten` restores."""
    named = {path: name for name, (path, _) in flatten(values).items()}

    def node(path: Path, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {"dict": [[_key(key), node((*path, key), item)] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [node((*path, at), item) for at, item in enumerate(value)]}
        return named[path]

    return json.dumps(node((), values), separators=(",", ":"))


def _key(key: Any) -> Any:
    if key is None or isinstance(key, (str, int, float, bool)):
        return key
    kind = type(key).__name__
    raise _error("Type", f"a nesting with a {kind} as a key cannot be kept", "use str or int keys")


def unflatten(values: Mapping[str, Any]) -> Any:
    """Restores the nesting of flat names.

    A checkpoint that `save` wrote with `keep_nesting=True` gives the dicts, lists and tuples that were saved. Any other mapping
    gives nested dicts: `{"a.b": 1}` becomes `{"a": {"b": 1}}`, where numbers stay strings.

    Args:
        values: A `Checkpoint`, or any mapping from names to values.

    Raises:
        ValueError: A name is also a prefix of another, or the recorded nesting does not fit the names.

    >>> import rustload, torch
    >>> _ = rustload.save({"layers": [torch.zeros(2), (torch.ones(1),)]}, "n.safetensors", keep_nesting=True)
    >>> rustload.unflatten(rustload.open("n.safetensors"))
    {'layers': [<LazyTensor 'layers.0' float32 [2] 8 B>, (<LazyTensor 'layers.1.0' float32 [1] 4 B>,)]}
    """
    metadata = getattr(values, "metadata", None)
    text = metadata.get(NESTING_KEY) if isinstance(metadata, Mapping) else None
    if text is None:
        return split_names(values)
    try:
        return _restore(json.loads(text), values)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        note = "the metadata were made by another program, or tensors were renamed"
        raise _error("Value", "the nesting in the metadata does not fit the names", note) from error


def _restore(node: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(node, str):
        return values[node]
    ((kind, items),) = node.items()
    if kind == "dict":
        return {key: _restore(item, values) for key, item in items}
    if kind not in ("list", "tuple"):
        raise ValueError(kind)
    found = [_restore(item, values) for item in items]
    return found if kind == "list" else tuple(found)
