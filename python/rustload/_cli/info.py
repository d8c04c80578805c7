"""`rustload info`: describes a checkpoint, as text or JSON."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import rustload
from rustload._cli.as_options import select_as_option
from rustload._cli.exit_codes import READ_FAILED
from rustload._cli.report_error import report_error
from rustload._cli.report_warnings import report_warnings
from rustload._common.terminal import Page, print_json
from rustload._describe.describe import describe
from rustload._describe.text import View, show
from rustload._remote.urls import is_url, name_of
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    as_filter = functools.partial(select_as_option, option="--filter")
    for position, given in enumerate(paths):
        # The URL as it was given may have secrets.
        path = name_of(given) if is_url(given) else given
        try:
            with rustload.open(given) as checkpoint:
                with report_warnings(path=path):
                    chosen = None if view.pattern is None else checkpoint.select(view.pattern)
                report = describe(checkpoint, path, chosen, view.pattern)
        except (RustloadError, OSError, ValueError, MemoryError) as error:
            code = READ_FAILED
            report = {"path": path, "error": report_error(error, as_filter)}
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
