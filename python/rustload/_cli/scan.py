"""`rustload scan`: what files would do in a reader that runs pickles, as text for people and as JSON for machines."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Any

import rustload
from rustload import _scan
from rustload._cli import FOUND, UNREAD
from rustload._cli.info import complain
from rustload._cli.text import Page, count, print_json, size
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run", "show"]

# Findings and steps below one file; --json has all of them.
MOST = 20
# Characters of a call.
LONGEST = 150
# Skipped files that are named.
SKIPPED = 3
# What stands for standard input.
STANDARD_INPUT = ("-", "/dev/stdin")
_COLORS = {"inert": "32", "unknown": "33", "would execute": "1;31"}
_SEVERITIES = {"note": "2", "warning": "33", "error": "1;31"}


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
            part = _standard_input() if path in STANDARD_INPUT else _scan._one(path, {})
        except (RustloadError, OSError, ValueError, MemoryError) as error:
            part = _failed(path, complain(error))
        if not part["files"]:
            _tell(f"nothing to scan: {path} has no files")
        parts.append(part)
    report = _scan._merged(parts)
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
        report = _scan._one(stream, {})
    else:
        most = rustload.Limits().scan_bytes
        content = stream.read(most + 1)
        if len(content) > most:
            raise ValueError(
                f"-: standard input goes on beyond {size(most)}, the most that is read of a pipe; scan a file"
            )
        report = _scan._one(content, {})
    for file in report["files"]:
        file["path"] = "-"
    return report


def _tell(text: str) -> None:
    page = Page(sys.stderr, "never")
    page.line(f"rustload: {page.safe(text)}")
    page.flush()


def show(page: Page, report: dict[str, Any], *, quiet: bool) -> None:
    """Prints a report as text: one line for each file, what was found below it."""
    skipped = []
    for file in report["files"]:
        if file["status"] == "skipped" and not file["findings"]:
            skipped.append(file["path"])
        elif not (quiet and file["verdict"] == "inert"):
            _file(page, file, quiet=quiet)
    if skipped and not quiet:
        names = ", ".join(page.safe(name) for name in skipped[:SKIPPED])
        more = f" and {len(skipped) - SKIPPED:,} more" if len(skipped) > SKIPPED else ""
        page.line(page.dim(page.clipped(f"passed over, as they hold no pickle: {names}{more}")))


def _file(page: Page, file: dict[str, Any], *, quiet: bool) -> None:
    word = file["status"] if file["status"] != "scanned" else file["verdict"]
    incomplete = "" if file["coverage"]["complete"] or file["status"] != "scanned" else ", not complete"
    name = page.safe(file["path"]) if file["path"] else "bytes"
    page.line(f"{page.strong(name)}: {page.paint(_COLORS.get(word, '33'), word)}{page.dim(incomplete)}")
    findings = [found for found in file["findings"] if not (quiet and found["verdict"] == "inert")]
    findings.sort(key=lambda found: -_scan._ORDER[found["verdict"]])
    shown = findings[:MOST]
    codes = [found["code"] for found in shown]
    places = [_place(page, found) for found in shown]
    widths = [max(map(len, column), default=0) for column in (codes, places)]
    for found, code, place in zip(shown, codes, places, strict=True):
        severity = (_SEVERITIES[found["severity"]], found["severity"].ljust(7))
        cells = [severity, ("", code.ljust(min(widths[0], 24))), ("", place.ljust(min(widths[1], 40)))]
        page.hung(cells, _words(page, found))
    if len(findings) > MOST:
        page.line(page.dim(f"  and {len(findings) - MOST:,} more (--json has all)"))
    for gap in file["coverage"]["unscanned"][: 1 if quiet else 5]:
        where = f"{page.safe(gap['member'])}, " if gap["member"] else ""
        page.line(page.clipped(f"  not scanned: {where}byte {gap['offset']:,}: {page.safe(gap['why'])}"))


def _place(page: Page, found: dict[str, Any]) -> str:
    member = page.safe(found["member"]) if found["member"] else ""
    if len(member) > 24:
        member = "..." + member[-21:]
    if found["offset"] is None:
        return member
    return f"{member} " * bool(member) + f"byte {found['offset']}"


def _words(page: Page, found: dict[str, Any]) -> str:
    times = f" ({count(found['times'], 'time')})" if found["times"] > 1 else ""
    if found["arguments"] is None:
        return page.safe(found["message"]) + times
    name = ".".join(part for part in (found["module"], found["name"]) if part)
    call = page.safe(name + found["arguments"])
    if len(call) > LONGEST:
        call = call[:LONGEST] + "..."
    message = page.safe(found["message"])
    return f"{call}: {message.removeprefix(page.safe(name)).lstrip()}{times}"


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
