"""`Part`: one checkpoint of a conversion, with its tensors under their new names."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING

from rustload._checkpoint.names import names_left_out, renamed_ties
from rustload._checkpoint.nesting import NESTING_KEY
from rustload._common.rules import DEFAULT_CAST_DTYPES
from rustload._save.advice import leave_out
from rustload._save.arrays import unsupported
from rustload._save.job import File
from rustload._save.objects import Objects
from rustload._save.sources import file_name_for, index_name, shard_name
from rustload._save.ties import dropped_names
from rustload.errors import _pass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._common.options import NamesOptions
    from rustload._common.request import Request
    from rustload._save.arrays import Values
    from rustload._save.job import Job
    from rustload._save.sources import Source
    from rustload._save.ties import TieRule
    from rustload._tensor.handle import LazyTensor

_INDEX_METADATA = ("total_size", "total_parameters", "DCP_SHARDING_INFO", "DCP_VERSION")
"""What an index, or torch's distributed writer, says about its files, which is not true of the new ones."""

_METADATA = (".metadata", "metadata.pkl")
"""Ends of the file by which a folder is opened whose other files are nothing alone."""

_NUMBER = re.compile(r"-\d{5}-of-\d{5}(?=\.|$)")


class Part:
    """A checkpoint.

    Attributes:
        names: All names in it.
        tensors: The tensors that are written, by their new names.
        dropped: The new names that are left out because they are tied, and the names that are written for them.
        texts: The metadata of its files.
        whole: The metadata of the whole checkpoint: the names of `dropped` and of earlier writers, and the record of a nesting.
        objects: The values that are not tensors.
        keeps_objects: Whether a record in the metadata has them.
        paths: Its files.
        label: Its folder and name, among several.
        folder: The path of its folder in the target.
        is_whole_folder: Whether its tensors are in no file alone, as in distributed checkpoints.
        dtype: After `files`, the dtype of most floats, apart from those of weights that stay quantized; None without floats.
    """

    def __init__(
        self,
        source: Source,
        checkpoint: Checkpoint,
        chosen: Mapping[str, LazyTensor],
        literal: frozenset[str],
        rule: TieRule,
        texts: Mapping[str, str],
        *,
        naming: NamesOptions,
        keep_objects: bool,
        head_is_tied: bool,
        dequantize: bool,
    ) -> None:
        """Decides what is written.

        Args:
            source: Where the checkpoint is.
            checkpoint: The checkpoint.
            chosen: The tensors that the user selected, by their new names.
            literal: The names that the user wrote out.
            rule: What to do with names of the same tensor.
            texts: The user's metadata.
            naming: What made the new names.
            keep_objects: Whether the values that are not tensors are kept.
            head_is_tied: Whether the model's configuration says that its output head is its embedding.
            dequantize: Whether tensors are dequantized.

        Raises:
            UnsupportedError: A tensor is a component of a sparse one, or is codes that are not decoded; or the configuration
                names a quantization of which nothing was decoded.
            ValueError: Names are tied, and the rule refuses that.
        """
        self.names = list(checkpoint)
        self.paths = checkpoint.files
        self.objects = Objects.of(checkpoint, keep=keep_objects)
        self._prefix = source.folder
        self.folder = source.folder.rstrip("/")
        self.dtype: str | None = None
        items = dict(chosen.items())
        for name, tensor in items.items() if self.objects.sparse else ():
            if tensor.name in self.objects.sparse and tensor.name not in literal:
                whole = name.rpartition(".")[0] or name
                components = _pass("select", "with the names of its components")
                raise unsupported(whole, "a sparse tensor", leave_out(whole), components)
        if dequantize:
            for tensor in items.values():
                tensor._core.check_scheme()
            checkpoint._core.check_dequantized()
        values: dict[str, Values] = {name: tensor._core for name, tensor in items.items()}
        own: dict[str, str] = {}
        ties: dict[str, str] = {}
        if checkpoint.format == "safetensors":
            own = {key: text for key, text in checkpoint.metadata.items() if key not in _INDEX_METADATA}
            ties = names_left_out(checkpoint, own)
            own = {key: text for key, text in own.items() if key not in ties}
            new_names = {name: tensor.name for name, tensor in items.items()}
            ties = renamed_ties(ties, new_names, **naming)
            if new_names != {name: name for name in self.names}:
                own.pop(NESTING_KEY, None)
        self.keeps_objects = NESTING_KEY in own
        self.texts = {"format": "pt", **own, **texts}
        # A tied name is written in full where the header says something else under it.
        dropped = dropped_names(items, values, rule, head_is_tied=head_is_tied)
        self.dropped = {gone: kept for gone, kept in dropped.items() if self.texts.get(gone, kept) == kept}
        self.tensors = {name: tensor for name, tensor in items.items() if name not in self.dropped}
        # Names that an earlier writer has left out are recorded as those of this one.
        self.whole = {gone: self.texts.pop(gone, kept) for gone, kept in (ties | self.dropped).items()}
        if self.keeps_objects:
            self.whole[NESTING_KEY] = self.texts.pop(NESTING_KEY)
        # Joined tensors are in none of the files alone.
        self._is_joined = checkpoint._core.is_joined
        is_metadata = self.paths[:1] and self.paths[0].endswith(_METADATA)
        in_several = (
            (self._is_joined and len(self.paths) > 1) or is_metadata or _has_folders(source, self.paths)
        )
        self.is_whole_folder = bool(in_several) and not isinstance(source.path, list)
        names = [] if self._is_joined else [file_name_for(path) for path in self.paths]
        # Files of different folders may have one name.
        self._file_names = names if len(set(names)) == len(names) else []
        first = self._file_names[0] if self._file_names else "model.safetensors"
        self._stem = source.stem or _NUMBER.sub("", first.removesuffix(".safetensors"))
        self.label = f"{source.folder}{self._stem}"

    def files(self, job: Job, name: str | None, max_shard_size: int | None) -> list[File]:
        """The files that are written: with the source's names if none is given, and divided as the source is without a size."""
        stem = self._stem if name is None else name.removesuffix(".safetensors")
        index = self._prefix + index_name(stem)
        header, whole = sorted(self.texts.items()), sorted(self.whole.items())
        tensors = [job.add(new, value, value._core) for new, value in self.tensors.items()]
        self.dtype = _main_dtype(tensors, self.tensors.values())
        if max_shard_size is not None:
            path = f"{self._prefix}{shard_name(stem, 1, 1)}"
            return [File(path, tensors, header, index, whole, max_shard_size)]
        by_file: dict[int, list[tuple[str, Values, Request]]] = {}
        for written, value in zip(tensors, self.tensors.values(), strict=True):
            by_file.setdefault(0 if self._is_joined else value._core.file, []).append(written)
        numbers = sorted(by_file) or [0]
        count = len(numbers)
        names = self._file_names
        if name is not None or count == 1 or count != len(names):
            names = [shard_name(stem, at, count) for at in range(1, count + 1)]
        return [
            File(
                self._prefix + file,
                by_file.get(number, []),
                header,
                index if count > 1 else None,
                whole,
                None,
            )
            for file, number in zip(names, numbers, strict=True)
        ]


def _has_folders(source: Source, paths: Iterable[str]) -> bool:
    """Whether the source is a folder on disk whose files are in folders of it."""
    home = source.home
    return (
        home is not None
        and source.path == home.name
        and any(os.path.dirname(os.path.relpath(path, home.name)) for path in paths)
    )


def _main_dtype(written: Iterable[tuple[str, Values, Request]], tensors: Iterable[LazyTensor]) -> str | None:
    """The dtype that most floats of these tensors are written with."""
    counts = dict.fromkeys(DEFAULT_CAST_DTYPES, 0)
    for (_, _, request), tensor in zip(written, tensors, strict=True):
        dtype = request.dtype or tensor.dtype
        if dtype in counts and not tensor._is_kept_as_stored:
            counts[dtype] += math.prod(tensor.shape)
    most = max(counts, key=lambda dtype: counts[dtype])
    return most if counts[most] else None
