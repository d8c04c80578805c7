"""`SaveReport`: what `save` and `convert` return."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rustload._common.sizes import format_bytes
from rustload._common.terminal import count
from rustload.errors import _printable

if TYPE_CHECKING:
    from collections.abc import Iterable


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
        skipped_objects: The number of values that are not tensors, and are not in the files of tensors.
        seconds: How long it took.
        reused: The bytes of tensors that an earlier call with `resume=True`, which was killed or failed, had written.
        kept: The names of tensors that a dtype for all tensors left as stored, as they are scales of quantized weights or belong
            to them otherwise.
        skipped_at: The dotted paths of the first of `skipped_objects`.
        changed: What `convert` changed in other files: in copies, or in place; one text for each.
        not_copied: The other files of a model's folder that `convert` did not copy to another folder: the pickles with
            `copy_others`; without, all at its top.
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
    reused: int = 0
    kept: tuple[str, ...] = ()
    skipped_at: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    not_copied: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """The line of text."""
        return f"<SaveReport {self}>"

    def __str__(self) -> str:
        """One line of text."""
        where = f" to {_printable(self.path)}" if self.path else ""
        left_out = ""
        if self.dropped:
            left_out += f", {count(len(self.dropped), 'tied name')} left out{_first(self.dropped)}"
        if self.skipped_objects:
            left_out += f", {count(self.skipped_objects, 'other value')} left out{_first(self.skipped_at)}"
        if self.kept:
            left_out += f", {count(len(self.kept), 'tensor')} of quantized weights kept as stored"
        if self.changed:
            left_out += f", {', '.join(map(_printable, self.changed))}"
        if self.not_copied:
            left_out += f", {count(len(self.not_copied), 'other file')} not copied{_first(self.not_copied)}"
        reused = f", {format_bytes(self.reused)} of it by an earlier call" if self.reused else ""
        files, tensors = count(len(self.files), "file"), count(self.tensors, "tensor")
        return f"wrote {tensors}, {format_bytes(self.nbytes)}{where}, {files}{left_out}{reused}, in {self.seconds:.1f} s"

    def _repr_html_(self) -> str:
        """HTML for notebooks: the line, the files, and the names that were left out or packed."""
        from rustload._html.reports import report_html

        lists: dict[str, list[tuple[str, ...]]] = {
            "files": [(name, format_bytes(nbytes)) for name, nbytes in self.files.items()],
            "dropped": [*self.dropped.items()],
            "packed": [(name,) for name in self.packed],
            "skipped_at": [(name,) for name in self.skipped_at],
            "not_copied": [(name,) for name in self.not_copied],
        }
        return report_html("SaveReport", str(self), lists)


def _first(names: Iterable[str]) -> str:
    """The first name in parentheses; nothing without names."""
    first, *others = [*names] or [""]
    return f" ({_printable(first)}{', ...' * bool(others)})" if first else ""
