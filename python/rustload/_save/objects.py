"""The values of a checkpoint that are not tensors: counted, and as JSON."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload._checkpoint.nesting import NESTING_KEY, scalar_json
from rustload._save.flatten import Named, dotted
from rustload._tensor.handle import LazyTensor
from rustload._tensor.inert import Global, Opaque, Sparse
from rustload.errors import RustloadError, _error

if TYPE_CHECKING:
    from rustload._checkpoint.checkpoint import Checkpoint

_FORMATS_WITHOUT = {"safetensors", "npz", "npy"}
"""Formats whose files hold tensors only."""

_DEPTH_MAX = 200
"""The most containers in each other in a JSON document: parsers have limits too."""
_LABEL_MAX_CHARS = 60

_NAMED_MAX = 100
"""The most values that are named."""

_Link: TypeAlias = "tuple[_Link, Any] | None"
"""The path of a value: that of its container, and its key there."""

_SEQUENCES = (list, tuple, set, frozenset, deque)
_TENSORS = (LazyTensor, Named)


class Objects:
    """The object tree of a checkpoint, or of what is saved.

    Attributes:
        count: The number of values that are neither tensors nor containers; 0 if there are more than the limits allow.
        at: The dotted paths of the first of them.
        sparse: The names of the components of sparse tensors.
    """

    def __init__(self, root: Any, *, keep: bool) -> None:
        """Walks a tree, whose tensors are lazy or only named, and keeps it for `json` if asked for."""
        self.count = 0
        self.at: list[str] = []
        self.sparse: set[str] = set()
        self._root = root if keep else {}
        self._error: RustloadError | None = None
        self._walk(root)

    @classmethod
    def of(cls, checkpoint: Checkpoint, *, keep: bool) -> Objects:
        """The tree of a checkpoint, kept for `json` if asked for. Reads no tensors."""
        root: Any = {}
        error = None
        has_tensors_only = checkpoint._formats <= _FORMATS_WITHOUT
        try:
            if checkpoint.format == "torch-dcp" and not keep:
                # Values are in files beside the metadata, which has their names.
                root = {name: None for name, _ in checkpoint._core.saved_values()}
            elif not has_tensors_only or NESTING_KEY in checkpoint.metadata:
                root = checkpoint.objects
        except RustloadError as found:
            # The tensors can be written all the same.
            error = found
        made = cls(root, keep=keep)
        made._error = error
        if has_tensors_only:
            for opaque in checkpoint.opaque:
                made.count += opaque.count
                made.at += opaque.at
        return made

    def _walk(self, root: Any) -> None:
        seen: set[int] = set()
        pending: list[tuple[_Link, Any]] = [(None, root)]
        while pending:
            link, value = pending.pop()
            if isinstance(value, _TENSORS):
                continue
            if isinstance(value, Sparse):
                self.sparse |= {part.name for part in value.parts.values()}
                continue
            if isinstance(value, Mapping):
                inner: list[Any] = list(value.items())
            elif isinstance(value, _SEQUENCES):
                inner = list(enumerate(value))
            else:
                self.count += 1
                if len(self.at) < _NAMED_MAX:
                    self.at.append(_dotted(link))
                continue
            if id(value) not in seen:
                seen.add(id(value))
                pending += [((link, key), item) for key, item in reversed(inner)]

    def json(self) -> Any:
        """The tree in values that JSON has; docs/reference/convert.md describes it.

        Raises:
            LimitError: The file has more values than the limits allow.
            ValueError: Containers are nested too deeply.
        """
        if self._error is not None:
            raise self._error
        return _Encoder().value(self._root, "$", 0)


class _Encoder:
    """Makes JSON of a tree. A container that occurs again refers to the first, so the result is no larger than the tree."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def value(self, value: Any, path: str, depth: int) -> Any:
        if isinstance(value, str):
            return value
        scalar = scalar_json(value)
        if scalar is not NotImplemented:
            return scalar
        if isinstance(value, _TENSORS):
            return {"$tensor": value.name}
        if isinstance(value, Sparse):
            return {"$sparse": [part.name for part in value.parts.values()]}
        if isinstance(value, Global):
            return {"$global": f"{value.module}.{value.name}"}
        if isinstance(value, Opaque):
            return {"$class": value.class_name}
        if isinstance(value, (Mapping, *_SEQUENCES)):
            return self._container(value, path, depth)
        return {"$class": f"{type(value).__module__}.{type(value).__qualname__}"}

    def _container(self, value: Any, path: str, depth: int) -> Any:
        if id(value) in self._seen:
            return {"$same": self._seen[id(value)]}
        if depth == _DEPTH_MAX:
            text = f"would have values that are nested more deeply than {_DEPTH_MAX} containers"
            raise _error("Value", text, argument="objects")
        if value:
            self._seen[id(value)] = path
        if not isinstance(value, Mapping):
            items = [self.value(item, f"{path}[{at}]", depth + 1) for at, item in enumerate(value)]
            # The order of a set changes from run to run.
            return sorted(items, key=json.dumps) if isinstance(value, (set, frozenset)) else items
        pairs = []
        for key, item in value.items():
            encoded = self.value(item, f"{path}.{_label(key)}", depth + 1)
            is_of_tensors = isinstance(item, Mapping) and bool(item) and encoded == {}
            if not (is_of_tensors or isinstance(item, (*_TENSORS, Sparse))):
                pairs.append((key, encoded))
        if all(
            isinstance(key, str) or (isinstance(key, int) and scalar_json(key) is key) for key, _ in pairs
        ):
            named = {str(key): item for key, item in pairs}
            if len(named) == len(pairs):
                return named
        return {"$dict": [[self.value(key, path, depth + 1), item] for key, item in pairs]}


def _dotted(link: _Link) -> str:
    path = []
    while link is not None:
        link, key = link
        path.append(_label(key))
    return dotted(tuple(reversed(path)))


def _label(key: Any) -> str:
    """A short text for a key in the path of a value."""
    if isinstance(key, str):
        return key[:_LABEL_MAX_CHARS]
    return str(key) if isinstance(key, int) and scalar_json(key) is key else type(key).__name__
