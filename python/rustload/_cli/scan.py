"""`rustload scan`: reports what unpickling files would do, as text or JSON."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Any

import rustload
from rustload._cli.exit_codes import NOT_INERT, READ_FAILED
from rustload._cli.report_error import report_error
from rustload._common.sizes import format_bytes
from rustload._common.terminal import Page, count, print_json
from rustload._scan.scan import merged, report_on
from rustload._scan.text import show
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run"]

# The arguments that mean standard input.
STANDARD_INPUT = ("-", "/dev/stdin")


def run(paths: Sequence[str], *, json: bool, quiet: bool, color: str) -> int:
    """Scans each path and returns the exit code.

    Args:
        paths: Files and directories.
        json: Whether to print one JSON document for all.
        quiet: Whether to leave out files that are inert.
        color: `"auto"`, `"always"` or `"never"`.
    """
    parts: list[dict[str, Any]] = []
    for path in paths:
        try:
            part = _standard_input() if path in STANDARD_INPUT else report_on(path, {})
        except (RustloadError, OSError, ValueError, MemoryError) as error:
            part = _failed(path, report_error(error))
        if not part["files"]:
            _print_to_stderr(f"nothing to scan: {path} has no files")
        parts.append(part)
    report = merged(parts)
    if json:
        keys = ("schema", "rustload", "verdict", "complete", "files")
        print_json({key: report[key] for key in keys})
    else:
        page = Page(sys.stdout, color)
        # Files that could not be opened were reported on stderr.
        show(
            page, {**report, "files": [file for file in report["files"] if "error" not in file]}, quiet=quiet
        )
        page.flush()
        _sum_up(report["files"])
    statuses = {file["status"] for file in report["files"]}
    if any(file["verdict"] != "inert" for file in report["files"] if file["status"] == "scanned"):
        return NOT_INERT
    if statuses == {"skipped"}:
        _print_to_stderr("nothing was scanned: no file holds a pickle, as far as is known")
    return READ_FAILED if "unreadable" in statuses or "scanned" not in statuses else 0


def _failed(path: str, error: dict[str, Any]) -> dict[str, Any]:
    """The report on a path that could not be opened: without findings, with the error."""
    file: dict[str, Any] = {
        "path": path,
        "format": None,
        "status": "unreadable",
        "verdict": "unknown",
        "findings": [],
        "trace": [],
        "globals": [],
        "coverage": {"complete": False, "truncated": False, "scanned": [], "unscanned": []},
        "error": error,
    }
    header = {"schema": 1, "rustload": rustload.__version__}
    return {**header, "verdict": "unknown", "complete": False, "files": [file]}


def _standard_input() -> dict[str, Any]:
    """The report on standard input: a file is scanned in place, a pipe is read up to `Limits.scan_bytes`."""
    if sys.stdin is None:
        raise ValueError("-: there is no standard input")
    stream = sys.stdin.buffer
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        report = report_on(stream, {})
    else:
        limit = rustload.Limits().scan_bytes
        content = stream.read(limit + 1)
        if len(content) > limit:
            raise ValueError(
                f"-: standard input goes on beyond {format_bytes(limit)}, the most that is read of a pipe; scan a file"
            )
        report = report_on(content, {})
    for file in report["files"]:
        file["path"] = "-"
    return report


def _print_to_stderr(text: str) -> None:
    page = Page(sys.stderr, "never")
    page.line(f"rustload: {page.safe(text)}")
    page.flush()


def _sum_up(files: list[dict[str, Any]]) -> None:
    """Prints the number of files by verdict to stderr, if there are several."""
    if len(files) < 2:
        return
    counts: dict[str, int] = {}
    for file in files:
        word = file["verdict"] if file["status"] == "scanned" else file["status"]
        counts[word] = counts.get(word, 0) + 1
    summary = ", ".join(f"{number:,} {word}" for word, number in counts.items())
    _print_to_stderr(f"{count(len(files), 'file')}: {summary}")
