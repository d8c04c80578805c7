"""What a checkpoint has under the names of torch.distributed.checkpoint (DCP), for `Reader`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from rustload._tensor.deep_copy import deep_copy
from rustload._tensor.handle import LazyTensor
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rustload._checkpoint.checkpoint import Checkpoint

_Path: TypeAlias = tuple[str | int, ...]


class Contents(NamedTuple):
    """Tensors, functions that read the other values, and the path of each name."""

    tensors: dict[str, LazyTensor]
    values: dict[str, Callable[[], Any]]
    paths: dict[str, _Path]


def contents_of(checkpoint: Checkpoint, visits_max: int) -> Contents:
    """The contents of a checkpoint, found in at most `visits_max` steps over its object tree.

    Raises:
        ValueError: Two values have one name.
        LimitError: There are more steps than `visits_max`.
    """
    if checkpoint.format == "torch-dcp":
        return _contents_of_dcp(checkpoint)
    return _flattened(checkpoint, visits_max)


def _contents_of_dcp(checkpoint: Checkpoint) -> Contents:
    """The contents of a checkpoint that DCP saved, by the names in its metadata. A value is read when it is asked for."""
    core = checkpoint._core
    paths: dict[str, _Path] = {name: lazy.path for name, lazy in checkpoint.items()}
    values: dict[str, Callable[[], Any]] = {}
    for position, (name, path) in enumerate(core.saved_values()):
        paths[name] = path
        values[name] = functools.partial(_saved_value, checkpoint, position)
    return Contents(dict(checkpoint.items()), values, paths)


def _saved_value(checkpoint: Checkpoint, position: int) -> Any:
    wrap = functools.partial(LazyTensor._wrap, context=checkpoint._context)
    return checkpoint._core.open_value(position).objects(wrap)[0]


def _flattened(checkpoint: Checkpoint, visits_max: int) -> Contents:
    """The contents of any other checkpoint, named as DCP names those of a state dict (torch/distributed/checkpoint/_traverse.py).

    Mappings are traversed, and lists that contain tensors or mappings. A list in which values contain each other many times has
    many more paths than values, so the number of visits is limited.
    """
    found = Contents({}, {}, {})
    tree = checkpoint.objects
    if not isinstance(tree, Mapping):
        return Contents(dict(checkpoint.items()), {}, {name: (name,) for name in checkpoint})
    visits = _Visits(visits_max)
    todo: list[tuple[_Path, Any]] = [((), tree)]
    while todo:
        path, value = todo.pop()
        visits.count()
        if isinstance(value, Mapping):
            inner = [((*path, str(key)), one) for key, one in value.items()]
            todo += reversed(inner)
        elif isinstance(value, list) and _is_traversed(value, visits):
            todo += [((*path, number), value[number]) for number in reversed(range(len(value)))]
        else:
            name = ".".join(map(str, path))
            if name in found.paths:
                raise ValueError(f"duplicated flatten key {name}")  # DCP's words
            found.paths[name] = path
            if isinstance(value, LazyTensor):
                found.tensors[name] = value
            else:
                found.values[name] = functools.partial(_itself, value)
    if not checkpoint._core.is_joined:
        return found
    # The trees of the files have the parts of joined tensors.
    tensors = dict(checkpoint.items())
    values = {name: value for name, value in found.values.items() if name not in tensors}
    return Contents(tensors, values, {name: found.paths.get(name, (name,)) for name in (*tensors, *values)})


def _itself(value: Any) -> Any:
    return value


class _Visits:
    """Counts steps of a walk over a file's values, and limits them."""

    def __init__(self, most: int) -> None:
        self._left = self._most = most

    def count(self) -> None:
        self._left -= 1
        if self._left < 0:
            text = f"the object tree has more than {self._most} paths"
            raise _error("Limit", text, "pass limits=rustload.Limits(export_nodes=...)")


def _is_traversed(value: list[Any], visits: _Visits) -> bool:
    """Whether a list contains a tensor or a mapping, in lists of lists too."""
    todo, seen = [value], {id(value)}
    while todo:
        for one in todo.pop():
            visits.count()
            if isinstance(one, (Mapping, LazyTensor)):
                return True
            if isinstance(one, list) and id(one) not in seen:
                seen.add(id(one))
                todo.append(one)
    return False


def with_tensors(value: Any) -> Any:
    """A value with tensors in place of the lazy tensors in its containers."""
    read: dict[int, Any] = {}
    for one in _walk(value):
        if isinstance(one, LazyTensor):
            read[id(one)] = one.materialize(framework="torch", copy=True)
    return deep_copy(value, read) if read else value


def is_plain(value: Any) -> bool:
    """Whether a value consists of Python's plain types and tensors, whose pickles do nothing but make them."""
    plain = (type(None), bool, int, float, complex, str, bytes, torch.Tensor, *_CONTAINERS)
    return all(type(one) in plain for one in _walk(value))


_CONTAINERS = (dict, list, tuple, set)


def _walk(value: Any) -> Iterator[Any]:
    """A value and everything in its containers; each container once."""
    todo, seen = [value], set()
    while todo:
        one = todo.pop()
        yield one
        if isinstance(one, _CONTAINERS) and id(one) not in seen:
            seen.add(id(one))
            todo += [*one.keys(), *one.values()] if isinstance(one, dict) else one
