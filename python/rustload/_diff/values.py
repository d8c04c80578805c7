"""Compares the values of two checkpoints that are not tensors, as data: nothing of them is called or constructed."""

from __future__ import annotations

from collections import deque
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
"""The most values and containers of a checkpoint that are compared."""
CHARS_MAX = 64_000_000
"""The most characters of all their names."""
TEXT_MAX = 200
"""The most characters of a value in the report."""


def compare_values(a: Checkpoint, b: Checkpoint) -> list[ValueDiff]:
    """The values that differ, or that one of both lacks, in the order of their names in the checkpoints.

    Raises:
        LimitError: A checkpoint has more values than are compared.
        RustloadError: As for `Checkpoint.objects`.
    """
    of_a, of_b = _leaves(a.objects), _leaves(b.objects)
    names = [name for name in {**of_a, **of_b} if _key(of_a.get(name)) != _key(of_b.get(name))]
    return [ValueDiff(name, _text(of_a.get(name)), _text(of_b.get(name))) for name in names]


def _leaves(root: Any) -> dict[str, tuple[Any]]:
    """The values by dotted name, each in a tuple; of an object of an unknown class, also its class."""
    found: dict[str, tuple[Any]] = {}
    pending: list[tuple[str, str, Any]] = [("", "", root)]
    nodes = chars = 0
    while pending:
        outer, key, value = pending.pop()
        name = f"{outer}.{key}" if outer else key
        nodes, chars = nodes + 1, chars + len(name)
        if nodes > NODES_MAX or chars > CHARS_MAX:
            raise _error(
                "Limit",
                f"more than {NODES_MAX:,}, or names that are too long",
                "compare parts of ckpt.objects",
            )
        if isinstance(value, (LazyTensor, Sparse)):
            continue
        inside = [*(enumerate(value) if isinstance(value, deque) else child_values(value))]
        if isinstance(value, (set, frozenset)):
            inside = []  # their order is not that of the file
        if not inside or isinstance(value, Opaque):
            found[name] = (value,)
        pending += [(name, str(key), one) for key, one in reversed(inside)]
    return found


def _key(leaf: tuple[Any] | None) -> Hashable:
    """What two equal values have in common: NaN is equal to itself, 1 differs from 1.0 and True."""
    if leaf is None:
        return None
    (value,) = leaf
    if isinstance(value, (set, frozenset)):
        return (
            type(value),
            len(value),
            frozenset(one for one in value if isinstance(one, (str, bytes, int, float))),
        )
    if isinstance(value, (str, bytes, int)):
        return type(value), value
    return type(value), bytes(value) if isinstance(value, bytearray) else repr(value)


def _text(leaf: tuple[Any] | None) -> str | None:
    if leaf is None:
        return None
    return clip(inline_text(leaf[0]) or head_text(leaf[0]), TEXT_MAX)
