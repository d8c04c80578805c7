"""Values of a checkpoint that are not tensors, as text: bounded, and nothing of it is called or constructed."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rustload._common.columns import clip
from rustload._tensor.handle import LazyTensor
from rustload._tensor.inert import Global, Opaque, Sparse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LINES_MAX = 400
"""The most lines of a value."""
ITEMS_MAX = 100
"""The most items of a container."""
DEPTH_MAX = 12
"""The most levels of containers."""
TEXT_MAX = 2000
"""The most characters of a string."""
INLINE_MAX = 1000
"""The most characters of a list of plain values in one line."""
_PARTS = ("function", "args", "kwargs", "state", "items", "appended")
_SEQUENCES = (list, tuple, set, frozenset)
_NAMES_MAX = 10_000


def find_object(root: Any, name: str) -> tuple[bool, Any]:
    """Whether the tree has a value under a dotted name, and the value: `hyper_parameters.lr`, `optimizer.state`."""
    pending = [(root, name)]
    while pending:
        value, rest = pending.pop()
        if not rest:
            return True, value
        for key, inside in child_values(value):
            label = str(key)
            if rest == label:
                return True, inside
            if rest.startswith(label + "."):
                pending.append((inside, rest[len(label) + 1 :]))
    return False, None


def object_names(root: Any) -> list[str]:
    """The dotted names of the values near the root, some thousands at most."""
    found: list[str] = []
    level: list[tuple[str, Any]] = [("", root)]
    for _ in range(3):
        level = [
            (f"{name}.{key}" if name else str(key), inside)
            for name, value in level
            for key, inside in itertools.islice(child_values(value), _NAMES_MAX)
        ][:_NAMES_MAX]
        found += [name for name, _ in level]
    return found


def show_object(value: Any) -> Iterator[tuple[int, str, str]]:
    """The lines of a value, each with its level, the key, and what is there; at most some hundreds."""
    lines = 0
    pending: list[tuple[int, str, Any]] = [(0, "", value)]
    while pending:
        level, key, one = pending.pop()
        if lines == LINES_MAX:
            yield 0, "", "... (more is left out: name a part)"
            return
        lines += 1
        inline = one if isinstance(one, _Left) else inline_text(one)
        yield level, key, str(inline) if inline is not None else head_text(one)
        if inline is not None or level == DEPTH_MAX:
            continue
        inside = [
            (level + 1, _label(name), item) for name, item in itertools.islice(child_values(one), ITEMS_MAX)
        ]
        if (more := _len(one) - len(inside)) > 0:
            inside.append((level + 1, "", _Left(f"... and {more:,} more")))
        pending += reversed(inside)


class _Left(str):
    """A line that says what is left out."""

    __slots__ = ()


def child_values(value: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and values inside of a value."""
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, _SEQUENCES):
        return enumerate(value)
    if isinstance(value, Opaque):
        # What the pickle has of an object: never its attributes, because no object was made.
        held = ((name, getattr(value, name)) for name in _PARTS)
        return [(name, one) for name, one in held if not (one is None or one == () or one == [])]
    return ()


def _len(value: Any) -> int:
    return len(value) if isinstance(value, (Mapping, *_SEQUENCES)) else 0


def _label(key: Any) -> str:
    return clip(key, 200) if isinstance(key, str) else inline_text(key) or f"<{type(key).__name__}>"


def head_text(value: Any) -> str:
    """What a container is."""
    if isinstance(value, Opaque):
        return f"<{value.class_name}> (kept as data)"
    return f"{type(value).__name__} of {_len(value):,}"


def inline_text(value: Any) -> str | None:
    """A value in one line; None for a container that needs more."""
    if isinstance(value, LazyTensor):
        return f"<tensor {value.dtype} {list(value.shape)}>"
    if isinstance(value, (bytes, bytearray)):
        return f"<{len(value):,} bytes>"
    if isinstance(value, str):
        cut = "" if len(value) <= TEXT_MAX else f" (the first {TEXT_MAX:,} of {len(value):,} characters)"
        return repr(str(value[:TEXT_MAX])) + cut
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 512:
        return f"<a number of {value.bit_length():,} bits>"
    if value is None or isinstance(value, (bool, int, float, complex, Global, Sparse)):
        return repr(value)
    if isinstance(value, _SEQUENCES):
        items = [*itertools.islice(value, ITEMS_MAX)]
        if any(isinstance(item, (Mapping, Opaque, *_SEQUENCES)) for item in items):
            return None
        joined = ", ".join(inline_text(item) or "" for item in items)
        begin, end = {list: ("[", "]"), tuple: ("(", ")")}.get(type(value), ("{", "}"))
        more = f", ... {len(value):,} items" if len(value) > len(items) else ""
        return f"{begin}{joined}{more}{end}" if len(joined) <= INLINE_MAX else None
    if isinstance(value, Mapping):
        return None if value else "{}"
    if isinstance(value, Opaque):
        return None
    # A label of the file, such as a dtype or a device.
    return clip(repr(value), 200)
