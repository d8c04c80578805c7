"""The tree of tensor names, split at dots, with equal subtrees folded and single branches joined.

No recursion. The levels of a name are bounded; the rest of a longer name is one label.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

__all__ = ["Leaf", "Node", "build", "spell_numbers", "split_name", "walk"]

# The number of equal siblings from which to fold `0`, `1`, ... and `block_0`, `block_1`, ...
FOLD_NUMBERS, FOLD_NAMES = 2, 3

# The most levels of a name.
LEVELS_MAX = 64

# Matched on the reversed label: the text after its last number, and that number.
_NUMBERED = re.compile(r"([^0-9]*)([0-9]{1,10})")


class Leaf(NamedTuple):
    """The properties of a tensor that the tree shows and compares.

    Attributes:
        dtype: The dtype, as torch spells it.
        shape: Elements along each dimension.
        nbytes: Bytes of all elements together.
        tied: Whether other names share its storage.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    tied: bool


class Node:
    """A part of a name, and the subtree below it.

    Attributes:
        label: The part, or several joined with dots, or the fold of several: `layers.{0..31}`.
        times: The number of equal subtrees that are folded into it.
        leaf: The tensor that has exactly this name.
        children: The nodes below.
        tensors: The number of tensors in all folded subtrees.
        nbytes: Their bytes; a tensor with several names counts once.
        own: Their bytes; each name counts, so equal subtrees have equal numbers.
    """

    __slots__ = ("children", "label", "leaf", "nbytes", "own", "tensors", "times")

    leaf: Leaf | None
    children: list[Node]

    def __init__(self, label: str) -> None:
        """A node without children."""
        self.label, self.leaf, self.children = label, None, []
        self.times = 1
        self.tensors = self.nbytes = self.own = 0


def build(tensors: Iterable[tuple[str, Leaf, int]]) -> Node:
    """Builds the folded tree of tensors.

    Args:
        tensors: Name, leaf and the bytes that count towards sums of each tensor, in the order to show.

    Returns:
        The root, whose label is empty.
    """
    root = Node("")
    # Most nodes are leaves, which need no dict.
    below: dict[int, dict[str, Node]] = {}
    for name, leaf, counted in tensors:
        node = root
        for part in split_name(name):
            known = below.get(id(node))
            if known is None:
                known = below[id(node)] = {}
            child = known.get(part)
            if child is None:
                child = known[part] = Node(part)
                node.children.append(child)
            node = child
        node.leaf, node.tensors, node.nbytes, node.own = leaf, 1, counted, leaf.nbytes
    _fold(root)
    return root


def split_name(name: str) -> list[str]:
    """The parts between dots; dots inside brackets, as in `a["x.y"]`, do not count."""
    if "[" not in name or name.count("[") != name.count("]"):
        return name.split(".", LEVELS_MAX)
    parts: list[str] = []
    start = depth = 0
    for found in re.finditer(r"[.\[\]]", name):
        depth += {"[": 1, "]": -1}.get(found[0], 0)
        if found[0] == "." and depth <= 0 and len(parts) < LEVELS_MAX:
            parts.append(name[start : found.start()])
            start = found.end()
    return [*parts, name[start:]]


def spell_numbers(numbers: list[int]) -> str:
    """Abbreviates a sorted list of numbers: `0..31`, `0..30 step 2`, `0..2, 5, 7..9`."""
    first, last = numbers[0], numbers[-1]
    step = numbers[1] - first if len(numbers) > 1 else 1
    if len(numbers) > 2 and numbers == list(range(first, last + 1, step)):
        return f"{first}..{last}" if step == 1 else f"{first}..{last} step {step}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spelled = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    if len(spelled) > 6:
        spelled = [*spelled[:4], "..", spelled[-1]]
    return ", ".join(spelled)


def walk(root: Node) -> Iterator[tuple[Node, tuple[bool, ...]]]:
    """Every node below the root, in order, with whether each of its ancestors and itself is the last of its siblings."""
    stack: list[tuple[Node, tuple[bool, ...]]] = [
        (child, (position == 0,)) for position, child in enumerate(reversed(root.children))
    ]
    while stack:
        node, lasts = stack.pop()
        yield node, lasts
        stack += [(child, (*lasts, position == 0)) for position, child in enumerate(reversed(node.children))]


def _fold(root: Node) -> None:
    """Folds and joins from the leaves up; equal subtrees get the same signature number."""
    order, at = [root], 0
    while at < len(order):
        order += order[at].children
        at += 1
    numbers: dict[Hashable, int] = {}
    signatures: dict[int, int] = {}
    leaves: dict[Leaf | None, int] = {}
    for node in reversed(order):
        if not node.children:
            number = leaves.get(node.leaf)
            if number is None:
                number = leaves[node.leaf] = numbers.setdefault((node.leaf, frozenset()), len(numbers))
            signatures[id(node)] = number
            continue
        node.tensors += sum(child.tensors for child in node.children)
        node.nbytes += sum(child.nbytes for child in node.children)
        node.own += sum(child.own for child in node.children)
        # The order is ignored, because a layer that is split over shards has its tensors in another order.
        inside = frozenset((child.label, signatures[id(child)]) for child in node.children)
        signatures[id(node)] = numbers.setdefault((node.leaf, inside), len(numbers))
        if len(node.children) > 1:
            node.children = _fold_siblings(node.children, signatures)
        for child in node.children:
            if child.leaf is None and len(child.children) == 1:
                _join(child, child.children[0])


def _split_number(label: str) -> tuple[str, int, str] | None:
    """What is in front of the last number of a label, the number without leading zeros, and what follows it."""
    found = _NUMBERED.match(label[::-1])
    if found is None:
        return None
    number = found[2][::-1].lstrip("0") or "0"
    end = len(label) - len(found[1])
    return label[: end - len(number)], int(number), label[end:]


def _fold_siblings(children: list[Node], signatures: dict[int, int]) -> list[Node]:
    alike: dict[Hashable, list[tuple[int, Node]]] = {}
    for child in children:
        found = _split_number(child.label)
        key: Hashable = (found[0], found[2], signatures[id(child)]) if found else child.label
        alike.setdefault(key, []).append((found[1] if found else 0, child))
    out = []
    for key, members in alike.items():
        head, tail = key[:2] if isinstance(key, tuple) else ("", "")
        if not isinstance(key, tuple) or len(members) < (FOLD_NAMES if head or tail else FOLD_NUMBERS):
            out += members
            continue
        members.sort(key=lambda member: member[0])
        first = members[0][1]
        first.label = f"{head}{{{spell_numbers([number for number, _ in members])}}}{tail}"
        first.times *= len(members)
        first.tensors = sum(child.tensors for _, child in members)
        first.nbytes = sum(child.nbytes for _, child in members)
        first.own = sum(child.own for _, child in members)
        out.append((0, first))
    return [child for _, child in out]


def _join(node: Node, child: Node) -> None:
    node.label = f"{node.label}.{child.label}"
    node.times *= child.times
    node.leaf, node.children = child.leaf, child.children
