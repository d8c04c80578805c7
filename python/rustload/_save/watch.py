"""The progress of `save` and `convert`, and what they reuse of an earlier call."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rustload._common.progress import reporting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rustload._common.progress import Report
    from rustload._save.options import SaveOptions


class Watch:
    """Is told by the extension which bytes are written, verified or reused.

    Attributes:
        reused: The bytes of tensors that an earlier call had written.
        report: The function for the extension; None if nobody needs it.
    """

    def __init__(self, report: Report, *, is_needed: bool) -> None:
        """Starts at zero; the extension reports to the progress display only if that is needed."""
        self.reused = 0
        self._report = report
        self.report: Callable[[str, int, bool], None] | None = self._told if is_needed else None

    def _told(self, name: str, nbytes: int, is_reused: bool) -> None:  # noqa: FBT001 - called by the extension
        self.reused += nbytes * is_reused
        self._report(nbytes, name)


@contextlib.contextmanager
def watching(options: SaveOptions, nbytes: int, what: str) -> Iterator[Watch]:
    """Opens a progress display for one call.

    Args:
        options: Those of the call. With `verify`, every byte counts twice; with `resume`, reused ones count as done.
        nbytes: The bytes of all tensors, as they are written.
        what: The label of the display.
    """
    progress = options["progress"]
    with reporting(progress, nbytes * (2 if options["verify"] else 1), what) as report:
        yield Watch(report, is_needed=bool(options["resume"]) or progress not in (None, False))
