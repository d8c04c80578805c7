"""The tree of tensor names, split at dots, as the core folds it: equal numbered subtrees are one node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from rustload import _rustload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


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


class Node(NamedTuple):
    """A part of a name, and the subtree below it.

    Attributes:
        label: The part, or several joined with dots, or the fold of several: `layers.{0..31}`.
        times: The number of equal subtrees that are folded into it.
        leaf: The tensor that has exactly this name.
        tensors: The number of tensors in all folded subtrees.
        nbytes: Their bytes; a tensor with several names counts once.
        own: Their bytes; each name counts, so equal subtrees have equal numbers.
        children: The nodes below.
    """

    label: str
    times: int
    leaf: Leaf | None
    tensors: int
    nbytes: int
    own: int
    children: list[Node]


def build(tensors: Iterable[tuple[str, Leaf, int]]) -> Node:
    """Builds the tree of tensors: equal subtrees are folded and single branches joined.

    Args:
        tensors: Name, leaf and the bytes that count towards sums of each tensor, in the order to show.

    Returns:
        The root, whose label is empty.
    """
    leaves: list[Leaf] = []
    numbers: dict[Leaf, int] = {}
    given = []
    for name, leaf, counted in tensors:
        leaves.append(leaf)
        given.append((name, numbers.setdefault(leaf, len(numbers)), counted, leaf.nbytes))
    path: list[Node] = []
    for level, label, times, position, count, nbytes, own in _rustload.tree_rows(given):
        node = Node(label, times, None if position is None else leaves[position], count, nbytes, own, [])
        del path[level:]
        if path:
            path[-1].children.append(node)
        path.append(node)
    return path[0]


def shown_nbytes(node: Node) -> int:
    """The size of a row: the sum for a group; for a tensor its own size, also if a tied name above was counted already."""
    if node.leaf and not node.children:
        return node.leaf.nbytes if node.times == 1 else node.nbytes or node.leaf.nbytes
    return node.nbytes


def sort_by_size(root: Node) -> None:
    """Sorts the rows of each level by size, the largest first; equal ones keep their order."""
    _sort(root, lambda child: -shown_nbytes(child))


def sort_by_name(root: Node) -> None:
    """Sorts the rows of each level by name, numbers by value."""
    _sort(root, lambda child: natural_key(child.label))


def _sort(root: Node, key: Callable[[Node], Any]) -> None:
    todo = [root]
    while todo:
        node = todo.pop()
        node.children.sort(key=key)
        todo += node.children


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as text, with the numbers in them by value: `layers.2` before `layers.10`."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    return [(0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts]


def walk(root: Node, depth: int | None = None) -> Iterator[tuple[Node, tuple[bool, ...]]]:
    """The nodes below the root, `depth` levels or all, with whether each ancestor and they are the last of their siblings."""
    stack: list[tuple[Node, tuple[bool, ...]]] = [
        (child, (position == 0,)) for position, child in enumerate(reversed(root.children))
    ]
    while stack:
        node, lasts = stack.pop()
        yield node, lasts
        if depth is not None and len(lasts) >= depth:
            continue
        stack += [(child, (*lasts, position == 0)) for position, child in enumerate(reversed(node.children))]
