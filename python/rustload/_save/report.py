"""`SaveReport`: what `save` and `convert` return."""

from __future__ import annotations

from typing import NamedTuple

from rustload._common.sizes import format_bytes
from rustload.errors import _printable

__all__ = ["SaveReport"]


class SaveReport(NamedTuple):
    """What was written.

    Attributes:
        path: The file or the folder; empty for a file object.
        files: The size in bytes of each file, by its name; for a file in a subfolder, its path from the folder.
        tensors: The number of tensors.
        nbytes: The bytes of all files.
        dropped: The names that were left out because another name has the same tensor, and that name.
        packed: The names of tensors that used a part of their storage only: each has bytes of its own in the file.
        converted: The number of tensors that were cast, transposed or dequantized.
        skipped_objects: The number of values of a checkpoint that are no tensors, and are not in the files.
        seconds: How long it took.
    """

    path: str
    files: dict[str, int]
    tensors: int
    nbytes: int
    dropped: dict[str, str]
    packed: list[str]
    converted: int
    skipped_objects: int
    seconds: float

    def __str__(self) -> str:
        """One line of text."""
        files = f"{len(self.files):,} files" if len(self.files) > 1 else "1 file"
        tensors = f"{self.tensors:,} tensor{'' if self.tensors == 1 else 's'}"
        where = f" to {_printable(self.path)}" if self.path else ""
        dropped = f", {len(self.dropped):,} tied names left out" if self.dropped else ""
        skipped = (
            f", {self.skipped_objects:,} values that are no tensors left out" if self.skipped_objects else ""
        )
        return f"wrote {tensors}, {format_bytes(self.nbytes)}{where}, {files}{dropped}{skipped}, in {self.seconds:.1f} s"
