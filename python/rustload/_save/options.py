"""The keywords of `save`, `convert` and `save_model`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._common.options import CastOptions, NamesOptions, OpenOptions, WorkOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rustload._save.ties import Ties


class WriteOptions(WorkOptions, total=False):
    """How files are written.

    Args:
        metadata: Texts for the header. Without it, `{"format": "pt"}`, which transformers needs; in `convert`, the texts of a
            safetensors source stay, and `format` is "pt" if there is none.
        dtype: The dtype to convert to: as in `Checkpoint.materialize`, one for all floats, a mapping from glob patterns to
            dtypes, or a callable.
        max_shard_size: The most bytes of tensors in one file of a folder: an int, or a str such as "5GB". Without it, 50 GB; in
            `convert`, the tensors are divided among files as in the source.
        overwrite: Whether an existing file, or a folder with files, is replaced. Other files in a folder are kept. By default, a
            folder is not, and a file only by `save`.
        fsync: Waits until the data is on the disk before the target gets its name.
        verify: Reads every byte back, from the disk if possible, and compares it with the source, which is read and converted
            again, before the target gets its name. Waits for the disk also with `fsync=False`. In progress, every byte then
            counts twice.
        write_manifest: Writes the digests of the files beside the file or folder: to its path and `.manifest.json`, which
            `rustload.open(path, manifest=...)` reads. They are taken from the bytes as they are written. All files that this call
            writes are listed, others of an existing folder are not.
    """

    metadata: Mapping[str, str] | None
    dtype: Any
    max_shard_size: int | str | None
    overwrite: bool | None
    fsync: bool
    verify: bool
    write_manifest: bool


class SaveOptions(WriteOptions, CastOptions, total=False):
    """What is written, and how.

    Args:
        transpose: The tensors to transpose, in the same forms as `dtype`.
        ties: What to do with names of the same tensor. "auto" and "copy" write each in full, so that every name is in the file;
            but "auto" in `convert` leaves out the output head where the folder's `config.json` says that it is the embedding
            (`tie_word_embeddings`). "drop" writes the first, converted as its name asks, and records the others in the metadata.
            "error" raises.
        keep: Names or glob patterns that "drop" prefers; without "drop", as with it.
        discard: Names or glob patterns that "drop" leaves out where another name is written; as `keep`.
        resume: Keeps what is written, in a folder beside the target, if the process is killed or the call fails. The same call
            later writes only what is missing, if no source and no argument that decides the bytes has changed; otherwise it
            starts anew. Only lazy tensors of files are reused: arrays of frameworks are written again.
    """

    transpose: Any
    ties: Ties
    keep: Iterable[str]
    discard: Iterable[str]
    resume: bool


class ConvertOptions(NamesOptions, SaveOptions, OpenOptions, total=False):
    """What is converted, how it is written, and how the source is read."""
