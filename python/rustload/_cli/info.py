"""`rustload info`: describes a checkpoint, as text or JSON."""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

import rustload
from rustload._cli.exit_codes import READ_FAILED
from rustload._cli.report_error import report_error
from rustload._common.terminal import Page, print_json
from rustload._describe.describe import describe
from rustload._describe.text import View, show
from rustload._remote.urls import is_url, name_of
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rustload import Checkpoint, LazyTensor

__all__ = ["View", "run"]

# Version of the JSON document; removing a key or changing its meaning increments it.
SCHEMA = 1


def run(paths: Sequence[str], *, json: bool, color: str, view: View) -> int:
    """Shows each path and returns the exit code.

    Args:
        paths: Checkpoints; each path is opened separately.
        json: Whether to print one JSON document for all.
        color: `"auto"`, `"always"` or `"never"`.
        view: Which tensors to show, and how.
    """
    found: list[dict[str, Any]] = []
    code = 0
    page = Page(sys.stdout, color)
    for position, given in enumerate(paths):
        # The URL as it was given may have secrets.
        path = name_of(given) if is_url(given) else given
        try:
            with rustload.open(given) as checkpoint:
                chosen = None if view.pattern is None else _selected(checkpoint, path, view.pattern)
                report = describe(checkpoint, path, chosen, view.pattern)
        except (RustloadError, OSError, ValueError, MemoryError) as error:
            code = READ_FAILED
            report = {"path": path, "error": report_error(error)}
        if json:
            found.append(report)
        elif "error" not in report:
            if position:
                page.line()
            show(page, report, view)
            page.flush()
    if json:
        print_json({"schema": SCHEMA, "rustload": rustload.__version__, "checkpoints": found})
    return code


def _selected(checkpoint: Checkpoint, path: str, pattern: str) -> Mapping[str, LazyTensor]:
    """The tensors that match; a pattern without a match is reported on stderr."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        chosen = checkpoint.select(pattern)
    page = Page(sys.stderr, "never")
    for warning in caught:
        page.line(f"rustload: warning: {page.safe(path)}: {page.safe(str(warning.message))}")
    page.flush()
    return chosen
