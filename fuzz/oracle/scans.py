"""Whether a scan calls a file inert, in each of the ways in which it is asked."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

import rustload

if TYPE_CHECKING:
    import pathlib

    from fuzz.oracle.watch import Name

GOOD = b"\x80\x04N."
"""An inert pickle."""

SMALL_LIMITS = (
    rustload.Limits(nodes=24, stack=8, marks=2, memo=3),
    rustload.Limits(line=6, dotted=1, int_bytes=1, int_digits=1, key_depth=1, key_nodes=2),
    rustload.Limits(
        pickle_bytes=40, entries=2, directory_bytes=120, name_bytes=8, header_bytes=40, inflate_bytes=16
    ),
    rustload.Limits(scan_depth=1, scan_bytes=64, tensors=1, rank=1, depth=2, name_bytes_total=64),
)


class Scans:
    """Asks for verdicts: on content, on a file of a folder, and under limits that small files exceed.

    In a folder, what is not a checkpoint is passed over, so the file is scanned beside an inert one. What a limit cuts off must
    never be inert.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        (folder / "good.pkl").write_bytes(GOOD)

    def inert(self, data: bytes) -> tuple[str, dict[Name, int]] | None:
        """The first way in which the file is inert, and the names that its report lists, with their calls; None if in no way.

        All names, since `_load_from_bytes` is not inert by itself: its effect is that of its bytes.
        """
        if (names := self.content(data)) is not None:
            return "content", names
        (self._folder / "input").write_bytes(data)
        names = _names(rustload.scan(self._folder))
        if names is not None:
            return "folder", names
        names = _names(rustload.scan(self._folder, limits=SMALL_LIMITS[sum(data) % len(SMALL_LIMITS)]))
        return None if names is None else ("limits", names)

    def content(self, data: bytes) -> dict[Name, int] | None:
        """The names if the data is inert as content, which is asked alone of what is made by the hundred thousand."""
        return _names(rustload.scan(data))


def _names(report: rustload.ScanReport) -> dict[Name, int] | None:
    if report.verdict != "inert" or not report.complete:
        return None
    names: collections.Counter[Name] = collections.Counter()
    for named in report.globals:
        names[named.module, named.name] += named.calls
    return dict(names)
