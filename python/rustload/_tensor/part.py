"""`Part`: which part of a larger tensor a file has, as a process of a distributed program saved it."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """Which part of a larger tensor a tensor in a file is.

    The files of all processes together have the whole tensors: `rustload.open([file, file, ...])`.

    Attributes:
        shape: The shape of the whole tensor; None if only all parts together tell it, as in the safetensors files of
            torch.distributed.checkpoint.
        offsets: The index in the whole tensor of the first element; None if the file does not say, and if the part is not one
            box, as of some strided shards.
        mesh: The size of each dimension of a DTensor's device mesh; None otherwise.
        coordinate: The coordinate in the mesh of the process that saved the file; None otherwise.
        placements: How a DTensor is distributed along each dimension of the mesh, as torch prints it: `"Shard(dim=0)"`,
            `"Replicate()"`, `"_StridedShard(dim=0, split_factor=2)"` or `"Partial()"`; None otherwise.
    """

    shape: tuple[int, ...] | None
    offsets: tuple[int, ...] | None
    mesh: tuple[int, ...] | None
    coordinate: tuple[int, ...] | None
    placements: tuple[str, ...] | None

    def _text(self) -> str:
        at = "" if self.offsets is None else f" at {list(self.offsets)}"
        return f"of a larger tensor{at}" if self.shape is None else f"of {list(self.shape)}{at}"
