"""`restore`: creates Python objects of a few standard classes from the inert values that `load` returns.

The classes are in a table of this file, or are passed by the caller; none is looked up by a name from the file. They are created
empty and get the data as attributes or items, so none of their code runs, except that of `pathlib` for the parts of a path.
"""

from __future__ import annotations

import argparse
import pathlib
import types
from collections import deque
from typing import TYPE_CHECKING, Any

from rustload._tensor.deep_copy import copied_key, deep_copy
from rustload._tensor.inert import Global, Opaque
from rustload.errors import _shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

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

_STEPS_MAX = 20
"""The most steps of a place that are shown."""


def restore(root: Any, mappings: Mapping[str, type[dict[Any, Any]]]) -> Any:
    """Replaces inert values by objects: namespaces, paths of `pathlib`, and subclasses of dict that the caller names.

    Containers are copied; tensors stay as they are. Values of other classes stay inert. Nothing recurses, so the values may be
    nested deeply and contain each other.

    Args:
        root: What `rustload.torch.load` returned.
        mappings: Subclasses of dict by `module.name` of the classes in the file to replace by them.

    Returns:
        The value, or the object in its place.
    """

    def replace(value: Any) -> tuple[Any, Callable[[Any], None]] | None:
        if type(value) is not Opaque or value.function is not None or value.appended:
            return None
        name = value.class_name
        if name in _NAMESPACES and _has_attributes_only(value):
            made = _NAMESPACES[name]()
            state = value.state or {}
            return made, lambda copied: vars(made).update({key: copied(one) for key, one in state.items()})
        if name in mappings and not value.args and not value.kwargs and not value.state:
            made, items = mappings[name](), value.items
            return made, lambda copied: dict.update(
                made, [(copied_key(key, copied), copied(one)) for key, one in items]
            )
        is_path = name in _PATHS and not value.state and not value.items
        if is_path and all(type(one) is str for one in value.args):
            return _PATHS[name](*value.args), lambda _: None
        return None

    return deep_copy(root, {}, replace=replace, other=lambda value: value)


def _has_attributes_only(value: Opaque) -> bool:
    state = value.state
    return (
        not value.args
        and not value.kwargs
        and not value.items
        and (state is None or (type(state) is dict and all(type(name) is str for name in state)))
    )


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
