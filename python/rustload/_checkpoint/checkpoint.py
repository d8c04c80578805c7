"""`Checkpoint`: an opened checkpoint as a mapping from names to lazy tensors."""

from __future__ import annotations

import os
from collections.abc import ItemsView, Iterator, Mapping, ValuesView

from rustload._checkpoint.tensors import TensorMapping
from rustload._common.sizes import format_bytes
from rustload._frameworks import adapters
from rustload._frameworks.adapters import HandleContext
from rustload._tensor.handle import LazyTensor, new_handle
from rustload.errors import RustloadError, TensorNotFoundError, _error, _Note, _pass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rustload import _rustload
    from rustload._checkpoint.opaque_class import OpaqueClass

_OBJECT_SEARCH_MAX_TENSORS = 10_000
"""The most tensors for which a failed lookup also searches the object tree."""


_HANDLES_AT_ONCE = 256
"""How many handles are made at once for a consumer that may stop early."""


class Checkpoint(TensorMapping):
    """An opened checkpoint: a read-only mapping from names to lazy tensors, in the file's order.

    `with` is optional: tensors and handles stay valid after it is closed.

    >>> import rustload
    >>> with rustload.open("model.pt") as ckpt:
    ...     for name, t in ckpt.items():
    ...         print(name, t.dtype, t.shape)
    q.weight float32 (8, 8)
    k.weight float32 (8, 8)
    v.weight float32 (8, 8)
    lm_head.weight float32 (8, 8)
    """

    __slots__ = ("_closed", "_context", "_core", "_names", "_objects")

    _names: list[str] | None
    _objects: Any
    _closed: bool

    def __init__(self) -> None:
        """Not for users: `rustload.open` creates checkpoints.

        Raises:
            TypeError: Always.
        """
        raise TypeError("checkpoints are opened: rustload.open(path)")

    @classmethod
    def _wrap(
        cls, core: _rustload.Checkpoint, framework: str | None, context: HandleContext | None = None
    ) -> Checkpoint:
        made = cls.__new__(cls)
        made._core = core
        made._names = None
        made._objects = None
        made._context = context or HandleContext(framework)
        made._closed = False
        return made

    def __getitem__(self, name: str) -> LazyTensor:
        """The lazy tensor of that name.

        Raises:
            TensorNotFoundError: No tensor has that name; the note lists similar names.
            ValueError: The checkpoint is closed.
        """
        self._check_open()
        if not isinstance(name, str):
            raise TypeError(f"tensor names are str, not {type(name).__name__}")
        try:
            return LazyTensor._wrap(self._core.tensor(name), self._context)
        except TensorNotFoundError as error:
            self._note_other_value(name, error)
            raise
        except UnicodeEncodeError:  # it has surrogates, which no name has
            raise self._unknown(None, name) from None

    def _handles(self, names: list[str]) -> list[LazyTensor]:
        self._check_open()
        wrap, tensor, context = LazyTensor._wrap, self._core.tensor, self._context
        try:
            return [wrap(tensor(name), context) for name in names]
        except (TensorNotFoundError, TypeError, UnicodeEncodeError):
            return super()._handles(names)  # raises the error of the first wrong name

    def _note_other_value(self, name: str, error: TensorNotFoundError) -> None:
        """Adds a note if the name is that of a container of tensors, or of another value, rather than of a tensor."""
        import contextlib

        inside = sum(other.startswith(name + ".") for other in self)
        if self._is_in_codes(name):
            error.add_note(
                _Note([_pass("dequantize", "when opening it, for the weight that codes mean", value=True)])
            )
        elif inside:
            error.add_note(f"{name!r} holds {inside} tensor(s): ckpt.select({name + '.*'!r})")
        elif len(self) <= _OBJECT_SEARCH_MAX_TENSORS:
            value: Any = None
            with contextlib.suppress(RustloadError):
                value = self.objects
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            skipped = self._skipped(name)
            if value is not None:
                error.add_note(f"it is in ckpt.objects, of type {type(value).__name__}, not a tensor")
            elif skipped:
                error.add_note(f"{name!r} is skipped: it holds {skipped}, not numbers")

    def _skipped(self, name: str) -> str | None:
        """The class of what is not read under this name, such as `numpy.object_`; None if nothing is known of the name."""
        return next((found.class_name for found in self.opaque if name in found.at), None)

    def _is_in_codes(self, name: str) -> bool:
        """Whether a name that no tensor has is that of a quantized weight."""
        try:
            return any(name == found[0] for found in self._core.quantized_weights())
        except (RustloadError, OSError):
            return False

    def __iter__(self) -> Iterator[str]:
        """The names, in the file's order."""
        if self._names is None:
            self._names = self._core.names()
        return iter(self._names)

    def values(self) -> ValuesView[LazyTensor]:
        """The lazy tensors, in the file's order."""
        return _Values(self)

    def items(self) -> ItemsView[str, LazyTensor]:
        """The names and lazy tensors, in the file's order."""
        return _Items(self)

    def _all_handles(self) -> Iterator[LazyTensor]:
        self._check_open()
        context, tensors, start = self._context, self._core.tensors, 0
        while found := tensors(start, _HANDLES_AT_ONCE):
            for core in found:
                yield new_handle(LazyTensor, core, context)
            start += len(found)

    def __len__(self) -> int:
        """The number of names."""
        return len(self._core)

    def __contains__(self, name: object) -> bool:
        """Whether a tensor has that name."""
        try:
            return isinstance(name, str) and name in self._core
        except UnicodeEncodeError:  # it has surrogates, which no name has
            return False

    @property
    def format(self) -> str:
        """The files' format: `"torch-zip"`, `"safetensors"`, ...; docs/reference/formats.md lists all."""
        return self._core.format

    @property
    def _formats(self) -> set[str]:
        """The formats of all files."""
        return {self._core.format, *self._core.file_formats}

    @property
    def files(self) -> list[str]:
        """The files, in shard order: paths, or URLs without secrets; empty for bytes in memory and an open file or object."""
        return self._core.files

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata in the files: safetensors' `__metadata__`, an index file's `metadata`."""
        return self._core.metadata

    @property
    def notes(self) -> list[str]:
        """Remarks that are not errors, such as checksums that were not verified."""
        return self._core.notes

    @property
    def nbytes(self) -> int:
        """The size in bytes of all storages with tensors, each counted once."""
        return self._core.nbytes

    @property
    def objects(self) -> Any:
        """The whole object tree: containers, numbers and strings, with a LazyTensor for each tensor.

        Values of unknown classes are `rustload.Opaque`, and names of classes and functions are `rustload.Global`; nothing that
        the file names is called. For safetensors and NumPy files it is a dict of the tensors, or what `save` was given with
        `keep_nesting=True`. For several files it is one dict if all roots are dicts, in which dicts within dicts are merged too,
        and of other values the tensor that the index assigns, or else the first file's, is taken; otherwise it is a dict by file
        name, or by path if two names are equal. For a distributed checkpoint it is what was saved; its values are read now, each
        through the same reader as a file.

        Raises:
            LimitError: The tree is nested more deeply than `Limits.depth`, or has too many values.
            FormatError: The record of `keep_nesting=True` is damaged, or does not fit the names (code `Nesting`).
        """
        self._check_open()
        if self._objects is None:

            def wrap(core: _rustload.Tensor) -> LazyTensor:
                return LazyTensor._wrap(core, self._context)

            if self._formats == {"safetensors"}:
                from rustload._checkpoint.nesting import nested

                self._objects = nested(dict(self.items()), self.metadata)
                return self._objects
            if self.format == "torch-dcp":
                from rustload._checkpoint.distributed import object_tree

                self._objects = object_tree(self._core, wrap)
                return self._objects
            trees = self._core.objects(wrap)
            if len(trees) == 1:
                self._objects = trees[0]
            else:
                from rustload._checkpoint.distributed import one_tree

                self._objects = one_tree(self._core, trees)
        return self._objects

    @property
    def tied(self) -> list[list[str]]:
        """Tied weights: the names that share a storage, in groups of two and more."""
        return self._core.tied()

    @property
    def opaque(self) -> list[OpaqueClass]:
        """The classes whose values are kept as inert data, each once, with the paths of their values."""
        from rustload._checkpoint.opaque_class import OpaqueClass

        return [OpaqueClass(*found) for found in self._core.opaque()]

    @property
    def globals(self) -> list[str]:
        """Every class and function that the pickles name, as `module.name`, sorted."""
        return self._core.globals()

    @property
    def framework(self) -> str:
        """The framework of results: `"torch"`, `"numpy"`, `"jax"`, `"cupy"` or `"dlpack"`. Imports nothing."""
        return self._context.framework or adapters.default_framework()

    def _file_name(self, name: str) -> str:
        return name

    def _unknown(self, argument: str | None, name: str) -> BaseException:
        from rustload._common.patterns import unknown_name

        return unknown_name(argument, name, self._core.names())

    def _check_open(self) -> None:
        if self._closed:
            raise _error("Closed", "the checkpoint is closed", "handles taken before go on working")

    def close(self) -> None:
        """Closes the checkpoint for lookups. Existing handles stay valid; the file is closed with the last of them."""
        self._closed = True

    def __enter__(self) -> Checkpoint:
        """The checkpoint itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        """Format, number of tensors and size; reads nothing."""
        files, number = self.files, ""
        what = files[0] if files else self._core.source_name or "bytes"
        if len(files) > 1 or os.path.basename(what) == ".metadata":
            number = f" in {len(files):,} files" if len(files) > 1 else ""
            folder = os.path.dirname(os.path.commonprefix([*files, what]))  # noqa: RUF071 - URLs too
            # Files of several folders, or below the working directory itself, have the first one's name.
            what = what if folder in ("", os.sep) or folder.endswith(":") else folder
        tensors = f"{len(self)} tensor{'s' * (len(self) != 1)}"
        return f"<Checkpoint {what!r} {self.format}{number}, {tensors}, {format_bytes(self.nbytes)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the paths, the options, and the identity of the files: no elements.

        Unpickling opens the checkpoint, once for each process. A file that was changed meanwhile is a FormatError (code
        `FileChanged`).

        Raises:
            TypeError: It was opened from bytes, a file object or a URL, which another process cannot open.
            ValueError: It is closed.
        """
        from rustload._tensor.pickling import origin_of

        self._check_open()
        return restored_checkpoint, (origin_of(self._core, self._context.framework),)

    if not TYPE_CHECKING:  # type checkers must still report unknown attributes

        def __getattr__(self, name: str) -> Any:
            """Raises, with a note on what to use in place of attributes of a state dict or a module."""
            raise self._no_attribute(name)  # not held by a variable: with the frame it would be a cycle

    def _no_attribute(self, name: str) -> AttributeError:
        error = AttributeError(f"'Checkpoint' object has no attribute {name!r}", name=name, obj=self)
        if name == "state_dict":
            error.add_note(
                "ckpt.materialize() is a dict of tensors, rustload.torch.state_dict(ckpt) one of lazy handles"
            )
        elif name in ("load_state_dict", "eval", "parameters", "to", "cuda", "half"):
            error.add_note(
                "a checkpoint is not a model: rustload.torch.load_into(model, ckpt) loads it into one"
            )
        elif note := _HINTS.get(name):
            error.add_note(note)
        return error


_HINTS = {
    "save": "rustload.save(ckpt, path) writes it",
    "scan": "rustload.scan(path) scans the file",
    "load": "ckpt.materialize() reads all tensors, ckpt[name].materialize() one",
    "names": "list(ckpt) has the names",
    "shape": "ckpt[name].shape is that of one tensor",
}


class _Values(ValuesView[LazyTensor]):
    _mapping: Checkpoint

    def __iter__(self) -> Iterator[LazyTensor]:
        return self._mapping._all_handles()


class _Items(ItemsView[str, LazyTensor]):
    _mapping: Checkpoint

    def __iter__(self) -> Iterator[tuple[str, LazyTensor]]:
        return zip(self._mapping, self._mapping._all_handles(), strict=True)


def restored_checkpoint(context: HandleContext) -> Checkpoint:
    """The checkpoint that was pickled; called by unpickling."""
    from rustload._tensor.pickling import opened_core

    return Checkpoint._wrap(opened_core(context), context.framework, context)
