"""`open` and `Checkpoint`: the way in."""

from __future__ import annotations

import builtins
import difflib
import errno
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rustload import _frameworks, _rustload
from rustload._tensor import LazyTensor, Shared, _size
from rustload.errors import _make

if TYPE_CHECKING:
    from types import TracebackType

    from rustload._limits import Limits

__all__ = ["Checkpoint", "OpaqueClass", "open"]

StrPath: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]


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
        return LazyTensor._wrap(self._core.tensor(name), self._shared)

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
        return [os.fspath(path) for path in self._core.files]

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
                self._objects = {Path(path).name: tree for path, tree in zip(self.files, trees, strict=True)}
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
        """What `materialize` makes: `"torch"`, `"numpy"` or `"dlpack"`; asking imports nothing."""
        return self._shared.framework or _frameworks.default()

    def select(self, pattern: str) -> dict[str, LazyTensor]:
        """The tensors whose names match a glob pattern, as a dict.

        Args:
            pattern: As in `fnmatch`: `*` matches any characters, dots too; `?` one; `[ab]` one of them. Case counts.
        """
        return {name: self[name] for name in self if fnmatchcase(name, pattern)}

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
        return f"<Checkpoint {what!r} {self.format}, {len(self)} tensors, {_size(self.nbytes)}>"

    def __reduce__(self) -> Any:
        """Checkpoints do not pickle."""
        raise TypeError("a checkpoint does not pickle; open it again instead")


def open(
    path: StrPath | Iterable[StrPath] | bytes | bytearray | memoryview | io.BytesIO,
    *,
    framework: Literal["torch", "numpy", "dlpack"] | None = None,
    unknown: Literal["keep", "error"] = "keep",
    verify: bool = False,
    limits: Limits | None = None,
    compat: bool = False,
    trailing: Literal["error", "ignore"] = "error",
) -> Checkpoint:
    """Opens a checkpoint: reads its metadata, and nothing that it names is imported, called or built.

    Args:
        path: A file, a directory, an index file (`*.index.json`), a list of shards; or the bytes of one file in memory, as a
            `bytearray`, `memoryview` or `BytesIO`, or as `bytes` that are no path.
        framework: What `materialize` makes: `"torch"`, `"numpy"` or `"dlpack"`. None: torch if it is installed, else NumPy, else
            plain buffers; settled at the first materialize.
        unknown: `"keep"` keeps values of unknown classes as inert data, `"error"` refuses the file.
        verify: Whether the checksums of all storages are checked now, which reads the whole file. Archives only.
        limits: Bounds on what the file may make the reader do.
        compat: Whether duplicate keys in a safetensors header are accepted as by the reference reader: the last wins.
        trailing: Whether bytes after the end of an archive or its pickle are an error or passed over.

    Returns:
        The checkpoint, a mapping from names to lazy tensors.

    Raises:
        FormatError: The file is no checkpoint, or a damaged one.
        UnsupportedError: The file is of a kind that is not read yet.
        DisallowedError: The pickle names something unknown, and `unknown="error"`.
        LimitError: The file is beyond a limit.
        OSError: The file cannot be read.
        TypeError: `path` is neither a path nor bytes; open files are not taken.
    """
    if framework is not None and framework not in _frameworks.NAMES:
        raise _make("Value", "Value", f"framework {framework!r} is not one of {', '.join(_frameworks.NAMES)}")
    given = {} if limits is None else limits._given()
    data = _contents(path)
    if data is not None:
        core = _rustload.open_bytes(
            data, unknown=unknown, trailing=trailing, compat=compat, verify=verify, limits=given
        )
    else:
        core = _rustload.open_paths(
            _paths(path), unknown=unknown, trailing=trailing, compat=compat, verify=verify, limits=given
        )
    return Checkpoint._wrap(core, framework)


def _contents(given: Any) -> bytes | None:
    """The bytes of a file in memory, or None for what is a path. Bytes that are short and without zeros are a path."""
    if isinstance(given, io.BytesIO):
        given = given.getbuffer()
    if isinstance(given, (bytearray, memoryview)):
        return builtins.bytes(given)
    if isinstance(given, bytes) and not (0 < len(given) < 4096 and b"\0" not in given):
        return given
    return None


def _paths(given: Any) -> list[str]:
    if isinstance(given, (str, bytes, os.PathLike)):
        paths = [given]
    elif isinstance(given, Iterable) and not hasattr(given, "read"):
        paths = list(given)
    else:
        note = "for an open file, pass its path (its .name); for bytes in memory, a bytearray, a memoryview or a BytesIO"
        raise _make("Type", "Type", f"path is a {type(given).__name__}, not a path or a list of paths", note)
    for one in paths:
        if not isinstance(one, (str, bytes, os.PathLike)):
            raise _make("Type", "Type", f"the list of paths holds a {type(one).__name__}")
        try:
            Path(os.fsdecode(one)).stat()
        except FileNotFoundError:
            raise _missing(Path(os.fsdecode(one))) from None
        except OSError:
            pass  # the core says what is wrong
    return [os.fsdecode(one) for one in paths]


def _missing(path: Path) -> BaseException:
    """The error for a path that is not there, with a near name beside it, or what the path may have been meant to be."""
    error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    error.code = "Io"  # type: ignore[attr-defined]  # every error of ours has one
    try:
        near = difflib.get_close_matches(
            path.name, [one.name for one in path.parent.iterdir()], n=3, cutoff=0.8
        )
    except OSError:
        near = []
    if path.is_symlink():
        error.add_note(f"it is a symbolic link to {os.fsdecode(path.readlink())}, which is not there")
    elif near:
        error.add_note(f"near names there: {', '.join(near)}")
    elif path.parts[:1] == ("~",):
        error.add_note("~ is not expanded here: use os.path.expanduser")
    elif not path.is_absolute() and len(path.parts) <= 2 and not path.suffix:
        error.add_note(
            "nothing is downloaded: if this names a model of a hub, download it first and pass its folder"
        )
    else:
        error.add_note(f"the working directory is {Path.cwd()}; check the spelling")
    return error
