"""`rustload scan`: what files would do in a reader that runs pickles, as text for people and as JSON for machines."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Any

import rustload
from rustload._cli.complain import complain
from rustload._cli.exit_codes import FOUND, UNREAD
from rustload._common.sizes import format_bytes
from rustload._common.terminal import Page, count, print_json
from rustload._scan.scan import merged, report_on
from rustload._scan.text import show
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run"]

# What stands for standard input.
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
            part = _failed(path, complain(error))
        if not part["files"]:
            _tell(f"nothing to scan: {path} has no files")
        parts.append(part)
    report = merged(parts)
    if json:
        keys = ("schema", "rustload", "verdict", "complete", "files")
        print_json({key: report[key] for key in keys})
    else:
        page = Page(sys.stdout, color)
        # What could not be opened was said on stderr.
        show(
            page, {**report, "files": [file for file in report["files"] if "error" not in file]}, quiet=quiet
        )
        page.flush()
        _sum_up(report["files"])
    statuses = {file["status"] for file in report["files"]}
    if any(file["verdict"] != "inert" for file in report["files"] if file["status"] == "scanned"):
        return FOUND
    if statuses == {"skipped"}:
        _tell("nothing was scanned: no file holds a pickle, as far as is known")
    return UNREAD if "unreadable" in statuses or "scanned" not in statuses else 0


def _failed(path: str, error: dict[str, Any]) -> dict[str, Any]:
    """The report on a path that could not be opened: no findings, and the error."""
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
    about = {"schema": 1, "rustload": rustload.__version__}
    return {**about, "verdict": "unknown", "complete": False, "files": [file]}


def _standard_input() -> dict[str, Any]:
    """The report on standard input: a file is read in place, a pipe as far as a scan copies anything."""
    if sys.stdin is None:
        raise ValueError("-: there is no standard input")
    stream = sys.stdin.buffer
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        report = report_on(stream, {})
    else:
        most = rustload.Limits().scan_bytes
        content = stream.read(most + 1)
        if len(content) > most:
            raise ValueError(
                f"-: standard input goes on beyond {format_bytes(most)}, the most that is read of a pipe; scan a file"
            )
        report = report_on(content, {})
    for file in report["files"]:
        file["path"] = "-"
    return report


def _tell(text: str) -> None:
    page = Page(sys.stderr, "never")
    page.line(f"rustload: {page.safe(text)}")
    page.flush()


def _sum_up(files: list[dict[str, Any]]) -> None:
    """Says on stderr how many files there were, where there were several."""
    if len(files) < 2:
        return
    by_word: dict[str, int] = {}
    for file in files:
        word = file["verdict"] if file["status"] == "scanned" else file["status"]
        by_word[word] = by_word.get(word, 0) + 1
    told = ", ".join(f"{number:,} {word}" for word, number in by_word.items())
    _tell(f"{count(len(files), 'file')}: {told}")
