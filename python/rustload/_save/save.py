"""`save`: writes tensors of any framework, and lazy ones, to safetensors files."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rustload import _rustload
from rustload._checkpoint.nesting import NESTING_KEY
from rustload._common.options import filled, takes
from rustload._common.patterns import warn_of_unused_patterns
from rustload._remote.urls import local_path
from rustload._save.folder import write_folder
from rustload._save.job import (
    SHARD_BYTES,
    File,
    Job,
    check_name,
    header_texts,
    packed_names,
    refuse_pickle_name,
    shard_bytes,
    write_options,
)
from rustload._save.nesting import Given
from rustload._save.objects_file import ObjectsFile
from rustload._save.options import SaveOptions
from rustload._save.report import SaveReport
from rustload._save.target import Target, check_objects_path
from rustload._save.ties import TieRule, dropped_names
from rustload._save.watch import watching
from rustload.errors import _error

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable


@takes(SaveOptions)
def save(
    tensors: Any,
    path: Any,
    *,
    name: str = "model",
    keep_nesting: bool = False,
    objects: str | os.PathLike[str] | None = None,
    **options: Unpack[SaveOptions],
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
        name: The name of a folder's files without `.safetensors`: "model" gives `model-00001-of-00002.safetensors`.
        keep_nesting: Keeps a training state: dicts, lists and tuples, and values that are not tensors (None, bool, int, float,
            complex, str, bytes), are recorded in the metadata. `rustload.torch.load` and `Checkpoint.objects` give what was
            saved. Values of a checkpoint that are of other classes are left out, and the report names them.
        objects: A file for the values that are not tensors, as JSON; docs/reference/convert.md has its format.
        **options: What is written, and how (`SaveOptions`).

    Raises:
        FileExistsError: The target exists, and is not to be replaced.
        OSError: The disk is full, or refuses otherwise; what was read back differs from the source (`code` "VerifyFailed");
            another call or process is writing the same target (`code` "TargetBusy").
        TensorNotFoundError: A rule of `dtype` or `transpose` has the name of a tensor that does not exist; a pattern without a
            match emits a `RustloadWarning`.
        TypeError: A value is not a tensor, and not kept otherwise.
        UnsupportedError: A tensor has no form in a safetensors file, such as complex128.
        ValueError: Two tensors would have one name, or are tied and `ties="error"`; or an argument has a wrong value, as
            `metadata` with the record that `keep_nesting` writes.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> report = rustload.save(ckpt, "model.safetensors", dtype="bfloat16")
    >>> report.tensors, rustload.open("model.safetensors")["q.weight"].dtype
    (4, 'bfloat16')
    """
    return save_with((), tensors, path, name=name, keep_nesting=keep_nesting, objects=objects, **options)


def save_with(
    others: Iterable[tuple[str, str]],
    tensors: Any,
    path: Any,
    *,
    name: str,
    keep_nesting: bool = False,
    objects: str | os.PathLike[str] | None = None,
    **options: Unpack[SaveOptions],
) -> SaveReport:
    """As `save`, with other files of a folder: their names and texts."""
    start = time.perf_counter()
    how = filled(save, options)
    rule = TieRule.checked(how["ties"], how["keep"], how["discard"])
    given = Given(tensors, keep_nesting=keep_nesting, keep_objects=objects is not None)
    warn_of_unused_patterns(lambda: given.items, dtype=how["dtype"], transpose=how["transpose"])
    texts = header_texts(how["metadata"])
    own = {} if given.record is None else {NESTING_KEY: given.record}
    if own.keys() & texts.keys():
        text = f"has {NESTING_KEY!r}, which is the record of keep_nesting=True"
        raise _error("Value", text, "leave it out of the metadata", argument="metadata")
    # A tied name is written in full where the header says something else under it.
    taken = {"format": "pt", **texts, **own}
    tied = dropped_names(given.items, given.values, rule)
    dropped = {gone: kept for gone, kept in tied.items() if taken.get(gone, kept) == kept}
    whole = [(gone, text) for gone, text in (dropped | own).items() if gone not in texts]
    job = Job(how)
    remaining = {name: value for name, value in given.items.items() if name not in dropped}
    written = [job.add(name, value, given.values[name]) for name, value in remaining.items()]
    header = [*texts.items(), *whole]
    files: dict[str, int]
    where = "" if hasattr(path, "write") else local_path(path)
    is_file = not where or (where.endswith(".safetensors") and not Path(where).is_dir())
    if is_file:
        _no_shards(how["max_shard_size"], where)
    if how["overwrite"] is None:
        how["overwrite"] = is_file
    file = None
    if objects is not None:
        target = Target(where, is_file=is_file, joins=False)
        check_objects_path(objects, target, overwrite=bool(how["overwrite"]))
        # Those of lazy tensors.
        opened = [core for value in given.items.values() for core in getattr(value, "_files", list)()]
        inputs = {path for core in opened for path in core.files}
        file = ObjectsFile(objects, given.objects.json(), target, inputs, how)
        others = [*others, *file.in_target]
    with file or contextlib.nullcontext(), watching(how, job.nbytes, "saving") as watch:
        writing = write_options(how, watch.report)
        if hasattr(path, "write"):
            nbytes = _rustload.write_object(path, written, metadata=header, options=writing)
            files = {"": nbytes}
        elif is_file:
            nbytes = _rustload.write_file(where, written, metadata=header, options=writing)
            files = {Path(where).name: nbytes}
        else:
            refuse_pickle_name(where)
            stem = f"{check_name(name)}.safetensors"
            size = shard_bytes(how["max_shard_size"]) or SHARD_BYTES
            planned = [File(stem, written, list(texts.items()), f"{stem}.index.json", whole, size)]
            files = write_folder(where, planned, list(others), writing)
        if file is not None:
            file.finish(files)
    return SaveReport(
        path=where,
        files=files,
        tensors=job.tensors,
        nbytes=sum(files.values()),
        dropped=dropped,
        packed=packed_names(remaining),
        converted=job.converted,
        skipped_objects=given.skipped[0],
        skipped_at=given.skipped[1],
        reused=watch.reused,
        kept=tuple(job.kept),
        seconds=time.perf_counter() - start,
    )


def _no_shards(max_shard_size: Any, where: str) -> None:
    if max_shard_size is not None:
        note = (
            f"give a folder: {where.removesuffix('.safetensors')!r}" if where else "give the path of a folder"
        )
        raise _error("Value", "is for the files of a folder", note, argument="max_shard_size")
