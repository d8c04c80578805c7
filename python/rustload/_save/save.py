"""`save`: writes tensors of any framework, and lazy ones, to safetensors files."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._common.patterns import warn_user
from rustload._common.request import Request
from rustload._common.rules import Rules
from rustload._save.flatten import NESTING_KEY, skeleton
from rustload._save.job import (
    SHARD_BYTES,
    File,
    Job,
    check_name,
    flattened,
    header_texts,
    packed_names,
    refuse_pickle_name,
    shard_bytes,
    write_options,
)
from rustload._save.report import SaveReport
from rustload._save.ties import TieRule, Ties, dropped_names
from rustload._save.watch import watching
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rustload._common.progress import Progress

__all__ = ["save", "save_with"]


def save(
    tensors: Any,
    path: Any,
    *,
    metadata: Mapping[str, str] | None = None,
    dtype: Any = None,
    transpose: Any = None,
    allow_lossy: bool = False,
    dequantize: bool = False,
    ties: Ties = "auto",
    keep: Iterable[str] = (),
    discard: Iterable[str] = (),
    max_shard_size: int | str | None = None,
    name: str = "model",
    keep_nesting: bool = False,
    overwrite: bool | None = None,
    fsync: bool = True,
    verify: bool = False,
    resume: bool = False,
    progress: Progress = None,
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
        ties: What to do with names of the same tensor. "auto" and "copy" write each in full, so that every name is in the file.
            "drop" writes the first, and records the others in the metadata. "error" raises.
        keep: Names or glob patterns that "drop" prefers; without "drop", as with it.
        discard: Names or glob patterns that "drop" leaves out where another name is written; as `keep`.
        max_shard_size: The most bytes of tensors in one file of a folder: an int, or a str such as "5GB". Without it, 50 GB.
        name: The name of a folder's files without `.safetensors`: "model" gives `model-00001-of-00002.safetensors`.
        keep_nesting: Records the nesting in the metadata, so that `rustload.unflatten` restores dicts, lists and tuples exactly.
        overwrite: Whether an existing file or folder is replaced. Other files in a folder are kept. By default a file is
            replaced, a folder with files is not.
        fsync: Waits until the data is on the disk before the file gets its name.
        verify: Reads every byte back, from the disk if possible, and compares it with the source, which is read and converted
            again, before the file gets its name. Waits for the disk also with `fsync=False`.
        resume: Keeps what is written, in a folder beside the target, if the process is killed or the call fails. The same call
            later writes only what is missing, if no source and no argument that decides the bytes has changed; otherwise it
            starts anew. Only lazy tensors of files are reused: arrays of frameworks are written again.
        progress: A progress display, as for `Checkpoint.stream`: True, or a callback `(bytes done, total bytes, name)`, which is
            called on this thread, several times for a large tensor. With `verify`, every byte counts twice; reused ones count as
            done.
        memory: The most memory for buffers; less where a quarter of what the cgroup's limit and RLIMIT_DATA leave is less.
        threads: The number of threads; None for one per core.

    Raises:
        FileExistsError: The target exists, and is not to be replaced.
        OSError: The disk is full, or refuses otherwise; what was read back differs from the source (`code` "VerifyFailed");
            another call or process is writing the same target (`code` "TargetBusy").
        TypeError: A value is no tensor.
        UnsupportedError: A tensor has no form in a safetensors file, such as complex128.
        ValueError: Two tensors would have one name, or are tied and `ties="error"`; or an argument has a wrong value.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> report = rustload.save(ckpt, "model.safetensors", dtype="bfloat16")
    >>> report.tensors, rustload.open("model.safetensors")["q.weight"].dtype
    (4, 'bfloat16')
    """
    return save_with(
        (),
        tensors,
        path,
        metadata=metadata,
        dtype=dtype,
        transpose=transpose,
        allow_lossy=allow_lossy,
        dequantize=dequantize,
        ties=ties,
        keep=keep,
        discard=discard,
        max_shard_size=max_shard_size,
        name=name,
        keep_nesting=keep_nesting,
        overwrite=overwrite,
        fsync=fsync,
        verify=verify,
        resume=resume,
        progress=progress,
        memory=memory,
        threads=threads,
    )


def save_with(
    others: Iterable[tuple[str, str]],
    tensors: Any,
    path: Any,
    *,
    metadata: Mapping[str, str] | None,
    dtype: Any,
    transpose: Any,
    allow_lossy: bool,
    dequantize: bool,
    ties: Ties,
    keep: Iterable[str],
    discard: Iterable[str],
    max_shard_size: int | str | None,
    name: str,
    keep_nesting: bool,
    overwrite: bool | None,
    fsync: bool,
    verify: bool,
    resume: bool,
    progress: Progress,
    memory: int | str,
    threads: int | None,
) -> SaveReport:
    """As `save`, with other files of a folder: their names and texts."""
    start = time.perf_counter()
    rule = TieRule.checked(ties, keep, discard)
    items, values = flattened(tensors)
    texts = header_texts(metadata)
    dropped = dropped_names(items, values, rule)
    if keep_nesting:
        texts[NESTING_KEY] = skeleton(tensors)
    whole = [(gone, kept) for gone, kept in dropped.items() if gone not in texts]
    plain = Request(copy=True, allow_lossy=allow_lossy, dequantize=dequantize, threads=threads)
    job = Job(Rules(dtype=dtype, transpose=transpose), plain)
    remaining = {name: value for name, value in items.items() if name not in dropped}
    written = [job.add(name, value, values[name]) for name, value in remaining.items()]
    header = [*texts.items(), *whole]
    files: dict[str, int]
    with watching(progress, job.nbytes, "saving", verify=bool(verify), resume=bool(resume)) as watch:
        where = "" if hasattr(path, "write") else os.fsdecode(path)
        is_file = where.endswith(".safetensors") and not Path(where).is_dir()
        options = write_options(
            overwrite=overwrite is None or overwrite if is_file else overwrite,
            fsync=fsync,
            verify=verify,
            resume=resume,
            memory=memory,
            threads=plain.threads,
            report=watch.report,
        )
        if hasattr(path, "write"):
            nbytes = _rustload.write_object(path, written, metadata=header, options=options)
            files = {"": nbytes}
        elif is_file:
            _no_shards(max_shard_size, where)
            nbytes = _rustload.write_file(where, written, metadata=header, options=options)
            files = {Path(where).name: nbytes}
        else:
            refuse_pickle_name(where)
            file = f"{check_name(name)}.safetensors"
            size = shard_bytes(max_shard_size) or SHARD_BYTES
            planned = [File(file, written, list(texts.items()), f"{file}.index.json", whole, size)]
            listed, note = _rustload.write_folder(
                where, planned, texts=list(others), copies=[], joins=False, options=options
            )
            files = dict(listed)
            if note is not None:
                warn_user(note)
    return SaveReport(
        path=where,
        files=files,
        tensors=job.tensors,
        nbytes=sum(files.values()),
        dropped=dropped,
        packed=packed_names(remaining),
        converted=job.converted,
        skipped_objects=0,
        reused=watch.reused,
        kept=tuple(job.kept),
        seconds=time.perf_counter() - start,
    )


def _no_shards(max_shard_size: Any, where: str) -> None:
    if max_shard_size is not None:
        note = f"give a folder: {where.removesuffix('.safetensors')!r}"
        raise _error("Value", "max_shard_size= divides tensors among the files of a folder", note)
