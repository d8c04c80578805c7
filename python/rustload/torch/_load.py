"""`load`: the result of `torch.load(weights_only=True)`, without running a pickle."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any, Literal

from rustload._checkpoint.distributed import one_tree
from rustload._checkpoint.nesting import NESTING_KEY, nested
from rustload._remote.folder import ObjectFolder
from rustload._remote.resolve import remote_source
from rustload._safe_open.surface import safe_open
from rustload.errors import FormatError, UnsupportedError, _check_one_of, _error
from rustload.torch import _allowed, _files, _load_errors
from rustload.torch._build import Builder
from rustload.torch._locations import storages

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from rustload import _rustload
    from rustload._rustload import Limits
    from rustload.torch._locations import MapLocation

# Formats whose values are a flat dict: what is inert in them has no place in it.
_WITHOUT_TREE = ("npz", "torch-export")

_TRUE = ("1", "y", "yes", "true")

# The global by which torch pickles a storage outside of `torch.save` (torch/storage.py: `__reduce__`).
_STORAGE = "torch.storage._load_from_bytes"


def load(
    f: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | IO[bytes] | bytes | bytearray | memoryview,
    map_location: MapLocation = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    unknown: Literal["keep", "error"] = "keep",
    limits: Limits | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Loads a file of `torch.save` and returns what `torch.load(weights_only=True)` returns; nothing that it names is called.

    A plain pickle of tensors, which torch rejects, loads too. A safetensors file of `rustload.save(..., keep_nesting=True)` gives
    the nested state that was saved; any other, a dict of its tensors.

    >>> import rustload.torch
    >>> state = rustload.torch.load("model.pt", map_location="cpu")
    >>> state["q.weight"].shape
    torch.Size([8, 8])

    Args:
        f: A path, also of a folder or an index of shards, or a list of shards; a binary file that can seek; the bytes of a
            file; or a URL or an object that is read by ranges, as for `rustload.open`. An open file is read from its current
            position.
        map_location: The device of storages, in all forms of torch: None for the device that they were saved from, a device or
            its name, a dict from saved to new locations, or a callable `(storage, location)` that is called once per storage.
            With `"meta"`, no tensor data is read, and each storage has its offset in the file as `_checkpoint_offset`.
        pickle_module: Must be None, because no pickle is run.
        weights_only: True or None. Use `unknown` to choose what happens to objects that torch rejects. It has no effect for a
            path that ends in `.safetensors`, for which False is accepted.
        mmap: Whether tensors are views of the file (a private copy-on-write mapping): pages are read when they are used, and the
            file must not be truncated while the tensors exist. None: as `torch.utils.serialization.config.load.mmap`, which is
            False by default. With False, tensors own their memory.
        unknown: What to do with objects that torch rejects: `"keep"` keeps them as inert `rustload.Opaque` and `rustload.Global`
            with their contents, `"error"` raises as torch does.
        limits: Upper bounds on the memory and work that the file can cause.
        **pickle_load_args: `encoding` is that of strings of Python 2: a codec, or `"bytes"` to keep them as bytes. None is given:
            UTF-8, and bytes where they are not; torch fails on those. As in torch, there is a warning.

    Returns:
        The object.

    Raises:
        DisallowedError: The file names an object that torch would reject, and `unknown="error"`. It is a
            `pickle.UnpicklingError`, and its message begins with `Weights only load failed.`
        ValueError: `weights_only=False`, or `mmap=True` without a path.
        RuntimeError: As in torch: the device does not exist, `mmap=True` for a legacy file, or a TorchScript archive.
        FormatError: The file is not a checkpoint, or is damaged; the record of a nested state too (code `Nesting`). It is
            also an EOFError if nothing is left of an open file.
        LimitError: The file exceeds a limit, or it is a pipe or another object that is not a regular file, and larger than half
            of the available memory.
        OSError: The file cannot be read.
    """
    _check_one_of("unknown", unknown, ("keep", "error"))
    f = remote_source(f)
    name = f.name if hasattr(f, "read_ranges") else os.fspath(f) if _files.is_path(f) else ""  # type: ignore[arg-type,union-attr]
    is_safetensors = str(name).endswith(".safetensors")
    _check_weights_only(weights_only=weights_only, pickle_module=pickle_module, unpickles=not is_safetensors)
    for name in pickle_load_args:
        if name != "encoding":
            raise TypeError(f"load() got an unexpected keyword argument {name!r}")
    if pickle_load_args:
        warnings.warn("pickle_load_args only works if `weights_only=False`.", stacklevel=2)
    if mmap is None:
        mmap = _mmap_by_default()
    if is_safetensors:
        return _safetensors(f, map_location, limits, mmap=mmap)
    encoding = pickle_load_args.get("encoding")
    return _load_pickled(
        f, map_location, mmap=mmap, strict=unknown == "error", limits=limits, encoding=encoding
    )


def _check_weights_only(*, weights_only: bool | None, pickle_module: Any, unpickles: bool) -> None:
    """Checks the arguments and environment variables as torch/serialization.py: `load` does, in its order.

    Raises:
        RuntimeError: torch rejects the arguments.
        ValueError: With these arguments, torch would run the pickle.
    """
    force, forbid = (
        os.environ.get(name, "0").lower() in _TRUE
        for name in ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    )
    is_safe = pickle_module is None if weights_only is None else bool(weights_only)
    if force and forbid:
        raise RuntimeError(
            "Only one of `TORCH_FORCE_WEIGHTS_ONLY_LOAD` or `TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD` "
            "should be set, but both were set."
        )
    if force:
        is_safe = True
    elif forbid and weights_only is None:
        is_safe = False
    if is_safe and pickle_module is not None:
        raise RuntimeError("Can not safely load weights when explicit pickle_module is specified")
    if is_safe or not unpickles:
        return
    what, advice = "weights_only=False", "leave weights_only out"
    if pickle_module is not None:
        what = "pickle_module="
        advice = (
            "leave pickle_module out" if weights_only is None else "leave pickle_module and weights_only out"
        )
    elif weights_only is None:
        advice = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD in the environment stands for it: unset it, or pass weights_only=True"
    raise _error(
        "Value",
        f"{what} would run code that the file names, which rustload never does",
        f"{advice}; what torch refuses is then kept as inert data (unknown='keep', the default)",
    )


def _mmap_by_default() -> bool:
    try:
        from torch.utils.serialization import config
    except ImportError:  # torch before 2.7
        return False
    return bool(config.load.mmap)


def _safetensors(f: Any, map_location: MapLocation, limits: Limits | None, *, mmap: bool) -> Any:
    """Loads a safetensors file as `safetensors.torch.load_file` does, which torch calls for such paths; restores a nesting.

    The tensors of a nesting own their memory, unless `mmap` is True: an optimizer keeps them, and LBFGS sums in another order if
    they are not aligned as torch aligns its own.
    """
    if isinstance(map_location, dict) or callable(map_location):
        what = "dict" if isinstance(map_location, dict) else "callable"
        raise RuntimeError(
            f"Loading safetensors file with {what} map_location is not supported. "
            "Use a device string or torch.device instead."
        )
    device = "cpu" if map_location is None else str(map_location)
    path = f if hasattr(f, "read_ranges") else os.fspath(f)
    with safe_open(path, framework="pt", device=device, limits=limits) as file:
        metadata = file.metadata() or {}
        if NESTING_KEY in metadata and not mmap:
            return nested(file._opened().materialize(device=device, copy=True), metadata)
        return nested(file.get_tensors(), metadata)


def _load_pickled(
    f: Any, map_location: MapLocation, *, mmap: bool, strict: bool, limits: Limits | None, encoding: Any
) -> Any:
    is_read_at_once = isinstance(f, (bytes, bytearray, memoryview, ObjectFolder)) or hasattr(f, "read_ranges")
    if not _files.are_paths(f) and not is_read_at_once:
        f = _files.seekable(f)
    start = f.tell() if hasattr(f, "tell") else None
    if mmap and not _files.is_archive(f):
        raise _load_errors.no_archive(f)
    try:
        core = _files.opened(f, limits)
    except UnsupportedError as error:
        if error.code == "TarUnsupported":
            raise _load_errors.tar() from error
        raise
    except FormatError as error:
        if start is not None and _files.is_at_end(f, start):
            raise _load_errors.at_end(error) from None
        raise
    formats = {core.format, *core.file_formats}
    if "torch-tar" in formats and strict:
        raise _load_errors.tar()
    if core.format == "pickle" and (strict or _STORAGE not in core.globals_of(0)):
        # torch reads a magic number here, with its restricted unpickler.
        _check_globals(core, 0, keep=False)
        with _files.read_again(f, start) as file:
            raise _load_errors.no_magic(file)
    if core.format == "torch-dcp":
        raise _load_errors.is_distributed()
    if core.is_torchscript:
        raise _load_errors.is_torchscript()
    if mmap and not _files.are_paths(f):
        raise _load_errors.no_path()
    if strict and not formats.isdisjoint(_WITHOUT_TREE):
        for class_name, _, _ in core.opaque():
            _load_errors.refuse_class(class_name)
    trees = []
    for shard in range(core.shards):
        if strict:
            _check_globals(core, shard)
        made = storages(core, shard, map_location, mmap=mmap)
        trees.append(core.rebuild(shard, Builder(made, strict=strict, encoding=encoding)))
    if start is not None:
        _files.seek_past(f, start, core)
    tree = one_tree(core, trees)
    return nested(tree, core.metadata) if formats == {"safetensors"} else tree


def _check_globals(core: _rustload.Checkpoint, shard: int, *, keep: bool = True) -> None:
    """Raises for the first global of a file that is not on torch's allowlist.

    Raises:
        DisallowedError: There is one.
    """
    for name in core.globals_of(shard):
        if name not in _allowed.NAMES:
            _load_errors.refuse_global(name, keep=keep)
