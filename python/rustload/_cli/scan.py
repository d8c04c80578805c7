"""`rustload scan`: what files would do in a reader that runs pickles, as text for people and as JSON for machines."""

from __future__ import annotations

import json as json_format
import sys
from typing import TYPE_CHECKING, Any

from rustload import _scan
from rustload._cli import FOUND, UNREAD
from rustload._cli.info import complain
from rustload._cli.text import Page, count, escape
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
    unread = False
    parts: list[dict[str, Any]] = []
    for path in paths:
        try:
            parts.append(_scan._one(path, {}))
        except (RustloadError, OSError, ValueError, MemoryError) as error:
            complain(error)
            unread = True
    report = _scan._merged(parts) if parts else None
    if json:
        json_format.dump(report or _nothing(), sys.stdout, indent=1)
        sys.stdout.write("\n")
    elif report:
        page = Page(sys.stdout, color)
        show(page, report, quiet=quiet)
        page.flush()
    files = report["files"] if report else []
    scanned = [file for file in files if file["status"] == "scanned"]
    if not json:
        _sum_up(files)
    if any(file["verdict"] != "inert" for file in scanned):
        return FOUND
    if unread or not scanned or any(file["status"] == "unreadable" for file in files):
        return UNREAD
    return 0


def _nothing() -> dict[str, Any]:
    return {"schema": 1, "verdict": "unknown", "complete": False, "files": []}


def show(page: Page, report: dict[str, Any], *, quiet: bool) -> None:
    """Prints a report as text: one line for each file, what was found below it."""
    skipped = []
    for file in report["files"]:
        if file["status"] == "skipped" and not file["findings"]:
            skipped.append(file["path"])
        elif not (quiet and file["verdict"] == "inert"):
            _file(page, file, quiet=quiet)
    if skipped and not quiet:
        names = ", ".join(escape(name) for name in skipped[:SKIPPED])
        more = f" and {len(skipped) - SKIPPED:,} more" if len(skipped) > SKIPPED else ""
        page.line(page.dim(page.clipped(f"passed over, as they hold no pickle: {names}{more}")))


def _file(page: Page, file: dict[str, Any], *, quiet: bool) -> None:
    word = file["status"] if file["status"] != "scanned" else file["verdict"]
    incomplete = "" if file["coverage"]["complete"] or file["status"] != "scanned" else ", not complete"
    name = escape(file["path"]) if file["path"] else "bytes"
    page.line(f"{page.strong(name)}: {page.paint(_COLORS.get(word, '33'), word)}{page.dim(incomplete)}")
    findings = [found for found in file["findings"] if not (quiet and found["verdict"] == "inert")]
    findings.sort(key=lambda found: -_scan._ORDER[found["verdict"]])
    shown = findings[:MOST]
    widths = [max((len(text(found)) for found in shown), default=0) for text in (_code, _place)]
    for found in shown:
        code, place = _code(found).ljust(min(widths[0], 24)), _place(found).ljust(min(widths[1], 40))
        severity = page.paint(_SEVERITIES[found["severity"]], found["severity"].ljust(7))
        lead = f"  {severity}  {code}  {place}"
        page.hung(lead, len(code) + len(place) + 13, _words(found))
    if len(findings) > MOST:
        page.line(page.dim(f"  and {len(findings) - MOST:,} more (--json has all)"))
    for gap in file["coverage"]["unscanned"][: 1 if quiet else 5]:
        where = f"{escape(gap['member'])}, " if gap["member"] else ""
        page.line(page.clipped(f"  not scanned: {where}byte {gap['offset']:,}: {escape(gap['why'])}"))


def _code(found: dict[str, Any]) -> str:
    return str(found["code"])


def _place(found: dict[str, Any]) -> str:
    member = escape(found["member"]) if found["member"] else ""
    if len(member) > 24:
        member = "..." + member[-21:]
    if found["offset"] is None:
        return member
    return f"{member} " * bool(member) + f"byte {found['offset']}"


def _words(found: dict[str, Any]) -> str:
    times = f" ({count(found['times'], 'time')})" if found["times"] > 1 else ""
    if found["arguments"] is None:
        return escape(found["message"]) + times
    name = ".".join(part for part in (found["module"], found["name"]) if part)
    call = escape(name + found["arguments"])
    if len(call) > LONGEST:
        call = call[:LONGEST] + "..."
    message = escape(found["message"])
    return f"{call}: {message.removeprefix(escape(name)).lstrip()}{times}"


def _sum_up(files: list[dict[str, Any]]) -> None:
    """Says on stderr how many files there were, where there were several."""
    if len(files) < 2:
        return
    by_word: dict[str, int] = {}
    for file in files:
        word = file["verdict"] if file["status"] == "scanned" else file["status"]
        by_word[word] = by_word.get(word, 0) + 1
    told = ", ".join(f"{number:,} {word}" for word, number in by_word.items())
    sys.stderr.write(f"rustload: {count(len(files), 'file')}: {told}\n")
