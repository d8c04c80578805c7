"""What `save` is given: tensors by name, the values beside them, and the record of both that goes into the metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rustload._checkpoint.checkpoint import Checkpoint
from rustload._checkpoint.nesting import DEPTH_MAX, TEXT_MAX_CHARS, VALUE_TYPES, scalar_json
from rustload._save.arrays import kind_of, unsupported, values_of
from rustload._save.flatten import Named, dotted, flatten
from rustload._save.objects import Objects
from rustload._tensor.handle import LazyTensor
from rustload.errors import _error, _pass

if TYPE_CHECKING:
    from rustload._save.arrays import Values

_SKIPPED = object()

_NODES_MAX = 1 << 20
"""The most containers, values and tensors in a record. Those of a checkpoint may occur in each other many times over."""


class Given:
    """The argument `tensors=` of `save`.

    Attributes:
        items: The tensors, by name, as they were given.
        values: The tensors, by name, as the extension writes them.
        record: The record of containers and values; None unless it is to be kept.
        objects: The values that are not tensors.
        skipped: The number of values that neither the record nor a tensor has, and the dotted paths of the first.
    """

    def __init__(self, tensors: Any, *, keep_nesting: bool, keep_objects: bool) -> None:
        """Names all tensors.

        Args:
            tensors: The argument.
            keep_nesting: Whether to make the record.
            keep_objects: Whether the objects are kept for a file.

        Raises:
            TypeError: It is not a mapping or list, or has a value that can be neither written nor kept.
            ValueError: Two tensors would have one name, or a container cannot be kept.
            UnsupportedError: A checkpoint has a sparse tensor.
            RustloadError: The values of a checkpoint cannot be read.
        """
        if not isinstance(tensors, (Mapping, list, tuple)):
            kind = type(tensors).__name__
            note = (
                "rustload.torch.save_model(model, path) saves a module"
                if hasattr(tensors, "state_dict")
                else None
            )
            raise _error(
                "Type", f"is a mapping from names to tensors, not a {kind}", note, argument="tensors"
            )
        if isinstance(tensors, Checkpoint):
            self.items = dict(tensors.items())
            self.objects = Objects.of(tensors, keep=keep_objects)
            for name in self.items if self.objects.sparse else ():
                if name in self.objects.sparse:
                    note = "select the tensors to write; its components by their names"
                    raise unsupported(name.rpartition(".")[0] or name, "a sparse tensor", note)
            tree: Any = tensors.objects if keep_nesting else {}
        else:
            # bytes have the buffer protocol: without a record, they are a tensor.
            types = VALUE_TYPES if keep_nesting else VALUE_TYPES - {bytes}
            flat = flatten(tensors, lambda value: type(value) in types)
            self.items = flat.tensors
            if flat.others and not (keep_nesting or keep_objects):
                raise _not_a_tensor(*flat.others[0])
            tree = flat.tree(tensors) if keep_nesting or keep_objects else {}
            self.objects = Objects(tree, keep=keep_objects)
        self.record: str | None = None
        self.skipped = self.objects.count, tuple(self.objects.at)
        if keep_nesting:
            made = _Record(tree, self.items, is_exact=not isinstance(tensors, Checkpoint))
            self.record, self.skipped = made.text, (len(made.skipped), tuple(made.skipped))
        self.values: dict[str, Values] = {name: values_of(name, value) for name, value in self.items.items()}


def _not_a_tensor(path: tuple[Any, ...], value: Any) -> BaseException:
    return _error(
        "Type",
        f"{dotted(path)!r} is {kind_of(value)}, not a tensor",
        _pass("keep_nesting", "to keep it beside the tensors", value=True),
        _pass("objects", "with a path, to write it to a file of JSON"),
    )


class _Record:
    """Makes the record of a tree.

    Attributes:
        text: The record.
        skipped: The dotted paths of values that have no form in it.
    """

    def __init__(self, tree: Any, names: Mapping[str, Any], *, is_exact: bool) -> None:
        self.skipped: list[str] = []
        self._names = names
        # A tensor that a checkpoint has at several places is there the handle of the first.
        self._places = {one.path: name for name, one in names.items() if isinstance(one, LazyTensor)}
        self._used: set[str] = set()
        self._is_exact = is_exact
        self._left = _NODES_MAX
        root = self._node(tree, ())
        hidden = next((name for name in names if name not in self._used), None)
        if root is _SKIPPED or hidden is not None:
            text = f"cannot keep {hidden!r}: it is inside of a value that is not a dict, a list or a tuple"
            note = "leave keep_nesting out: the tensors are then written by their names"
            raise _error("Value", text, note, argument="keep_nesting")
        self.text = json.dumps(root, separators=(",", ":"))
        if len(self.text) > TEXT_MAX_CHARS:
            raise _too_large(f"{TEXT_MAX_CHARS:,} characters")

    def _node(self, value: Any, path: tuple[Any, ...]) -> Any:
        self._left -= 1
        if self._left < 0:
            raise _too_large(f"{_NODES_MAX:,} containers and values")
        if isinstance(value, (Named, LazyTensor)):
            name = value.name
            if isinstance(value, LazyTensor):
                placed = self._places.get(path, name)
                name = placed if self._names.get(placed) == value else name
            if name in self._names:
                self._used.add(name)
                return name
        elif isinstance(value, (Mapping, list, tuple)):
            if len(path) == DEPTH_MAX:
                text = f"cannot keep values that are nested more deeply than {DEPTH_MAX} containers"
                raise _error("Value", text, argument="keep_nesting")
            return self._container(value, path)
        elif type(value) is str:
            return {"$str": value}
        elif type(value) in VALUE_TYPES:
            return scalar_json(value)
        self.skipped.append(dotted(path))
        return _SKIPPED

    def _container(self, value: Any, path: tuple[Any, ...]) -> Any:
        if isinstance(value, Mapping):
            pairs = []
            for key, item in value.items():
                if type(key) in VALUE_TYPES:
                    pairs.append(
                        [key if type(key) is str else scalar_json(key), self._node(item, (*path, key))]
                    )
                elif self._is_exact:
                    kind = type(key).__name__
                    text = f"a nesting with a {kind} as a key cannot be kept"
                    raise _error("Type", text, "use str or int keys")
                else:
                    self.skipped.append(dotted((*path, key)))
            return {"$dict": [pair for pair in pairs if pair[1] is not _SKIPPED]}
        items = [self._node(item, (*path, at)) for at, item in enumerate(value)]
        # The others keep their places.
        items = [None if item is _SKIPPED else item for item in items]
        return {"$list" if isinstance(value, list) else "$tuple": items}


def _too_large(limit: str) -> BaseException:
    text = f"the record of containers and values would have more than {limit}"
    return _error("HeaderTooLarge", text, "leave keep_nesting out, or save long lists of numbers as arrays")
