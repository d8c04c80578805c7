"""Formats a scan report as text: one line per file, with its findings below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._common.terminal import Page, count
from rustload._scan.verdict import ORDER
from rustload.errors import _printable

if TYPE_CHECKING:
    from collections.abc import Iterable

# The most findings to show per file; --json has all of them.
FINDINGS_SHOWN_MAX = 20
# The most characters to show of a call.
CALL_SHOWN_MAX_CHARS = 150
# The most skipped files to list.
SKIPPED_SHOWN_MAX = 3
VERDICT_COLORS = {"inert": "32", "unknown": "33", "would execute": "1;31"}
_SEVERITIES = {"note": "2", "allowed": "32", "known": "2", "warning": "33", "error": "1;31"}
# The codes of findings that an allowance settles; the same list is in src/scan/policy.rs.
_ALLOWABLE = (
    "DisallowedGlobal",
    "DisallowedCall",
    "Import",
    "AttributeWalk",
    "ModuleSource",
    "CodeInArchive",
)
# What ends the message about a state that an allowance settles; the same text is in src/scan/pickles/states.rs.
_SETTLED = "; an allowance of the class covers it"
# Reasons that name no reader.
_VAGUE = ("JSON, ", "a member that no known reader")
# The most parts that were not scanned to show per file, each for another reason.
GAPS_SHOWN_MAX = 5
# The most names to suggest for --allow.
SUGGESTED_MAX = 8


def show(page: Page, report: dict[str, Any], *, quiet: bool) -> None:
    """Adds a report to a page: one line per file, with its findings below."""
    skipped = []
    for file in for_people(report["files"]):
        if file["status"] == "skipped" and not file["findings"]:
            skipped.append(file["path"])
        elif not (quiet and file["passes"]):
            _file(page, file, quiet=quiet)
    if skipped and not quiet:
        names = ", ".join(page.safe(name) for name in skipped[:SKIPPED_SHOWN_MAX])
        more = f" and {len(skipped) - SKIPPED_SHOWN_MAX:,} more" if len(skipped) > SKIPPED_SHOWN_MAX else ""
        page.line(page.dim(page.fitted(f"passed over, as they hold no pickle: {names}{more}")))
    names_left_out = report["policy"]["exclude"]
    if names_left_out and not quiet:
        names = ", ".join(map(page.safe, names_left_out))
        number = report["excluded"]
        what = "file or folder" if number == 1 else "files and folders"
        page.line(page.dim(page.fitted(f"left out: {number:,} {what} of these names: {names}")))


def for_people(files: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The files, first those that do not pass, worst first. Of the parts that were not scanned, one for each reason."""
    shown = []
    for file in sorted(files, key=lambda file: (file["passes"], file["passes"] or -ORDER[file["verdict"]])):
        firsts: dict[str, dict[str, Any]] = {}
        for gap in file["coverage"]["unscanned"]:
            firsts.setdefault(gap["why"], gap)
        gaps = sorted(firsts.values(), key=lambda gap: gap["why"].startswith(_VAGUE))
        shown.append({**file, "coverage": {**file["coverage"], "unscanned": gaps}})
    return shown


def _file(page: Page, file: dict[str, Any], *, quiet: bool) -> None:
    word = file["status"] if file["status"] != "scanned" else file["verdict"]
    remarks = "" if file["coverage"]["complete"] or file["status"] != "scanned" else ", not complete"
    if file["status"] == "scanned" and file["verdict"] != "inert" and file["passes"]:
        remarks += ", passes the policy"
    name = page.safe(file["path"]) if file["path"] else "bytes"
    page.line(f"{page.strong(name)}: {page.paint(VERDICT_COLORS.get(word, '33'), word)}{page.dim(remarks)}")
    hidden = ("note", "allowed", "known") if quiet else ()
    findings = [found for found in file["findings"] if _label(found) not in hidden]
    findings.sort(key=lambda found: -ORDER[found["verdict"]])
    shown = findings[:FINDINGS_SHOWN_MAX]
    codes = [found["code"] for found in shown]
    locations = [_location(page, found) for found in shown]
    widths = [max(map(len, column), default=0) for column in (codes, locations)]
    for found, code, location in zip(shown, codes, locations, strict=True):
        label = _label(found)
        severity = (_SEVERITIES[label], label.ljust(7))
        cells = [severity, ("", code.ljust(min(widths[0], 24))), ("", location.ljust(min(widths[1], 40)))]
        page.hanging(cells, _description(page, found))
    if len(findings) > FINDINGS_SHOWN_MAX:
        page.line(page.dim(f"  and {len(findings) - FINDINGS_SHOWN_MAX:,} more (--json has all)"))
    gaps = [gap for gap in file["coverage"]["unscanned"] if not (quiet and gap["known"])]
    for gap in gaps[:GAPS_SHOWN_MAX]:
        where = f"{page.safe(gap['member'])}, " if gap["member"] else ""
        page.line(page.fitted(f"  not scanned: {where}byte {gap['offset']:,}: {page.safe(gap['why'])}"))

    names = _allowable(file)
    if names:
        options = " ".join(f"--allow {page.safe(name)}" for name in names)
        page.line(page.dim(f"  if you know what these do: {options}"))
    elif word == "would execute" and not file["passes"]:
        text = "delete it, or read its tensors with rustload.open, which runs nothing of it"
        page.hanging([("2", "next step")], text)


def _label(found: dict[str, Any]) -> str:
    if found["allowed"]:
        return "allowed"
    severity: str = found["severity"]
    return "known" if found["known"] and severity != "note" else severity


def _allowable(file: dict[str, Any]) -> list[str]:
    """The names whose allowance would make the file inert; none if something else is wrong with it, too."""
    if file["passes"] or not file["coverage"]["complete"]:
        return []
    bad = [found for found in file["findings"] if found["verdict"] != "inert"]
    if any(found["verdict"] != "unknown" or not _is_allowable(found) for found in bad):
        return []
    names = [f"{found['module']}.{found['name']}" for found in bad]
    # TorchScript's classes are one module, which the archive brings.
    names = list(dict.fromkeys("'__torch__.*'" if name.startswith("__torch__.") else name for name in names))
    # A shell takes other names as they are.
    plain = all(char.isalnum() or char in "_." for name in names if name[0] != "'" for char in name)
    return names if plain and len(names) <= SUGGESTED_MAX else []


def _is_allowable(found: dict[str, Any]) -> bool:
    return found["code"] in _ALLOWABLE or found["message"].endswith(_SETTLED)


def _location(page: Page, found: dict[str, Any]) -> str:
    member = page.safe(found["member"]) if found["member"] else ""
    if len(member) > 24 and page.room(0) is not None:
        member = f"{member[:8]}...{member[-13:]}"
    if found["offset"] is None:
        return member
    return f"{member} " * bool(member) + f"byte {found['offset']}"


def _description(page: Page, found: dict[str, Any]) -> str:
    allowed = f" (allowed by {page.safe(found['allowed'])})" if found["allowed"] else ""
    return page.safe(finding_text(found, CALL_SHOWN_MAX_CHARS)) + allowed


def finding_text(found: dict[str, Any], most: int) -> str:
    """A finding in one line without control characters: the call, of at most `most` characters, and the message."""
    message = _printable(found["message"])
    times = f" ({count(found['times'], 'time')})" if found.get("times", 1) > 1 else ""
    if found["arguments"] is None:
        return message + times
    name = _printable(".".join(part for part in (found["module"], found["name"]) if part))
    call = name + _printable(found["arguments"])
    if len(call) > most:
        call = call[:most] + "..."
    message = message.removeprefix(name).lstrip()
    return f"{call}: {message}{times}" if message else call + times
