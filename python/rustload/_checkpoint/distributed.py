"""The object trees of distributed checkpoints, and of several files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from rustload import _rustload


class _Node(dict[Any, Any]):
    """A dict or list of the tree while it is made."""


def object_tree(core: _rustload.Checkpoint, wrap: Callable[[_rustload.Tensor], object]) -> Any:
    """What was saved: dicts and lists by the paths in the metadata, with lazy tensors and the other values, which are read now.

    Raises:
        FormatError: Two paths contradict each other, or a value is damaged.
    """
    root = _Node()
    for name in core.names():
        tensor = core.tensor(name)
        _insert(root, tensor.path, wrap(tensor))
    for position, (_, path) in enumerate(core.saved_values()):
        _insert(root, path, core.open_value(position).objects(wrap)[0])
    return _plain(root)


def one_tree(core: _rustload.Checkpoint, trees: list[Any]) -> Any:
    """One tree of those of all files: merged if all are dicts or tensors are joined, otherwise a dict by file name."""
    if len(trees) == 1:
        return trees[0]
    if core.is_joined or all(isinstance(tree, dict) for tree in trees):
        return _merged(core, trees, {} if core.is_joined else None)
    names = [os.path.basename(path) for path in core.files]
    return dict(zip(names if len(set(names)) == len(names) else core.files, trees, strict=True))


_Places: TypeAlias = dict[Any, tuple[int, "_Places"]]
"""For each key of a dict in which tensors are: the number of the first tree with one there, and the same for the value."""


def _places(core: _rustload.Checkpoint) -> _Places:
    """Where the checkpoint has tensors."""
    root: _Places = {}
    for tensor in core.tensors(0, len(core)):
        inner, tree = root, tensor.id[0]
        for step in tensor.path:
            inner = inner.setdefault(step, (tree, {}))[1]
    return root


def _merged(core: _rustload.Checkpoint, trees: list[Any], places: _Places | None) -> Any:
    """The keys of all dicts; of values that are not dicts, the one with the checkpoint's tensors, or else the first.

    Attributes of dicts, such as `_metadata`, are merged too. A dict that is in several places of a tree is merged once. `places`
    is None until there are two values for a key, as most files have none.
    """
    first, *others = trees
    for number, other in enumerate(others, 1):
        # Each dict is visited once, so trees that share dicts, or contain themselves, take linear time.
        left, seen = [(first, other, places or {})], set[int]()
        while left:
            into, new, inside = left.pop()
            if not isinstance(into, dict) or not isinstance(new, dict) or id(new) in seen:
                continue
            seen.add(id(new))
            left.append((getattr(into, "__dict__", None), getattr(new, "__dict__", None), {}))
            for key, value in new.items():
                place, inner = inside.get(key, (None, {}))
                old = into.setdefault(key, value)
                if old is value:
                    continue
                if isinstance(old, dict) and isinstance(value, dict):
                    left.append((old, value, inner))
                elif places is None:
                    return _merged(core, trees, _places(core))  # what is merged by now stays as it is
                elif place == number:
                    into[key] = value
    return first


def _insert(root: _Node, path: tuple[Any, ...], value: object) -> None:
    node: Any = root
    for step in path[:-1]:
        node = node.setdefault(step, _Node())
        if not isinstance(node, _Node):
            raise _conflict(path)
    if path[-1] in node:
        raise _conflict(path)
    node[path[-1]] = value


def _conflict(path: tuple[Any, ...]) -> BaseException:
    return _error("DcpMetadata", f"two values have the path {path!r}, or one is inside the other")


def _plain(node: Any) -> Any:
    """Dicts of the nodes, and lists of those whose keys are all positions."""
    if not isinstance(node, _Node):
        return node
    items = {key: _plain(value) for key, value in node.items()}
    if items and all(isinstance(key, int) for key in items) and sorted(items) == list(range(len(items))):
        return [items[position] for position in range(len(items))]
    return items
