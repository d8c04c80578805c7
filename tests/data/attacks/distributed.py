"""A writer of distributed checkpoints, for the forms of several torch versions and for defects: every field can be set."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attacks.pickles import (
    FALSE,
    NONE,
    call,
    integer,
    ints,
    listed,
    made,
    many,
    mapped,
    name,
    named,
    pickle,
    text,
)
from attacks.pickles import storage as stored
from attacks.pickles import tensor as rebuilt
from attacks.zips import Zip

CLASSES = "torch.distributed.checkpoint.metadata"
OLD_CLASSES = "torch.distributed._shard.sharded_tensor.metadata"
"""Where torch before 2.3 had the properties of tensors."""
FILES = "torch.distributed.checkpoint.filesystem"


def size(*sizes: int) -> bytes:
    return call("torch.Size", ints(*sizes))


def properties(
    dtype: str = "float32",
    *,
    module: str = CLASSES,
    layout: str = "torch.strided",
    more: tuple[bytes, ...] = (),
) -> bytes:
    """`TensorProperties`; `more` follows the five items that torch before 2.15 writes."""
    encoding = "MEM_FORMAT_ENCODING" if module == OLD_CLASSES else "_MEM_FORMAT_ENCODING"
    items = (
        name(f"torch.{dtype}"),
        call("torch.serialization._get_layout", text(layout)),
        FALSE,
        call(f"{module}.{encoding}", integer(0)),
        FALSE,
        *more,
    )
    return made(f"{module}.TensorProperties", state=many(*items))


def chunk(offsets: Sequence[int], sizes: Sequence[int]) -> bytes:
    state = named({"offsets": size(*offsets), "sizes": size(*sizes)})
    return made(f"{CLASSES}.ChunkStorageMetadata", state=state)


def tensor(shape: Sequence[int], *chunks: bytes, props: bytes | None = None) -> bytes:
    """`TensorStorageMetadata`."""
    fields = {"properties": props or properties(), "size": size(*shape), "chunks": listed(*chunks)}
    return made(f"{CLASSES}.TensorStorageMetadata", state=named(fields))


VALUE = made(f"{CLASSES}.BytesStorageMetadata")


def index(fqn: str, offsets: Sequence[int] | None = None, number: bytes = NONE) -> bytes:
    """`MetadataIndex`, a key of `storage_data`."""
    fields = {"fqn": text(fqn), "index": number}
    if offsets is not None:
        fields["offset"] = size(*offsets)
    return made(f"{CLASSES}.MetadataIndex", state=named(fields))


def info(path: str, offset: int, length: int, transforms: Sequence[str] | None = None) -> bytes:
    """`_StorageInfo`."""
    fields = {"relative_path": text(path), "offset": integer(offset), "length": integer(length)}
    if transforms is not None:
        fields["transform_descriptors"] = listed(*map(text, transforms))
    return made(f"{FILES}._StorageInfo", state=named(fields))


def archive(*sizes: int, value: float = 0.0) -> bytes:
    """What torch.save writes for a float32 tensor that counts from `value`."""
    numel = 1
    for one in sizes:
        numel *= one
    data = struct.pack(f"<{numel}f", *(value + at for at in range(numel)))
    return Zip(pickle(rebuilt(sizes, on=stored(numel=numel))), {"0": data}).bytes()


def value_archive(body: bytes) -> bytes:
    """What torch.save writes for a value without tensors."""
    return Zip(pickle(body), {}).bytes()


@dataclass
class Folder:
    """A distributed checkpoint: the tensor `w`, 0 to 5 as [2, 3] in one chunk for each row, and the value `step`."""

    described: dict[str, bytes] = field(
        default_factory=lambda: {
            "w": tensor((2, 3), chunk((0, 0), (1, 3)), chunk((1, 0), (1, 3))),
            "step": VALUE,
        }
    )
    items: list[tuple[str, tuple[int, ...] | None, bytes]] = field(
        default_factory=lambda: [
            ("step", None, value_archive(integer(7))),
            ("w", (0, 0), archive(1, 3)),
            ("w", (1, 0), archive(1, 3, value=3.0)),
        ]
    )
    paths: bytes | None = field(
        default_factory=lambda: mapped((text("w"), many(text("w"))), (text("step"), many(text("step"))))
    )
    file: str = "__0_0.distcp"
    more: dict[str, bytes] = field(default_factory=dict)
    """Further fields of `Metadata`."""
    keys: dict[int, bytes] = field(default_factory=dict)
    """By the number of an item, its key in place of the right one."""
    infos: dict[int, bytes] = field(default_factory=dict)
    """By the number of an item, its `_StorageInfo` in place of the right one."""
    body: bytes | None = None
    """All of the metadata's pickle, in place of the right one."""
    root: str = f"{CLASSES}.Metadata"

    def ranges(self) -> list[tuple[int, int]]:
        """Offset and length of every item."""
        out, at = [], 0
        for _, _, data in self.items:
            out.append((at, len(data)))
            at += len(data)
        return out

    def metadata(self) -> bytes:
        if self.body is not None:
            return self.body
        pairs = [
            (
                self.keys.get(number, index(fqn, offsets)),
                self.infos.get(number, info(self.file, *self.ranges()[number])),
            )
            for number, (fqn, offsets, _) in enumerate(self.items)
        ]
        fields = {"state_dict_metadata": named(self.described), "storage_data": mapped(*pairs)}
        if self.paths is not None:
            fields["planner_data"] = self.paths
        return pickle(made(self.root, state=named(fields | self.more)), protocol=4)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / self.file).write_bytes(b"".join(data for _, _, data in self.items))
        (folder / ".metadata").write_bytes(self.metadata())
        return folder
