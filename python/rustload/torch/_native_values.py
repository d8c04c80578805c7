"""`restore`: creates Python objects of a few standard classes from the inert values that `load` returns.

The classes are in a table of this file, or are passed by the caller; none is looked up by a name from the file. They are created
empty and get the data as attributes or items, so none of their code runs, except that of `pathlib` for the parts of a path.
"""

from __future__ import annotations

import argparse
import pathlib
import types
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Any

from rustload._tensor.inert import DefaultDict, Global, Opaque
from rustload.errors import _shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_NAMESPACES: dict[str, type] = {
    "argparse.Namespace": argparse.Namespace,
    "types.SimpleNamespace": types.SimpleNamespace,
}

# Python 3.13 alone names the classes `pathlib._local.*`. A path of the other system becomes a pure path.
_PATHS: dict[str, Any] = {
    f"{module}.{name}": found
    for module in ("pathlib", "pathlib._local")
    for name, found in {
        "Path": pathlib.Path,
        "PosixPath": pathlib.Path,
        "PurePosixPath": pathlib.PurePosixPath,
        "WindowsPath": pathlib.PureWindowsPath,
        "PureWindowsPath": pathlib.PureWindowsPath,
    }.items()
}

_MUTABLE = (list, dict, OrderedDict, Counter, set, deque, DefaultDict)
_IMMUTABLE = (tuple, frozenset)

_STEPS_MAX = 20
"""The most steps of a place that are shown."""


def restore(root: Any, mappings: Mapping[str, type[dict[Any, Any]]]) -> Any:
    """Replaces inert values by objects: namespaces, paths of `pathlib`, and subclasses of dict that the caller names.

    Containers are changed in place; tensors stay as they are. Values of other classes stay inert. Nothing recurses, so the values
    may be nested deeply and contain each other.

    Args:
        root: What `rustload.torch.load` returned.
        mappings: Subclasses of dict by `module.name` of the classes in the file to replace by them.

    Returns:
        The value, or the object in its place.
    """
    memo: dict[int, Any] = {}  # what replaces each value that was visited
    visited: list[tuple[Any, Any]] = []  # keeps the values alive, so that their ids stay theirs

    def replaced(value: Any) -> Any:
        return memo.get(id(value), value)

    def is_open(value: Any) -> bool:
        return id(value) not in memo and type(value) in (*_MUTABLE, *_IMMUTABLE, Opaque)

    waiting = [root]
    while waiting:
        stack = [waiting.pop()]
        while stack:
            value = stack.pop()
            if not is_open(value):
                continue
            if type(value) in _IMMUTABLE:
                todo = [item for item in value if is_open(item)]
                if todo:
                    stack += [value, *todo]
                    continue
                is_set = type(value) is frozenset
                items = [_hashable(replaced(item), item) if is_set else replaced(item) for item in value]
                same = all(one is other for one, other in zip(items, value, strict=True))
                memo[id(value)] = value if same else type(value)(items)
            else:
                memo[id(value)] = _empty(value, mappings)
                waiting += _held(value)
            visited.append((value, memo[id(value)]))
    for value, made in visited:
        if type(value) not in _IMMUTABLE:
            _fill(value, made, replaced)
    return replaced(root)


def _empty(value: Any, mappings: Mapping[str, type[dict[Any, Any]]]) -> Any:
    """The object to put in the place of a value, without its contents; the value itself if it stays."""
    if type(value) is not Opaque or value.function is not None or value.appended:
        return value
    name = value.class_name
    if name in _NAMESPACES and _has_attributes_only(value):
        return _NAMESPACES[name]()
    if name in mappings and not value.args and not value.kwargs and not value.state:
        return mappings[name]()
    if name in _PATHS and not value.state and not value.items and all(type(one) is str for one in value.args):
        return _PATHS[name](*value.args)
    return value


def _has_attributes_only(value: Opaque) -> bool:
    state = value.state
    return (
        not value.args
        and not value.kwargs
        and not value.items
        and (state is None or (type(state) is dict and all(type(name) is str for name in state)))
    )


def _held(value: Any) -> list[Any]:
    if type(value) is Opaque:
        return value._held()
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value)


def _fill(value: Any, made: Any, replaced: Any) -> None:
    """Puts the contents of a value, replaced, into the object in its place, which may be the value itself."""
    if type(value) is Opaque:
        if made is value:
            value._fill(value, replaced)
        elif type(made) in _NAMESPACES.values():
            vars(made).update({name: replaced(one) for name, one in (value.state or {}).items()})
        elif isinstance(made, dict):
            dict.update(made, [(_hashable(replaced(key), key), replaced(one)) for key, one in value.items])
        return
    if not any(replaced(one) is not one for one in _held(value)):
        return
    if isinstance(value, dict):
        pairs = [(_hashable(replaced(key), key), replaced(one)) for key, one in value.items()]
        value.clear()
        for key, one in pairs:
            value[key] = one
    elif isinstance(value, set):
        members = [_hashable(replaced(one), one) for one in value]
        value.clear()
        value.update(members)
    else:
        items = [replaced(one) for one in value]
        value.clear()
        value.extend(items)


def _hashable(made: Any, value: Any) -> Any:
    """The replacement of a key or an item of a set; the inert value if the replacement cannot be one, as a namespace cannot."""
    try:
        hash(made)
    except TypeError:
        return value
    return made


def find_inert(root: Any, where: str) -> Iterator[tuple[str, str]]:
    """The places and class names of inert values in a value, one of each object; without what is inside of them.

    The places begin with what the value is called, such as `'callbacks'`.
    """
    seen: set[int] = set()
    # A place is a pair of the outer place and a step, as a text for each place would need memory in the square of the depth.
    waiting: list[tuple[Any, Any]] = [(root, (None, where))]
    while waiting:
        value, place = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, (Opaque, Global)):
            name = value.class_name if isinstance(value, Opaque) else f"{value.module}.{value.name}"
            yield _place(place), _shown(name)
        elif isinstance(value, dict):
            waiting += [(value[key], (place, f"[{_step(key)}]")) for key in reversed(value)]
            waiting += [(key, (place, ", in a key")) for key in reversed(value)]
        elif isinstance(value, (list, tuple, deque)):
            waiting += [(value[at], (place, f"[{at}]")) for at in reversed(range(len(value)))]
        elif isinstance(value, (set, frozenset)):
            waiting += [(one, (place, ", in an item")) for one in value]
        elif isinstance(value, (argparse.Namespace, types.SimpleNamespace)):
            waiting += [(one, (place, f".{_shown(name)}")) for name, one in vars(value).items()]


def _step(key: Any) -> str:
    return _shown(repr(key)) if type(key) in (str, int) else f"a {type(key).__name__}"


def _place(place: Any) -> str:
    steps = []
    while place is not None:
        place, step = place
        steps.append(step)
    if len(steps) > _STEPS_MAX:
        steps[1:-1] = ["..."]
    return "".join(reversed(steps))
