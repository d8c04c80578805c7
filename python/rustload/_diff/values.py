"""Compares the values of two checkpoints that are not tensors, as data: nothing of them is called or constructed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rustload._common.columns import clip
from rustload._describe.objects import child_values, head_text, inline_text
from rustload._diff.report import ValueDiff
from rustload._tensor.handle import LazyTensor
from rustload._tensor.inert import Opaque, Sparse
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Hashable

    from rustload._checkpoint.checkpoint import Checkpoint

NODES_MAX = 200_000
"""The most values and containers that are compared."""
CHARS_MAX = 64_000_000
"""The most characters of all their names."""
TEXT_MAX = 200
"""The most characters of a value in the report."""
_NOTHING = object()
"""In the place of a value that one of both lacks."""
_NONE = ("", _NOTHING)


def compare_values(a: Checkpoint, b: Checkpoint) -> list[ValueDiff]:
    """The values that differ, or that one of both lacks, in the order of their names in the checkpoints.

    Raises:
        LimitError: A checkpoint has more values than are compared.
        RustloadError: As for `Checkpoint.objects`.
    """
    # torch's distributed writer makes texts of keys.
    keys_are_texts = "torch-dcp" in (a.format, b.format)
    found: list[ValueDiff] = []
    pending: list[tuple[str, str | None, Any, Any]] = [("", None, a.objects, b.objects)]
    nodes = chars = 0
    while pending:
        outer, label, *both = pending.pop()
        name = f"{outer}.{label}" if outer else label or ""
        one, two = (_NOTHING if isinstance(value, (LazyTensor, Sparse)) else value for value in both)
        nodes, chars = nodes + 1, chars + len(name)
        if nodes > NODES_MAX or chars > CHARS_MAX:
            raise _error(
                "Limit",
                f"more than {NODES_MAX:,}, or names that are too long",
                "compare parts of ckpt.objects",
            )
        of_one, of_two = (_inside(value, keys_are_texts=keys_are_texts) for value in (one, two))
        for key in reversed({**of_one, **of_two}):
            (inner, first), (other, second) = of_one.get(key, _NONE), of_two.get(key, _NONE)
            pending.append((name, inner or other, first, second))
        if _own(one) == _own(two):
            continue
        # A container that one of both lacks is not listed, but its values; nor is the whole, which may be of another format.
        lacking = one is _NOTHING or two is _NOTHING
        is_listed = not (of_one or of_two) if lacking else label is not None or not (of_one and of_two)
        if is_listed or isinstance(one, Opaque) or isinstance(two, Opaque):
            found.append(ValueDiff(name, _text(one), _text(two)))
    return found


def _inside(value: Any, *, keys_are_texts: bool) -> dict[Hashable, tuple[str, Any]]:
    """The names and values in a container by what equal keys have in common."""
    if isinstance(value, (set, frozenset)):
        return {}  # their order is not that of the file
    items = enumerate(value) if isinstance(value, deque) else child_values(value)
    return {str(key) if keys_are_texts else _key(key): (str(key), one) for key, one in items}


def _own(value: Any) -> Hashable:
    """What two values have in common that differ in nothing but the values inside."""
    if isinstance(value, Mapping):
        return Mapping
    return type(value) if isinstance(value, (list, tuple, deque)) else _key(value)


def _key(value: Any) -> Hashable:
    """What two equal values have in common: NaN is equal to itself, 1 differs from 1.0 and True."""
    if isinstance(value, (set, frozenset)):
        return type(value), len(value), frozenset(map(_key, value))
    if isinstance(value, tuple):
        return type(value), tuple(map(_key, value))
    if isinstance(value, (str, bytes, int)):
        return type(value), value
    return type(value), bytes(value) if isinstance(value, bytearray) else repr(value)


def _text(value: Any) -> str | None:
    if value is _NOTHING:
        return None
    return clip(inline_text(value) or head_text(value), TEXT_MAX)
