"""`save`: writes tensors of any framework, and lazy ones, to safetensors files."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rustload import _rustload
from rustload._common.request import Request
from rustload._common.rules import Rules
from rustload._common.sizes import format_bytes, parse_bytes
from rustload._save.arrays import values_of
from rustload._save.flatten import NESTING_KEY, flatten, skeleton
from rustload._save.ties import Ties, dropped_names
from rustload._tensor.handle import LazyTensor
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rustload._save.arrays import Values

__all__ = ["SaveReport", "save"]


class SaveReport(NamedTuple):
    """What was written.

    Attributes:
        path: The file or the folder; empty for a file object.
        files: The size in bytes of each file, by its name.
        tensors: The number of tensors.
        nbytes: The bytes of all files.
        dropped: The names that were left out because another name has the same tensor, and that name.
        seconds: How long it took.
    """

    path: str
    files: dict[str, int]
    tensors: int
    nbytes: int
    dropped: dict[str, str]
    seconds: float

    def __str__(self) -> str:
        """One line of text."""
        files = f"{len(self.files)} files" if len(self.files) > 1 else "1 file"
        dropped = f", {len(self.dropped)} tied names left out" if self.dropped else ""
        where = f" to {self.path}" if self.path else ""
        return f"wrote {self.tensors} tensors, {format_bytes(self.nbytes)}{where}, {files}{dropped}, in {self.seconds:.1f} s"


class _Info(NamedTuple):
    """What a rule for `dtype=` or `transpose=` reads of an array."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def save(
    tensors: Any,
    path: Any,
    *,
    metadata: Mapping[str, str] | None = None,
    dtype: Any = None,
    transpose: Any = None,
    allow_lossy: bool = False,
    dequantize: bool = False,
    ties: Ties = "copy",
    keep: Iterable[str] = (),
    max_shard_size: int | str | None = None,
    name: str = "model",
    keep_nesting: bool = False,
    overwrite: bool | None = None,
    fsync: bool = True,
    memory: int | str = "256MiB",
    threads: int | None = None,
) -> SaveReport:
    """Writes tensors to a safetensors file, or to a folder of them.

    Nothing appears under the name before everything is written, and a failure leaves what was there. A file that replaces another
    leaves views of the old one intact.

    Args:
        tensors: A mapping from names to tensors: lazy tensors, tensors and arrays of torch, NumPy, JAX and CuPy, and objects with
            `__dlpack__` or the buffer protocol. Nested mappings, lists and tuples are flattened: their keys are joined with dots,
            as `rustload.open` names tensors. A `Checkpoint` is such a mapping.
        path: A file whose name ends with `.safetensors`, a folder, or a binary file object. A folder gets one file, or shards and
            an index.
        metadata: Texts for the header. Without it, `{"format": "pt"}`, which transformers needs.
        dtype: The dtype to convert to: as in `Checkpoint.materialize`, one for all floats, a mapping from glob patterns to
            dtypes, or a callable.
        transpose: The tensors to transpose, in the same forms.
        allow_lossy: Allows casts that change the kind of number, such as float to int.
        dequantize: Dequantizes quantized lazy tensors.
        ties: What to do with names of the same tensor. "copy" writes each in full, so that every name is in the file. "drop"
            writes the first, and records the others in the metadata. "error" raises.
        keep: Names or glob patterns that "drop" prefers.
        max_shard_size: The most bytes of tensors in one file of a folder: an int, or a str such as "5GB". Without it, 50 GB.
        name: The name of a folder's files without `.safetensors`: "model" gives `model-00001-of-00002.safetensors`.
        keep_nesting: Records the nesting in the metadata, so that `rustload.unflatten` restores dicts, lists and tuples exactly.
        overwrite: Whether an existing file or folder is replaced. Other files in a folder are kept. By default a file is
            replaced, a folder with files is not.
        fsync: Waits until the data is on the disk before the file gets its name.
        memory: The most memory for buffers.
        threads: The number of threads; None for one per core.

    Raises:
        FileExistsError: The target exists, and is not to be replaced.
        OSError: The disk is full, or refuses otherwise.
        TypeError: A value is no tensor.
        UnsupportedError: A tensor has no form in a safetensors file, such as complex128.
        ValueError: Two tensors would have one name, or are tied and `ties="error"`; or an argument has a wrong value.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> report = rustload.save(ckpt, "model.safetensors", dtype="bfloat16")
    >>> report.tensors, rustload.open("model.safetensors")["q.weight"].dtype
    (4, 'bfloat16')
    """
    start = time.perf_counter()
    if ties not in ("copy", "drop", "error"):
        raise _make("Value", "Value", f"ties= is 'copy', 'drop' or 'error', not {ties!r}")
    items, values = flattened(tensors)
    texts = _metadata(metadata)
    dropped = dropped_names(items, values, ties, keep)
    for gone, kept in dropped.items():
        texts.setdefault(gone, kept)
    if keep_nesting:
        texts[NESTING_KEY] = skeleton(tensors)
    rules = Rules(dtype=dtype, transpose=transpose)
    plain = Request.checked(
        copy=True, allow_lossy=allow_lossy, dequantize=dequantize, overflow="nan", threads=threads
    )
    written, requests = _requests(
        [name for name in items if name not in dropped], items, values, rules, plain
    )
    options: dict[str, Any] = {"metadata": list(texts.items()), "memory": parse_bytes(memory, "memory")}
    files: dict[str, int]
    if hasattr(path, "write"):
        where, files = "", {"": _rustload.write_object(path, written, requests, **options)}
    else:
        where = os.fsdecode(path)
        options |= {"sync": bool(fsync), "threads": plain.threads}
        if where.endswith(".safetensors") and not Path(where).is_dir():
            _no_shards(max_shard_size, where)
            options["overwrite"] = overwrite is None or bool(overwrite)
            nbytes = _rustload.write_file(where, written, requests, **options)
            files = {Path(where).name: nbytes}
        else:
            _check_folder(where)
            shard = None if max_shard_size is None else parse_bytes(max_shard_size, "max_shard_size")
            options |= {"overwrite": bool(overwrite), "name": name, "max_shard_size": shard}
            files = dict(_rustload.write_folder(where, written, requests, **options))
    return SaveReport(where, files, len(written), sum(files.values()), dropped, time.perf_counter() - start)


def flattened(tensors: Any) -> tuple[dict[str, Any], dict[str, Values]]:
    """Names all tensors of an argument; returns them as they are, and as the extension writes them.

    Raises:
        TypeError: It is no mapping or list, or has a value that is no tensor.
    """
    if not isinstance(tensors, (Mapping, list, tuple)):
        kind = type(tensors).__name__
        raise _make("Type", "Type", f"tensors= is a mapping from names to tensors, not a {kind}")
    items = {name: value for name, (_, value) in flatten(tensors).items()}
    return items, {name: values_of(name, value) for name, value in items.items()}


def _requests(
    names: list[str], items: dict[str, Any], values: dict[str, Values], rules: Rules, plain: Request
) -> tuple[list[tuple[str, Values, int]], list[Request]]:
    """The tensors, each with the number of its request; equal requests are one."""
    numbers: dict[Any, int] = {}
    requests: list[Request] = []
    written = []
    for name in names:
        value, core = items[name], values[name]
        info: Any = value
        is_float = False
        if isinstance(value, LazyTensor):
            is_float = plain.dequantize and value.quantization is not None
            if value.name != name:
                info = _Info(name, value.dtype, value.shape)
        else:
            info = _Info(name, core[0], core[1])  # type: ignore[index]  # a tuple, as the value is no lazy tensor
        dims = rules.transpose(info)
        dtype = rules.dtype(info, is_float=is_float) or ("float32" if is_float else None)
        key = (dtype, tuple(dims) if isinstance(dims, list) else dims)
        if key not in numbers:
            numbers[key] = len(requests)
            requests.append(plain.but(dtype=dtype, transpose=dims))
        written.append((name, core, numbers[key]))
    return written, requests


def _metadata(metadata: Mapping[str, str] | None) -> dict[str, str]:
    if metadata is None:
        return {"format": "pt"}
    given: Mapping[Any, Any] = metadata
    for key, value in given.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise _make("Type", "Type", f"metadata= is texts by texts, not {value!r} at {key!r}")
    return dict(metadata)


def _no_shards(max_shard_size: Any, where: str) -> None:
    if max_shard_size is not None:
        note = f"give a folder: {where.removesuffix('.safetensors')!r}"
        raise _make("Value", "Value", "max_shard_size= divides tensors among the files of a folder", note)


def _check_folder(where: str) -> None:
    path = Path(where)
    if path.suffix.lower() in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        note = f"write {str(path.with_suffix('.safetensors'))!r}"
        raise _make("Value", "Value", f"rustload writes no pickles, and {where!r} is the name of one", note)
