"""The layout of safetensors files in a folder: which file has a tensor, where in it, and the bytes before the first tensor.

The files are those that `rustload.save` writes to a folder: the division is huggingface_hub's, the header the reference writer's.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

from rustload._common.dtypes import DTYPE_ROWS
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FileLayout", "FolderLayout", "Location", "TensorSpec", "is_of_checkpoint", "plan_folder"]

_HEADER_MAX = 100_000_000


class TensorSpec(NamedTuple):
    """A tensor to be written: its dtype as torch spells it, and its shape."""

    dtype: str
    shape: tuple[int, ...]


class Location(NamedTuple):
    """Where a tensor is: the file's name, the offset of its first byte, and its size in bytes."""

    file: str
    start: int
    nbytes: int


class FileLayout(NamedTuple):
    """A file: its first bytes, up to the first tensor, and its size."""

    head: bytes
    size: int


class FolderLayout(NamedTuple):
    """The files by name, the location of each tensor, and the name and text of the index if there are several files."""

    files: dict[str, FileLayout]
    tensors: dict[str, Location]
    index_file: tuple[str, bytes] | None


def plan_folder(
    tensors: Mapping[str, TensorSpec],
    metadata: Mapping[str, str],
    stem: str,
    max_shard_size: int,
    generation: int = 1,
) -> FolderLayout:
    """Plans the files of a folder.

    Args:
        tensors: The tensors, in the order in which they are divided among files.
        metadata: The texts of each header.
        stem: The name of the file without shards, without its extension.
        max_shard_size: The most bytes of tensors in one file; a larger tensor has a file of its own.
        generation: The number of the save whose shards are in the folder at once with those before it.

    Raises:
        UnsupportedError: A dtype has no form in a safetensors file (code `NotSafetensors`).
        ValueError: A header is too long, or a tensor is named `__metadata__`.
    """
    sizes, rows = {}, {}
    for name, (dtype, shape) in tensors.items():
        row = DTYPE_ROWS.get(dtype)
        if row is None or row.code is None or (row.code == "F4" and not shape):
            raise _error("NotSafetensors", f"{dtype} has no form in a safetensors file: {name!r}")
        if name == "__metadata__":
            raise _error("DuplicateName", "'__metadata__' is the key of the header's metadata")
        count = 1
        for size in shape:
            count *= size
        sizes[name], rows[name] = count * row.itemsize, row
    shards = _divide(sizes, max_shard_size)
    shard_stem = stem if generation == 1 else f"{stem}.generation{generation}"
    files: dict[str, FileLayout] = {}
    locations: dict[str, Location] = {}
    for number, members in enumerate(shards, start=1):
        file = f"{shard_stem}-{number:05}-of-{len(shards):05}" if len(shards) > 1 else stem
        file += ".safetensors"
        names = sorted(members, key=lambda name: (-(rows[name].rank or 0), name.encode()))
        header: dict[str, object] = {}
        if metadata:
            header["__metadata__"] = dict(sorted(metadata.items()))
        position = 0
        for name in names:
            end = position + sizes[name]
            sizes_of = list(tensors[name].shape)
            if rows[name].code == "F4":  # the header counts elements, torch counts pairs
                sizes_of[-1] *= 2
            header[name] = {"dtype": rows[name].code, "shape": sizes_of, "data_offsets": [position, end]}
            position = end
        head = _head(header)
        files[file] = FileLayout(head, len(head) + position)
        position = len(head)
        for name in names:
            locations[name] = Location(file, position, sizes[name])
            position += sizes[name]
    index = None
    if len(shards) > 1:
        total = {"total_size": sum(sizes.values())}
        weight_map = {name: location.file for name, location in locations.items()}
        text = json.dumps({"metadata": total, "weight_map": weight_map}, indent=2, sort_keys=True)
        index = (f"{stem}.safetensors.index.json", text.encode() + b"\n")
    return FolderLayout(files, locations, index)


def _divide(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Divides tensors as huggingface_hub does (`split_state_dict_into_shards_factory`)."""
    shards: list[list[str]] = []
    current: list[str] = []
    filled = 0
    for name, size in sizes.items():
        if size > most:
            shards.append([name])
            continue
        if filled + size > most:
            shards.append(current)
            current, filled = [], 0
        current.append(name)
        filled += size
    if current or not shards:
        shards.append(current)
    return shards


def _head(header: Mapping[str, object]) -> bytes:
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_MAX:
        raise _error("HeaderTooLarge", f"the header would have {len(text)} bytes, of {_HEADER_MAX} at most")
    return len(text).to_bytes(8, "little") + text


def is_of_checkpoint(file: str, stem: str) -> bool:
    """Whether a file is one of this checkpoint's, in this or another number of shards, or its index."""
    number = r"((\.generation\d+)?-\d{5}-of-\d{5})?"
    return re.fullmatch(re.escape(stem) + number + r"\.safetensors(\.index\.json)?", file) is not None
