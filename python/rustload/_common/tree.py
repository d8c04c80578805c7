"""The tree of tensor names, split at dots, with equal numbered subtrees folded and single branches joined.

Only parts that are whole numbers fold: `layers.0`, `layers.1`, ... to `layers.{0..1}`; `conv1` and `conv2` are two names. No
recursion. The levels of a name are bounded; the rest of a longer name is one label. The core has the same rules for the page of
`view` (src/document/tree.rs).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

__all__ = [
    "Leaf",
    "Node",
    "build",
    "natural_key",
    "shown_nbytes",
    "sort_by_name",
    "sort_by_size",
    "spell_numbers",
    "split_name",
    "walk",
]

# The most levels of a name.
LEVELS_MAX = 64
# The most digits of a part that is a number.
DIGITS_MAX = 18


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
        signature: A number that equal subtrees share; set by folding.
    """

    __slots__ = ("children", "label", "leaf", "named", "nbytes", "own", "signature", "tensors", "times")

    leaf: Leaf | None
    children: list[Node]
    # The children by label, until the tree is complete.
    named: dict[str, Node] | None

    def __init__(self, label: str) -> None:
        """A node without children."""
        self.label = label
        self.leaf = self.named = None
        self.children = _NO_NODES
        self.times = 1
        self.tensors = self.nbytes = self.own = self.signature = 0


# The children of a leaf; not to be changed.
_NO_NODES: list[Node] = []


def build(tensors: Iterable[tuple[str, Leaf, int]]) -> Node:
    """Builds the tree of tensors: equal subtrees are folded and single branches joined.

    Args:
        tensors: Name, leaf and the bytes that count towards sums of each tensor, in the order to show.

    Returns:
        The root, whose label is empty.
    """
    root = Node("")
    for name, leaf, counted in tensors:
        node = root
        for part in name.split(".", LEVELS_MAX) if "[" not in name else split_name(name):
            known = node.named
            if known is None:  # most nodes are leaves, which need no dict
                known = node.named = {}
            child = known.get(part)
            if child is None:
                child = known[part] = Node(part)
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


def spell_numbers(numbers: list[int], digits: int = 0) -> str:
    """Abbreviates a sorted list of numbers: `0..31`, `0..30 step 2`, `0..2, 5, 7..9`.

    Args:
        numbers: The numbers, each once.
        digits: The number of digits to which they are padded with zeros; 0 for none.
    """

    def text(number: int) -> str:
        return str(number).zfill(digits)

    first, last = numbers[0], numbers[-1]
    step = numbers[1] - first if len(numbers) > 1 else 1
    if len(numbers) > 2 and numbers == list(range(first, last + 1, step)):
        return f"{text(first)}..{text(last)}" + ("" if step == 1 else f" step {step}")
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    spelled = [
        f"{text(run[0])}..{text(run[-1])}" if len(run) > 2 else ", ".join(map(text, run)) for run in runs
    ]
    if len(spelled) > 6:
        spelled = [*spelled[:4], "..", spelled[-1]]
    return ", ".join(spelled)


def shown_nbytes(node: Node) -> int:
    """The size of a row: the sum for a group; for a tensor its own size, also if a tied name above was counted already."""
    if node.leaf and not node.children:
        return node.leaf.nbytes if node.times == 1 else node.nbytes or node.leaf.nbytes
    return node.nbytes


def sort_by_size(root: Node) -> None:
    """Sorts the rows of each level by size, the largest first; equal ones keep their order."""
    for node in _below(root):
        node.children.sort(key=lambda child: -shown_nbytes(child))


def sort_by_name(root: Node) -> None:
    """Sorts the rows of each level by name, numbers by value."""
    for node in _below(root):
        node.children.sort(key=lambda child: natural_key(child.label))


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A key that sorts names as text, with the numbers in them by value: `layers.2` before `layers.10`."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+|[0-9]+", name)
    return [(0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts]


def walk(root: Node, depth: int | None = None) -> Iterator[tuple[Node, tuple[bool, ...]]]:
    """The nodes below the root, in order, with whether each of their ancestors and themselves is the last of its siblings.

    Args:
        root: The root.
        depth: The most levels; None for all.
    """
    stack: list[tuple[Node, tuple[bool, ...]]] = [
        (child, (position == 0,)) for position, child in enumerate(reversed(root.children))
    ]
    while stack:
        node, lasts = stack.pop()
        yield node, lasts
        if depth is not None and len(lasts) >= depth:
            continue
        stack += [(child, (*lasts, position == 0)) for position, child in enumerate(reversed(node.children))]


def _fold(root: Node) -> None:
    """Folds and joins from the leaves up; equal subtrees get the same signature number."""
    order, at = [root], 0
    while at < len(order):
        node = order[at]
        at += 1
        if node.named is not None:
            node.children = list(node.named.values())
            node.named = None
            order += node.children
    numbers: dict[Hashable, int] = {}
    # The numbers of leaves by their id, because to hash a leaf takes longer, and callers may share equal ones.
    leaves: dict[int, int] = {}
    for node in reversed(order):
        children = node.children
        if not children:
            number = leaves.get(id(node.leaf))
            if number is None:
                number = leaves[id(node.leaf)] = numbers.setdefault(node.leaf, len(numbers))
            node.signature = number
            continue
        if len(children) == 1:  # most groups of a large model
            child = children[0]
            inside: Hashable = (child.label, child.signature, node.leaf)
            node.tensors += child.tensors
            node.nbytes += child.nbytes
            node.own += child.own
        else:
            # The order is ignored, because a layer that is split over shards has its tensors in another order.
            inside = (frozenset([(child.label, child.signature) for child in children]), node.leaf)
            for child in children:
                node.tensors += child.tensors
                node.nbytes += child.nbytes
                node.own += child.own
            node.children = children = _fold_siblings(children)
        node.signature = numbers.setdefault(inside, len(numbers))
        for child in children:
            if child.leaf is None and len(child.children) == 1:
                _join(child, child.children[0])


def _below(root: Node) -> list[Node]:
    """The root and all nodes below it, parents first."""
    order, at = [root], 0
    while at < len(order):
        order += order[at].children
        at += 1
    return order


def _whole_number(label: str) -> tuple[int, int] | None:
    """The number that the label is, and its digits if it begins with zeros, else 0; None if it is not a whole number."""
    if not (label.isascii() and label.isdigit()) or len(label) > DIGITS_MAX:
        return None
    return int(label), len(label) if label[0] == "0" and len(label) > 1 else 0


def _fold_groups(children: list[Node]) -> list[tuple[str, list[Node]]]:
    """Siblings that are folded together, sorted by number, with the label of the fold: each group of two and more."""
    alike: dict[tuple[int, int], list[tuple[int, Node]]] = {}
    for child in children:
        found = _whole_number(child.label) if child.label.isdigit() else None
        if found is not None:
            alike.setdefault((found[1], child.signature), []).append((found[0], child))
    groups = []
    for (digits, _), members in alike.items():
        if len(members) > 1:
            members.sort(key=lambda member: member[0])
            label = f"{{{spell_numbers([number for number, _ in members], digits)}}}"
            groups.append((label, [child for _, child in members]))
    return groups


def _fold_siblings(children: list[Node]) -> list[Node]:
    groups = _fold_groups(children)
    if not groups:
        return children
    folds = {id(child): members[0] for _, members in groups for child in members}
    out: list[Node] = []
    seen: set[int] = set()
    for child in children:
        # A fold is where the first of its nodes was.
        kept = folds.get(id(child), child)
        if id(kept) not in seen:
            seen.add(id(kept))
            out.append(kept)
    for label, members in groups:
        first = members[0]
        first.label = label
        first.times *= len(members)
        first.tensors = sum(child.tensors for child in members)
        first.nbytes = sum(child.nbytes for child in members)
        first.own = sum(child.own for child in members)
    return out


def _join(node: Node, child: Node) -> None:
    node.label = f"{node.label}.{child.label}"
    node.times *= child.times
    node.leaf, node.children = child.leaf, child.children
