"""A scan report as a SARIF 2.1.0 log, by the rules of GitHub's code scanning.

The log depends on the files, their paths below the root and the policy, not on the time or on the place of the root. A result has
a fingerprint without positions, so that an alert stays the same one when the file is written again. What the policy or its
baseline accepts is not a result, because code scanning does not honor `suppressions`.
"""

from __future__ import annotations

import os
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from rustload import _rustload
from rustload._scan.sarif_paths import artifact_uri, is_outside
from rustload._scan.sarif_rules import LEVELS, NOT_SCANNED, RULE_IDS, rule_of, rules
from rustload._scan.text import finding_text
from rustload._scan.verdict import ORDER
from rustload.errors import _printable

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# GitHub's limits: 25,000 results, of which it shows 5,000; 1,000 steps of a thread flow are shown.
RESULTS_MAX = 25_000
# The most steps of the flow of one file, and of all.
STEPS_MAX = 100
ALL_STEPS_MAX = 10_000
# The most characters of a call with its arguments.
CALL_MAX_CHARS = 200

_NOTICES = {
    "Unreadable": "A file could not be read.",
    "Cut": "The log does not have everything that was found.",
    "OutsideRoot": "Files are outside of the folder that URIs are relative to.",
    "Excluded": "Files or folders are left out by their names.",
    "Accepted": "The policy or its baseline accepts findings.",
}


class _Found(NamedTuple):
    """A finding, or a part that was not scanned, and the file that it is in."""

    uri: str
    file: dict[str, Any]
    found: dict[str, Any]
    rule: str

    def key(self) -> tuple[Any, ...]:
        """Sorts by severity, then by place."""
        found = self.found
        where = (self.uri, found["member"] or "", -1 if found["offset"] is None else found["offset"])
        return (-ORDER[found["verdict"]], *where, self.rule, *_global(found), found["message"])


def sarif(report: dict[str, Any], *, root: str | None = None, exit_code: int | None = None) -> dict[str, Any]:
    """The log.

    Args:
        report: The JSON report, judged by its policy; its files, and how many are left out.
        root: The folder that URIs are relative to; None for the working directory.
        exit_code: The exit code of the process, if there is one.
    """
    root = os.path.realpath(root or ".")
    files = [(artifact_uri(file["path"], root), file) for file in report["files"]]
    found, accepted = _collected(files)
    found.sort(key=_Found.key)
    notices = list(_notices(files))
    if len(found) > RESULTS_MAX:
        text = f"{len(found) - RESULTS_MAX:,} results are left out: the most are {RESULTS_MAX:,}"
        notices.append(_notice("Cut", "warning", text))
    if report["excluded"]:
        text = f"files and folders that are left out by their names: {report['excluded']:,}"
        notices.append(_notice("Excluded", "note", text))
    if accepted:
        text = (
            f"{accepted:,} finding{'' if accepted == 1 else 's'} that the policy accepts: not in the results"
        )
        notices.append(_notice("Accepted", "note", text))
    is_read = all(file["status"] != "unreadable" for _, file in files)
    invocation = {"executionSuccessful": is_read, "toolExecutionNotifications": notices}
    if exit_code is not None:
        invocation["exitCode"] = exit_code
    driver = {
        "name": "rustload",
        "semanticVersion": _rustload.__version__,
        "rules": rules(),
        "notifications": [{"id": id_, "shortDescription": {"text": text}} for id_, text in _NOTICES.items()],
    }
    run = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "automationDetails": {"id": "rustload-scan/"},
        "columnKind": "utf16CodeUnits",
        "artifacts": _artifacts(files),
        "results": _results(found[:RESULTS_MAX]),
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _collected(files: list[tuple[str, dict[str, Any]]]) -> tuple[list[_Found], int]:
    """What becomes a result, and the number of findings that are accepted."""
    results, accepted = [], 0
    for uri, file in files:
        for found in file["findings"]:
            if found["allowed"] or found["known"]:
                accepted += 1
                continue
            # A skipped file passes, whatever is found.
            verdict = "inert" if file["status"] == "skipped" else found["verdict"]
            rule = rule_of(found["code"], verdict)
            results.append(_Found(uri, file, {**found, "verdict": verdict}, rule))
        for gap in file["coverage"]["unscanned"]:
            if gap["known"]:
                accepted += 1
            else:
                results.append(_Found(uri, file, _gap(gap), NOT_SCANNED))
    return results, accepted


def _gap(gap: dict[str, Any]) -> dict[str, Any]:
    """A part that was not scanned, in the form of a finding."""
    message = f"{gap['nbytes']:,} bytes were not scanned: {gap['why']}"
    nothing = dict.fromkeys(("module", "name", "arguments"))
    place = {"member": gap["member"], "offset": gap["offset"]}
    return {"code": NOT_SCANNED, "verdict": "unknown", "message": message, "times": 1, **place, **nothing}


def _artifacts(files: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The files that were scanned, each once, with the worst verdict."""
    properties: dict[str, dict[str, Any]] = {}
    for uri, file in files:
        if file["status"] != "scanned":
            continue
        mine = properties.setdefault(uri, {"verdict": "inert", "complete": True})
        mine["verdict"] = max(mine["verdict"], file["verdict"], key=ORDER.__getitem__)
        mine["complete"] &= file["coverage"]["complete"]
    return [
        {"location": {"uri": uri}, "roles": ["analysisTarget"], "properties": properties[uri]}
        for uri in sorted(properties)
    ]


def _notices(files: list[tuple[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """What is to be said of the scan itself."""
    for uri, file in sorted(files, key=lambda pair: pair[0]):
        where = [{"physicalLocation": {"artifactLocation": {"uri": uri}}}]
        if file["status"] == "unreadable":
            error = file.get("error", {}).get("message", "it could not be read")
            # The location has the path, from the root on.
            text = error.removeprefix(f"{file['path']}: ")
            yield {**_notice("Unreadable", "error", text), "locations": where}
        if file["coverage"]["truncated"]:
            text = "a list of the report reached a limit: there are more findings or calls"
            yield {**_notice("Cut", "warning", text), "locations": where}
    outside = sum(is_outside(uri) for uri, _ in files)
    if outside:
        text = f"{outside:,} file{'' if outside == 1 else 's'} outside of the root: code scanning cannot show them"
        yield _notice("OutsideRoot", "note", text)


def _notice(id_: str, level: str, text: str) -> dict[str, Any]:
    descriptor = {"id": id_, "index": list(_NOTICES).index(id_)}
    return {"descriptor": descriptor, "level": level, "message": {"text": _plain(text)}}


def _results(found: list[_Found]) -> list[dict[str, Any]]:
    """The results. The first one of each file has what unpickling the file would do up to there."""
    equal: Counter[tuple[str, ...]] = Counter()
    results, with_flow, steps_left = [], set(), ALL_STEPS_MAX
    for one in found:
        identity = (one.rule, one.uri, one.found["member"] or "", *_global(one.found))
        equal[identity] += 1
        result = _result(one, _fingerprint(*identity, str(equal[identity])))
        if id(one.file) not in with_flow and one.found["verdict"] != "inert":
            with_flow.add(id(one.file))
            steps = _steps(one)[-min(STEPS_MAX, steps_left) :] if steps_left else []
            steps_left -= len(steps)
            if steps:
                locations = [_flow_location(one.uri, step) for step in steps]
                result["codeFlows"] = [{"threadFlows": [{"locations": locations}]}]
        results.append(result)
    return results


def _result(one: _Found, fingerprint: str) -> dict[str, Any]:
    found = one.found
    member, offset = found["member"], found["offset"]
    place = ", ".join([*([member] if member else []), *([] if offset is None else [f"byte {offset:,}"])])
    text = finding_text(found, CALL_MAX_CHARS) + (f" ({place})" if place else "")
    properties = {
        "code": found["code"],
        "verdict": found["verdict"],
        "member": member,
        "offset": offset,
        "opcode": next((step["opcode"] for step in one.file["trace"] if _is_at(step, found)), None),
        "module": found["module"],
        "name": found["name"],
        "readers": found.get("readers"),
    }
    index = RULE_IDS.get(one.rule)
    return {
        "ruleId": one.rule,
        **({} if index is None else {"ruleIndex": index}),
        "level": LEVELS[found["verdict"]],
        "message": {"text": _plain(text)},
        "locations": [_location(one.uri, member, offset)],
        "partialFingerprints": {"primaryLocationLineHash": fingerprint},
        "occurrenceCount": found["times"],
        "properties": {key: value for key, value in properties.items() if value not in (None, "", [])},
    }


def _location(uri: str, member: str | None, offset: int | None) -> dict[str, Any]:
    # Code scanning wants lines; a file that has none is shown from its first one.
    region = {"startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1}
    if offset is not None and not member:
        region |= {"byteOffset": offset, "byteLength": 1}
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": uri}, "region": region}}
    if member:
        location["logicalLocations"] = [{"fullyQualifiedName": _printable(member), "kind": "member"}]
    return location


def _steps(one: _Found) -> list[dict[str, Any]]:
    """What unpickling would do, up to the finding; all of it for a finding about no call."""
    trace: list[dict[str, Any]] = one.file["trace"]
    ends = [number for number, step in enumerate(trace, start=1) if _is_at(step, one.found)]
    return trace[: ends[-1]] if ends else trace


def _is_at(step: dict[str, Any], found: dict[str, Any]) -> bool:
    return (step["member"], step["offset"]) == (found["member"], found["offset"])


def _flow_location(uri: str, step: dict[str, Any]) -> dict[str, Any]:
    text = f"{step['effect']} {finding_text({**step, 'message': ''}, CALL_MAX_CHARS)}".strip()
    location = _location(uri, step["member"], step["offset"])
    return {"location": {**location, "message": {"text": _plain(text)}}, "kinds": [step["effect"]]}


def _global(found: dict[str, Any]) -> tuple[str, str]:
    return found["module"] or "", found["name"] or ""


def _fingerprint(*parts: str) -> str:
    """What stays when the file is written again. The number after the colon is that of equal lines, which GitHub appends."""
    return sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16] + ":1"


def _plain(text: str) -> str:
    """A message without links: a name from a file could write one, as `[text](target)`."""
    return _printable(text).replace("](", "] (")
