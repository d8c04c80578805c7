"""HTML of reports: a line that sums up, and lists that can be unfolded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._html.page import Budget, details, frame, table, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ITEMS_MAX = 50
"""The most items of each list."""
OPEN_MAX = 10
"""The most items of a list that is shown unfolded."""
FILES_MAX = 100
"""The most files of a scan."""
_CLASSES = {"inert": "good", "unknown": "warn", "would execute": "bad"}


def report_html(
    title: str,
    summary: str,
    lists: Mapping[str, Sequence[Sequence[str]]],
    *,
    counts: Mapping[str, int] | None = None,
) -> str:
    """The HTML of a report on work that was done.

    Args:
        title: The name of its class.
        summary: The report in a line, which is also the text where styles are removed.
        lists: The rows of each list, by the report's field that has all of it; empty lists are left out.
        counts: The number of things in each list; None if it is that of its rows.
    """
    budget = Budget()
    body = []
    for name, items in lists.items():
        if items:
            cells = [
                [f'<div class="k">{text(item[0])}</div>', *map(text, item[1:])] for item in items[:ITEMS_MAX]
            ]
            inside, complete = table(cells, budget)
            if not complete or len(items) > ITEMS_MAX:
                inside += f'<p class="m">not all is shown: see report.{text(name)}</p>'
            number = len(items) if counts is None else counts[name]
            is_short = len(items) <= OPEN_MAX
            body.append(details(f"<b>{text(name)}</b> ({number:,})", inside, is_open=is_short))
    return frame(title, summary, summary, body)


def scan_html(report: Mapping[str, Any], fallback: str) -> str:
    """The HTML of a scan report in JSON: the verdict of each file, in their order, with its findings.

    For the report on one file, it is `{"verdict": ..., "files": [the file]}`. `fallback` is shown where styles are removed.
    """
    budget = Budget()
    body = []
    files = report["files"]
    for file in files[:FILES_MAX]:
        part = _file(file, budget)
        if part is None:
            break
        body.append(part)
    if len(body) < len(files):
        body.append(
            f'<p class="m">{len(files) - len(body):,} more files are not shown: see print(report)</p>'
        )
    if report.get("excluded"):
        body.append(f'<p class="m">left out by name: {report["excluded"]:,} files and folders</p>')
    body.insert(0, f"<p>{_verdict(report['verdict'])}</p>" if len(files) != 1 else "")
    return frame("Scan report", f"{len(files):,} file{'' if len(files) == 1 else 's'}", fallback, body)


def _file(file: Mapping[str, Any], budget: Budget) -> str | None:
    """A file with its findings; None if the budget does not have the bytes for its first line."""
    verdict = file["verdict"] if file["status"] == "scanned" else file["status"]
    complete = file["coverage"]["complete"] or file["status"] != "scanned"
    summary = f"{text(file['path'] or 'bytes')}: {_verdict(verdict)}" + ("" if complete else ", not complete")
    findings, gaps = file["findings"], file["coverage"]["unscanned"]
    if not budget.take(details(summary, "")):
        return None
    if not (findings or gaps):
        return f"<p>{summary}</p>"
    cells = [
        [
            f'<span class="{_CLASSES.get(found["verdict"], "m")}">{text(found["severity"])}</span>',
            text(found["code"]),
            f'<div class="k">{text(_where(found))}</div>',
            f'<div class="k">{text(_what(found), 300)}</div>',
        ]
        for found in findings[:ITEMS_MAX]
    ]
    cells += (
        [
            "",
            "not scanned",
            f'<div class="k">{text(_where(gap))}</div>',
            f'<div class="k">{text(gap["why"], 300)}</div>',
        ]
        for gap in gaps[:ITEMS_MAX]
    )
    inside, complete = table(cells, budget)
    if not complete or max(len(findings), len(gaps)) > ITEMS_MAX:
        inside += '<p class="m">not all is shown: see .findings and .coverage</p>'
    return details(f"{summary} ({len(findings):,})" if findings else summary, inside, is_open=True)


def _verdict(verdict: str) -> str:
    return f'<span class="{_CLASSES.get(verdict, "warn")}">{text(verdict)}</span>'


def _where(found: Mapping[str, Any]) -> str:
    at = "" if found["offset"] is None else f"byte {found['offset']}"
    return " ".join(part for part in (found["member"], at) if part)


def _what(found: Mapping[str, Any]) -> str:
    name = ".".join(part for part in (found["module"], found["name"]) if part)
    message: str = found["message"]
    if found["arguments"] is None:
        return message
    return f"{name}{found['arguments']}: {message.removeprefix(name).lstrip()}"
