"""`convert`: writes the tensors of a checkpoint of any format to safetensors files, in a bounded window of memory."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, Literal, Unpack

from rustload import _rustload
from rustload._checkpoint.names import select_tensors
from rustload._checkpoint.open import open as open_checkpoint
from rustload._common.options import NamesOptions, OpenOptions, filled, part, takes
from rustload._common.patterns import refuse_rules_without_effect, warn_of_unused_patterns, warn_user
from rustload._save.advice import advising
from rustload._save.copy_others import others_of, uncopied
from rustload._save.folder import write_folder
from rustload._save.job import (
    Job,
    header_texts,
    packed_names,
    shard_bytes,
    write_options,
)
from rustload._save.model_config import Edit, Others, converted_others, edits_in_place
from rustload._save.objects_file import ObjectsFile
from rustload._save.options import ConvertOptions
from rustload._save.part import Part
from rustload._save.report import SaveReport
from rustload._save.selection import Selection
from rustload._save.sources import find_checkpoints
from rustload._save.target import Target, check_objects_path
from rustload._save.ties import TieRule, says_tied
from rustload._save.watch import watching
from rustload.errors import _check_one_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rustload._common.manifest import ManifestLike


@takes(ConvertOptions)
def convert(
    src: Any,
    dst: Any = None,
    *,
    select: str | Iterable[str] | None = None,
    name: str | None = None,
    fingerprint: Literal["structure", "data"] | None = None,
    copy_others: bool = False,
    keep_config: bool = False,
    objects: str | os.PathLike[str] | None = None,
    manifest: ManifestLike | None = None,
    **options: Unpack[ConvertOptions],
) -> SaveReport:
    """Converts a checkpoint to safetensors: a file to a file, a folder to a folder. Nothing that it names is imported or run.

    The target appears when it is complete. A failure leaves what was there, and, without `resume`, nothing temporary. Patterns of
    `dtype` and `transpose` are for the new names. `dequantize` writes the weights that `rustload.open(dequantize=True)` lists.

    Args:
        src: What `rustload.open` takes. In a folder, all checkpoints with names of transformers, diffusers and PEFT are
            converted: each variant, and those in the subfolders of a pipeline.
        dst: A file whose name ends with `.safetensors`, or a folder. Without it, a file beside the source with its name, or the
            folder of the source, whose files are kept. `pytorch_model.bin` becomes `model.safetensors`, and other files keep
            their names.
        select: Names or glob patterns of the tensors, as in the source. Without it, all.
        name: The name of a folder's files without `.safetensors`. Without it, that of the source's.
        fingerprint: Records the source's fingerprint as `source_fingerprint` in the header: of names, dtypes and shapes, or of
            the elements too, which reads them twice. See `Checkpoint.fingerprint`.
        copy_others: Copies the other files of the folder, on disk or in a store: configurations, tokenizers. Pickles and hidden
            files are not copied.
            After `dtype` and `dequantize`, `config.json` states the dtype of most floats that are written; after `dequantize`,
            it does not describe the quantization any more, and files that describe nothing else are left out.
            Without it, that of the source's folder is changed in the same way if the files are written there.
        keep_config: Leaves them unchanged.
        objects: A file for the values that are not tensors, as JSON.
        manifest: As for `rustload.open`; also for the files that `copy_others` copies, of which each has to be listed.
        **options: What is converted, how it is written, and how the source is read (`ConvertOptions`).

    Raises:
        FileExistsError: The target exists, and is not to be replaced.
        FormatError: The source is damaged, or changes meanwhile.
        OSError: The disk is full, or refuses otherwise; or as for `save` with `verify` or `resume`.
        TensorNotFoundError: No tensor has a name in `select`, or none matches any pattern of `dtype` or `transpose`.
        UnsupportedError: A tensor has no form in a safetensors file: complex128, a sparse or quantized tensor, one on the meta
            device; or it is to be dequantized from a scheme that is not known (code `QuantUnknown`).
        ValueError: Two tensors would have one name, or are tied and `ties="error"`; the target would hide the source in its
            folder; or an argument has a wrong value.
        RustloadError: As for `rustload.open`.

    >>> import rustload
    >>> report = rustload.convert("model.bin", "half.safetensors", dtype="float16")
    >>> report.tensors, report.converted, rustload.open("half.safetensors")["q.weight"].dtype
    (4, 4, 'float16')
    >>> list(rustload.convert("llama", "llama-safetensors").files)
    ['model-00001-of-00002.safetensors', 'model-00002-of-00002.safetensors', 'model.safetensors.index.json']
    """
    start = time.perf_counter()
    how = filled(convert, options)
    names = part(NamesOptions, how)
    rule = TieRule.checked(how["ties"], how["keep"], how["discard"])
    _check_one_of("fingerprint", fingerprint, (None, "structure", "data"))
    given = find_checkpoints(src)
    target = Target.of(given, dst, name, how["max_shard_size"])
    if copy_others:
        target.check_copies(given)
    if objects is not None:
        check_objects_path(objects, target, overwrite=bool(how["overwrite"]))
    texts = {} if how["metadata"] is None else header_texts(how["metadata"])
    size = shard_bytes(how["max_shard_size"])
    selection = Selection(select)
    job = Job(how)
    parts: list[Part] = []
    with advising(writing=False):
        for source in given.found:
            checkpoint = open_checkpoint(
                source.path, dequantize=how["dequantize"], manifest=manifest, **part(OpenOptions, how)
            )
            own = {}
            if fingerprint is not None:
                digest = checkpoint.fingerprint(data=fingerprint == "data", threads=how["threads"])
                own = {"source_fingerprint": digest}
            chosen = selection.of(checkpoint)
            if chosen:
                chosen = select_tensors(chosen, **names)
            parts.append(
                Part(
                    source,
                    checkpoint,
                    chosen,
                    selection.literal,
                    rule,
                    own | texts,
                    naming=names,
                    keep_objects=objects is not None,
                    # The configuration is not compared with the manifest.
                    head_is_tied=manifest is None and rule.ties == "auto" and says_tied(source.home),
                    dequantize=how["dequantize"],
                )
            )
        selection.check([one.names for one in parts])
        # Where only some checkpoints have the tensors, the others are not written.
        written = [one for one in parts if one.tensors] or parts[:1]
        if not any(one.names for one in parts):
            warn_user("the checkpoint has no tensors, so the result has none")
        new_names = [name for one in written for name in one.tensors]
        if not new_names and any(one.names for one in parts):
            warn_user("leaves all tensors out, so the result has none", argument="rename")
        # The command line has patterns beside a dtype for all.
        rules = {"dtype": getattr(how["dtype"], "patterns", how["dtype"]), "transpose": how["transpose"]}
        refuse_rules_without_effect(new_names, dtype=how["dtype"], transpose=how["transpose"])
        warn_of_unused_patterns(lambda: new_names, **rules)
        target.check_source(given, parts)
        copies: list[tuple[str, Any]] = []
        if copy_others:
            copies, not_copied = others_of(given, parts, target.path, manifest)
        else:
            not_copied = uncopied(given, parts, target)
        # A single file has the tensors of all.
        name, size = (None, None) if target.is_file else (name, size)
        planned = [file for one in written for file in one.files(job, name, size)]
        file = None
        if objects is not None:
            trees = {part.label: part.objects.json() for part in parts}
            tree = trees if len(parts) > 1 else trees[parts[0].label]
            inputs = (path for part in parts for path in part.paths)
            outputs = {path for one in planned for path in (one.path, one.listed_in)}
            outputs |= {path for path, _ in copies}
            file = ObjectsFile(objects, tree, target, inputs, how, outputs=outputs)
    changed: tuple[str, ...] = ()
    with (
        file or contextlib.nullcontext(),
        advising(writing=True),
        target.saying_what_stays(resume=bool(how["resume"])),
        watching(how, job.nbytes, "converting") as watch,
    ):
        writing = write_options(how, watch.report)
        if target.is_file:
            tensors = [tensor for file in planned for tensor in file.tensors]
            header = sorted((written[0].texts | written[0].whole).items())
            nbytes = _rustload.write_file(target.path, tensors, metadata=header, options=writing)
            files = {os.path.basename(target.path): nbytes}
        else:
            others = Others(copies, [], [])
            edits: list[Edit] = []
            if not keep_config and (how["dequantize"] or how["dtype"] is not None):
                dtypes = {one.folder: one.dtype for one in written}
                others = converted_others(copies, dtypes, dequantized=how["dequantize"])
                if target.joins:
                    edits, in_place = edits_in_place(target.path, dtypes, dequantized=how["dequantize"])
                    others.changed.extend(in_place)
            changed = tuple(others.changed)
            texts_there = [*others.texts, *(() if file is None else file.in_target)]
            files = write_folder(
                target.path,
                planned,
                texts_there,
                writing,
                copies=others.copies,
                edits=edits,
                joins=target.joins,
            )
        if file is not None:
            file.finish(files)
    skipping = [one for one in parts if not one.keeps_objects]
    return SaveReport(
        path=target.path,
        files=files,
        tensors=job.tensors,
        nbytes=sum(files.values()),
        dropped={gone: kept for one in written for gone, kept in one.dropped.items()},
        packed=[name for one in written for name in packed_names(one.tensors)],
        converted=job.converted,
        skipped_objects=sum(one.objects.count for one in skipping),
        skipped_at=tuple(at for one in skipping for at in one.objects.at),
        reused=watch.reused,
        kept=tuple(job.kept),
        changed=changed,
        not_copied=tuple(not_copied),
        seconds=time.perf_counter() - start,
    )
