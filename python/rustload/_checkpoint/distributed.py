"""The object trees of distributed checkpoints, and of the files that each process of a distributed program saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Callable

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


def merged_trees(trees: list[Any]) -> Any:
    """One tree of those of several processes: the keys of all dicts, and of values that are not dicts the first.

    A dict that is in several places of a tree is merged once.
    """
    first, *others = trees
    for other in others:
        # Each dict is visited once, so trees that share dicts, or contain themselves, take linear time.
        left, seen = [(first, other)], set[int]()
        while left:
            into, new = left.pop()
            if not isinstance(into, dict) or not isinstance(new, dict) or id(new) in seen:
                continue
            seen.add(id(new))
            for key, value in new.items():
                if key in into:
                    left.append((into[key], value))
                else:
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
