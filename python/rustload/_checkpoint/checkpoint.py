"""`Checkpoint`: an opened checkpoint, its names, and the verbs for many tensors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rustload._checkpoint.requests import listed
from rustload._checkpoint.requests import stream as _stream
from rustload._common.patterns import check_rules, is_name, matches, tell, unknown_name
from rustload._common.sizes import format_bytes
from rustload._frameworks import adapters
from rustload._frameworks.adapters import Shared
from rustload._tensor.handle import LazyTensor
from rustload.errors import RustloadError, TensorNotFoundError, _make

if TYPE_CHECKING:
    from types import TracebackType

    from rustload import _rustload
    from rustload._checkpoint.requests import Order
    from rustload._checkpoint.stream import Stream
    from rustload._common.progress import Progress
    from rustload._common.request import Cast, Overflow

__all__ = ["Checkpoint", "OpaqueClass"]

_SEARCHED = 10_000
"""Tensors up to which a look-up that failed goes through the object tree."""


class OpaqueClass(NamedTuple):
    """A class whose values are kept as data.

    Attributes:
        class_name: `module.name`, as the pickle spells it.
        count: How many values there are.
        at: The dotted names of the first few.
    """

    class_name: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs here
    at: list[str]


class Checkpoint(Mapping[str, LazyTensor]):
    """An opened checkpoint: a read-only mapping from names to lazy tensors, in the file's order.

    Use it with `with` or not: tensors and handles outlive it.

    >>> import rustload
    >>> with rustload.open("model.pt") as ckpt:
    ...     for name, t in ckpt.items():
    ...         print(name, t.dtype, t.shape)
    q.weight float32 (8, 8)
    k.weight float32 (8, 8)
    v.weight float32 (8, 8)
    lm_head.weight float32 (8, 8)
    """

    __slots__ = ("_closed", "_core", "_names", "_objects", "_shared")

    _core: _rustload.Checkpoint
    _names: list[str] | None
    _objects: Any
    _shared: Shared
    _closed: bool

    def __init__(self) -> None:
        """Not for users: `rustload.open` makes checkpoints.

        Raises:
            TypeError: Always.
        """
        raise TypeError("checkpoints are opened: rustload.open(path)")

    @classmethod
    def _wrap(cls, core: _rustload.Checkpoint, framework: str | None) -> Checkpoint:
        made = cls.__new__(cls)
        made._core = core
        made._names = None
        made._objects = None
        made._shared = Shared(framework)
        made._closed = False
        return made

    def __getitem__(self, name: str) -> LazyTensor:
        """The lazy tensor of that name.

        Raises:
            TensorNotFoundError: No tensor has that name; the note gives near ones.
            ValueError: The checkpoint is closed.
        """
        self._check_open()
        if not isinstance(name, str):
            raise TypeError(f"tensor names are str, not {type(name).__name__}")
        try:
            return LazyTensor._wrap(self._core.tensor(name), self._shared)
        except TensorNotFoundError as error:
            self._say_where(name, error)
            raise

    def _say_where(self, name: str, error: TensorNotFoundError) -> None:
        """A note for names that are there and are no tensor: what holds tensors, and plain values."""
        inside = sum(other.startswith(name + ".") for other in self)
        if inside:
            error.add_note(f"{name!r} holds {inside} tensor(s): ckpt.select('{name}.*')")
        elif len(self) <= _SEARCHED:
            value: Any = None
            with contextlib.suppress(RustloadError):
                value = self.objects
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if value is not None:
                error.add_note(f"ckpt.objects has it: it is of type {type(value).__name__}, and no tensor")

    def get(self, name: str, default: Any = None) -> Any:
        """The lazy tensor of that name, or `default`; a miss costs no search for near names."""
        return self[name] if name in self else default  # noqa: SIM401 - this is the get() that it asks for

    def __iter__(self) -> Iterator[str]:
        """The names, in the file's order."""
        if self._names is None:
            self._names = self._core.names()
        return iter(self._names)

    def __len__(self) -> int:
        """The number of names."""
        return len(self._core)

    def __contains__(self, name: object) -> bool:
        """Whether a tensor has that name."""
        return isinstance(name, str) and name in self._core

    @property
    def format(self) -> str:
        """`"torch-zip"`, `"torch-legacy"`, `"pickle"` or `"safetensors"`."""
        return self._core.format

    @property
    def files(self) -> list[str]:
        """The files, in shard order; empty for bytes in memory."""
        return self._core.files

    @property
    def metadata(self) -> dict[str, str]:
        """The files' own metadata: safetensors' `__metadata__`, an index file's `metadata`."""
        return self._core.metadata

    @property
    def notes(self) -> list[str]:
        """Things worth knowing that are no error, such as checksums that were not computed."""
        return self._core.notes

    @property
    def nbytes(self) -> int:
        """Bytes of all storages that tensors lie in, each counted once."""
        return self._core.nbytes

    @property
    def objects(self) -> Any:
        """The whole object tree: containers, numbers and texts, with a LazyTensor for each tensor.

        Values of classes that are kept as data are `rustload.Opaque`, names of classes and functions are `rustload.Global`.
        Nothing in it was made by calling anything. For safetensors it is a dict of the tensors; several pickles whose roots are
        dicts are merged, other several files are a dict by file name.

        Raises:
            LimitError: The tree is nested more deeply than `Limits.depth`, or has too many values.
            FormatError: A tuple contains itself, which no Python object can (code `CyclicValue`).
        """
        self._check_open()
        if self._objects is None:
            trees = self._core.objects(lambda core: LazyTensor._wrap(core, self._shared))
            if len(trees) == 1:
                self._objects = trees[0]
            elif all(isinstance(tree, dict) for tree in trees):
                self._objects = {key: value for tree in trees for key, value in tree.items()}
            else:
                names = [path.rpartition(os.sep)[2] for path in self.files]
                self._objects = dict(zip(names, trees, strict=True))
        return self._objects

    @property
    def tied(self) -> list[list[str]]:
        """The names that share a storage, in groups of two and more."""
        return self._core.tied()

    @property
    def opaque(self) -> list[OpaqueClass]:
        """The classes whose values were kept as data, each once, with where they sit."""
        return [OpaqueClass(*found) for found in self._core.opaque()]

    @property
    def globals(self) -> list[str]:
        """Every class and function that the pickles name, as `module.name`, sorted."""
        return self._core.globals()

    @property
    def framework(self) -> str:
        """What `materialize` makes: `"torch"`, `"numpy"`, `"jax"`, `"cupy"` or `"dlpack"`; asking imports nothing."""
        return self._shared.framework or adapters.default()

    def select(self, pattern: str) -> dict[str, LazyTensor]:
        """The tensors whose names match a glob pattern, as a dict.

        Args:
            pattern: As in `fnmatch`: `*` matches any characters, dots too; `?` one; `[ab]` one of them. Case counts.

        Raises:
            TensorNotFoundError: The pattern has none of these, and no tensor has that name. A pattern that matches none is a
                `RustloadWarning`.
        """
        found = {name: self[name] for name in self if matches(name, pattern)}
        if not found and is_name(pattern):
            raise unknown_name("the selection", pattern, self._core)
        if not found:
            tell(f"no name matches {pattern!r}", pattern, self)
        return found

    def stream(
        self,
        names: Iterable[str] | None = None,
        device: Any = None,
        dtype: Any = None,
        transpose: Any = None,
        *,
        memory: int | str = "256MiB",
        order: Order = "file",
        progress: Progress = None,
        threads: int | None = None,
        copy: bool | None = None,
        framework: str | None = None,
        allow_lossy: bool = False,
        dequantize: bool = False,
        overflow: Overflow = "nan",
        cast: Cast = "auto",
        sync: bool = True,
    ) -> Stream:
        """Gives tensors one after the other, reading and casting the next ones while you work on the last.

        >>> import rustload
        >>> ckpt = rustload.open("model.pt")
        >>> for name, tensor in ckpt.stream(dtype="bfloat16", transpose={"lm_head.*": True}):
        ...     print(name, tensor.dtype)
        q.weight torch.bfloat16
        k.weight torch.bfloat16
        v.weight torch.bfloat16
        lm_head.weight torch.bfloat16

        Nothing is read, and no thread started, before the first is asked for. A stream that is dropped or closed stops its
        work and frees what it holds. Names that are tied, and made the same way, are given one object; the stream keeps it
        until the last of them.

        Args:
            names: Which tensors, as a list of names or what `select` gives; None for all.
            device: As for `LazyTensor.materialize`.
            dtype: A dtype, a callable from handle to dtype, or a mapping from glob patterns to dtypes. A plain one applies to
                float64, float32, float16 and bfloat16 tensors only; others change only by a rule that names them.
            transpose: A callable or a mapping to True (the last two dimensions swapped), a tuple of dimensions, or None.
            memory: Bytes that rustload may hold beyond what you do: results that are being made or wait for you, memory of
                dropped ones that is kept for the next, and scratch. A number, or a text such as `"256MiB"`. A tensor that is
                larger is made alone.
            order: `"file"` gives them as they lie in the file, and of several shards some at a time from each; `"name"` sorts by
                name; `"given"` keeps the order of `names`, or the checkpoint's.
            progress: True for a bar on stderr, or a callable that gets bytes done, bytes in total, and the name; None is silent.
            threads: Threads to use; None for one per core where the work is worth it.
            copy: As for `LazyTensor.materialize`: None gives views where nothing is converted.
            framework: As for `LazyTensor.materialize`.
            allow_lossy: As for `LazyTensor.materialize`.
            dequantize: As for `LazyTensor.materialize`; a plain dtype is for the numbers of quantized tensors too, then.
            overflow: As for `LazyTensor.materialize`.
            cast: As for `LazyTensor.materialize`.
            sync: As for `LazyTensor.materialize`: whether each tensor on a GPU is complete when it is given.

        Returns:
            A `Stream`: an iterator over names and tensors that says how many are left, and may be closed or used with `with`.

        Raises:
            TensorNotFoundError: One of `names` is not there.
            ValueError: The transpose is a plain value, a cast is lossy, the stream was begun before a fork (code `Forked`), or
                an argument does not fit.
            KeyboardInterrupt: Ctrl-C, within a tenth of a second.
            RustloadError: As for `LazyTensor.materialize`; the message or a note names the tensor.
        """
        self._check_open()
        check_rules(self._core, dtype=dtype, transpose=transpose)
        framework = None if framework is None else adapters.named(framework)
        return _stream(
            self,
            names,
            device=device,
            dtype=dtype,
            transpose=transpose,
            memory=memory,
            order=order,
            progress=progress,
            threads=threads,
            copy=copy,
            framework=framework,
            shared=self._shared,
            allow_lossy=allow_lossy,
            dequantize=dequantize,
            overflow=overflow,
            whole=False,
            cast=cast,
            sync=sync,
        )

    def materialize(
        self,
        names: Iterable[str] | None = None,
        device: Any = None,
        dtype: Any = None,
        transpose: Any = None,
        *,
        memory: int | str = "256MiB",
        progress: Progress = None,
        threads: int | None = None,
        copy: bool | None = None,
        framework: str | None = None,
        allow_lossy: bool = False,
        dequantize: bool = False,
        overflow: Overflow = "nan",
        cast: Cast = "auto",
        sync: bool = True,
    ) -> dict[str, Any]:
        """Reads tensors and gives them as a dict, in the order of `names` or the checkpoint's.

        >>> import rustload
        >>> state = rustload.open("model.pt").materialize(dtype="bfloat16")
        >>> state["q.weight"].dtype
        torch.bfloat16

        Memory peaks at the result and the window. Tied names that are made the same way are one object. Where nothing is
        converted, the tensors may be views of the file: pass `copy=True` if it is going to be overwritten, as by `torch.save`
        over the same path, which ends the process or changes them.

        Args:
            names: As for `stream`, and so are all others.
            device: As for `stream`.
            dtype: As for `stream`.
            transpose: As for `stream`.
            memory: As for `stream`.
            progress: As for `stream`.
            threads: As for `stream`.
            copy: As for `stream`.
            framework: As for `stream`.
            allow_lossy: As for `stream`.
            dequantize: As for `stream`.
            overflow: As for `stream`.
            cast: As for `stream`.
            sync: Whether tensors on a GPU are complete when the dict is given.

        Raises:
            RustloadError: As for `stream`.
        """
        self._check_open()
        check_rules(self._core, dtype=dtype, transpose=transpose)
        framework = None if framework is None else adapters.named(framework)
        chosen = listed(self, names)
        found = dict(
            _stream(
                self,
                chosen,
                device=device,
                dtype=dtype,
                transpose=transpose,
                memory=memory,
                order="file",
                progress=progress,
                threads=threads,
                copy=copy,
                framework=framework,
                shared=self._shared,
                allow_lossy=allow_lossy,
                dequantize=dequantize,
                overflow=overflow,
                whole=True,
                cast=cast,
                sync=sync,
            )
        )
        return {name: found[name] for name in chosen}

    def _check_open(self) -> None:
        if self._closed:
            raise _make("Value", "Closed", "the checkpoint is closed", "handles taken before go on working")

    def close(self) -> None:
        """Ends look-ups. Handles taken before go on working; the file is closed with the last of them."""
        self._closed = True

    def __enter__(self) -> Checkpoint:
        """The checkpoint itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes it."""
        self.close()

    def __repr__(self) -> str:
        """Format, number of tensors and size; reads nothing."""
        what = (
            self.files[0] if len(self.files) == 1 else f"{len(self.files)} files" if self.files else "bytes"
        )
        return f"<Checkpoint {what!r} {self.format}, {len(self)} tensors, {format_bytes(self.nbytes)}>"

    def __reduce__(self) -> Any:
        """Checkpoints do not pickle."""
        error = TypeError("a checkpoint does not pickle; open it again instead")
        error.add_note(
            "in a worker of a DataLoader or a pool, open the path there; a forked worker may use what its parent opened"
        )
        raise error

    if not TYPE_CHECKING:  # type checkers are to go on seeing what is not there

        def __getattr__(self, name: str) -> Any:
            """Says what to use in the place of what a dict or a module would have."""
            error = AttributeError(f"'Checkpoint' object has no attribute {name!r}", name=name, obj=self)
            if name == "state_dict":
                error.add_note(
                    "ckpt.materialize() is a dict of tensors, rustload.torch.state_dict(ckpt) one of lazy handles"
                )
            elif name in ("load_state_dict", "eval", "parameters", "to", "cuda", "half"):
                error.add_note(
                    "it holds tensors and no model: rustload.torch.load_into(model, ckpt) fills one"
                )
            raise error
