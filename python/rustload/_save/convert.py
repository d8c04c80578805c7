"""`convert`: writes the tensors of a checkpoint of any format to safetensors files, in a bounded window of memory."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any, Literal

from rustload import _rustload
from rustload._checkpoint.names import Key, Rename, Strip, select_tensors
from rustload._checkpoint.open import open as open_checkpoint
from rustload._common.patterns import warn_user
from rustload._common.request import Request
from rustload._common.rules import Rules
from rustload._save.advice import advising
from rustload._save.copy_others import other_files
from rustload._save.job import (
    Job,
    header_texts,
    packed_names,
    shard_bytes,
    write_options,
)
from rustload._save.objects_file import ObjectsFile
from rustload._save.part import Part
from rustload._save.quantization_config import Others, dequantized_others
from rustload._save.report import SaveReport
from rustload._save.selection import Selection, warn_of_unused_rules
from rustload._save.sources import find_checkpoints
from rustload._save.target import Target, check_objects_path
from rustload._save.ties import TieRule, Ties, says_tied
from rustload._save.watch import watching
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rustload._common.progress import Progress
    from rustload._rustload import Limits

__all__ = ["convert"]


def convert(
    src: Any,
    dst: Any = None,
    *,
    select: str | Iterable[str] | None = None,
    key: Key = None,
    strip: Strip = None,
    rename: Rename = None,
    dtype: Any = None,
    transpose: Any = None,
    allow_lossy: bool = False,
    dequantize: bool = False,
    ties: Ties = "auto",
    keep: Iterable[str] = (),
    discard: Iterable[str] = (),
    max_shard_size: int | str | None = None,
    name: str | None = None,
    metadata: Mapping[str, str] | None = None,
    fingerprint: Literal["structure", "data"] | None = None,
    copy_others: bool = False,
    objects: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    fsync: bool = True,
    verify: bool = False,
    resume: bool = False,
    progress: Progress = None,
    memory: int | str = "256MiB",
    threads: int | None = None,
    unknown: Literal["keep", "error"] = "keep",
    trailing: Literal["error", "ignore"] = "error",
    compat: bool = False,
    limits: Limits | None = None,
    io: Literal["auto", "buffered", "direct"] = "auto",
) -> SaveReport:
    """Converts a checkpoint to safetensors: a file to a file, a folder to a folder. Nothing that it names is imported or run.

    The target appears when it is complete. A failure leaves what was there, and, without `resume`, nothing temporary.

    Args:
        src: What `rustload.open` takes. In a folder, all checkpoints with names of transformers, diffusers and PEFT are
            converted: each variant, and those in the subfolders of a pipeline.
        dst: A file whose name ends with `.safetensors`, or a folder. Without it, a file beside the source with its name, or the
            folder of the source, whose files are kept. `pytorch_model.bin` becomes `model.safetensors`, and other files keep
            their names.
        select: Names or glob patterns of the tensors, as in the source. Without it, all.
        key: The key that the tensors are nested under, as for `rustload.torch.load_into`.
        strip: A prefix, or several, to remove from names.
        rename: A mapping from names or prefixes to others, pairs of a regular expression and its replacement, or a callable. A
            tensor whose new name is None is left out.
        dtype: The dtype to convert to: as in `Checkpoint.materialize`, one for all floats, a mapping from glob patterns to
            dtypes, or a callable. Patterns are for the new names.
        transpose: The tensors to transpose, in the same forms.
        allow_lossy: Allows casts that change the kind of number, such as float to int.
        dequantize: Dequantizes quantized tensors, and fp8 with scales; these scales are left out. With `copy_others`, the copied
            `config.json` does not describe the quantization any more, and files that describe nothing else are left out.
        ties: What to do with names of the same tensor, as in `save`. "auto" leaves out the output head where the folder's
            `config.json` says that it is the embedding (`tie_word_embeddings`), and writes all others in full.
        keep: Names or glob patterns that `ties="drop"` prefers.
        discard: Names or glob patterns that `ties="drop"` leaves out where another name is written.
        max_shard_size: The most bytes of tensors in one file of a folder: an int, or a str such as "5GB". Without it, the tensors
            are divided among files as in the source.
        name: The name of a folder's files without `.safetensors`. Without it, that of the source's.
        metadata: Texts for the header, added to those of a safetensors source. `format` is "pt" if there is none.
        fingerprint: Records the source's fingerprint as `source_fingerprint` in the header: of names, dtypes and shapes, or of
            the elements too, which reads them twice. See `Checkpoint.fingerprint`.
        copy_others: Copies the other files of the folder: configurations, tokenizers. Pickles and hidden files are not copied.
        objects: A file for the values that are no tensors, as JSON.
        overwrite: Whether an existing file, or a folder with files, is replaced. Other files in the folder are kept.
        fsync: Waits until the data is on the disk before the target gets its name.
        verify: Reads every byte back and compares it with the source, as in `save`.
        resume: Keeps what is written if the process is killed or the call fails, for the same call later, as in `save`.
        progress: A progress display, as in `save`.
        memory: The most memory for buffers, as in `save`.
        threads: The number of threads; None for one per core.
        unknown: As for `rustload.open`.
        trailing: As for `rustload.open`.
        compat: As for `rustload.open`.
        limits: As for `rustload.open`.
        io: As for `rustload.open`.

    Raises:
        FileExistsError: The target exists, and is not to be replaced.
        FormatError: The source is damaged, or changes meanwhile.
        OSError: The disk is full, or refuses otherwise; or as for `save` with `verify` or `resume`.
        TensorNotFoundError: No tensor has a name in `select`.
        UnsupportedError: A tensor has no form in a safetensors file: complex128, a sparse or quantized tensor, one on the meta
            device; or it is to be dequantized from a scheme that is not known (code `QuantUnknown`).
        ValueError: Two tensors would have one name, or are tied and `ties="error"`; or an argument has a wrong value.
        RustloadError: As for `rustload.open`.

    >>> import rustload
    >>> report = rustload.convert("model.bin", "half.safetensors", dtype="float16")
    >>> report.tensors, report.converted, rustload.open("half.safetensors")["q.weight"].dtype
    (4, 4, 'float16')
    >>> list(rustload.convert("llama", "llama-safetensors").files)
    ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors', 'model.safetensors.index.json']
    """
    start = time.perf_counter()
    rule = TieRule.checked(ties, keep, discard)
    given_fingerprint: Any = fingerprint
    if given_fingerprint not in (None, "structure", "data"):
        raise _error("Value", f"fingerprint= is 'structure', 'data' or None, not {fingerprint!r}")
    given = find_checkpoints(src)
    target = Target.of(given, dst, name, max_shard_size)
    if copy_others:
        target.check_copies(given)
    if objects is not None:
        check_objects_path(objects, target, overwrite=overwrite)
    plain = Request(copy=True, allow_lossy=allow_lossy, dequantize=dequantize, threads=threads)
    texts = {} if metadata is None else header_texts(metadata)
    size = shard_bytes(max_shard_size)
    selection = Selection(select)
    job = Job(Rules(dtype=dtype, transpose=transpose), plain)
    parts: list[Part] = []
    with advising(writing=False):
        for source in given.found:
            checkpoint = open_checkpoint(
                source.path, unknown=unknown, trailing=trailing, compat=compat, limits=limits, io=io
            )
            own = {}
            if fingerprint is not None:
                digest = checkpoint.fingerprint(data=fingerprint == "data", threads=plain.threads)
                own = {"source_fingerprint": digest}
            chosen = selection.of(checkpoint)
            if chosen and not (key is None and strip is None and rename is None):
                chosen = select_tensors(chosen, key, strip, rename)
            parts.append(
                Part(
                    source,
                    checkpoint,
                    chosen,
                    selection.literal,
                    rule,
                    own | texts,
                    keep_objects=objects is not None,
                    head_is_tied=rule.ties == "auto" and says_tied(source.home),
                    dequantize=dequantize,
                )
            )
        selection.check([part.names for part in parts])
        # Where only some checkpoints have the tensors, the others are not written.
        written = [part for part in parts if part.tensors] or parts[:1]
        if not any(part.names for part in parts):
            warn_user("the checkpoint has no tensors, so the result has none")
        warn_of_unused_rules([part.tensors for part in written], dtype=dtype, transpose=transpose)
        document = None
        if objects is not None:
            document = ObjectsFile(
                objects, _document(parts), target, overwrite=bool(overwrite), sync=bool(fsync)
            )
        # A single file has the tensors of all.
        name, size = (None, None) if target.is_file else (name, size)
        planned = [file for part in written for file in part.files(job, name, size)]
    watched = watching(progress, job.nbytes, "converting", verify=bool(verify), resume=bool(resume))
    changed: tuple[str, ...] = ()
    with document or contextlib.nullcontext(), advising(writing=True), watched as watch:
        options = write_options(
            overwrite=overwrite,
            fsync=fsync,
            verify=verify,
            resume=resume,
            memory=memory,
            threads=plain.threads,
            report=watch.report,
        )
        if target.is_file:
            tensors = [tensor for file in planned for tensor in file.tensors]
            header = sorted((written[0].texts | written[0].whole).items())
            nbytes = _rustload.write_file(target.path, tensors, metadata=header, options=options)
            files = {os.path.basename(target.path): nbytes}
        else:
            copies = other_files(given.folder or ".", parts, target.path) if copy_others else []
            others = dequantized_others(copies, job.dequantized) if dequantize else Others(copies, [], [])
            changed = tuple(others.changed)
            listed, note = _rustload.write_folder(
                target.path,
                planned,
                texts=[*others.texts, *(() if document is None else document.in_target)],
                copies=others.copies,
                joins=target.joins,
                options=options,
            )
            files = dict(listed)
            if note is not None:
                warn_user(note)
        if document is not None:
            document.finish(files)
    return SaveReport(
        path=target.path,
        files=files,
        tensors=job.tensors,
        nbytes=sum(files.values()),
        dropped={gone: kept for part in written for gone, kept in part.dropped.items()},
        packed=[name for part in written for name in packed_names(part.tensors)],
        converted=job.converted,
        skipped_objects=sum(part.objects.count for part in parts),
        reused=watch.reused,
        kept=tuple(job.kept),
        changed=changed,
        seconds=time.perf_counter() - start,
    )


def _document(parts: list[Part]) -> str:
    """The values that are no tensors, as JSON: those of the checkpoint, or of each by its name."""
    trees = {part.label: part.objects.json() for part in parts}
    tree = next(iter(trees.values())) if len(trees) == 1 else trees
    return json.dumps(tree, indent=1) + "\n"
