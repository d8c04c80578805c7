"""The scan of every input of the attack matrix: its findings, the calls in program order, and its verdict."""

import importlib.util
import json

import pytest
from attacks import CASES
from attacks.registry import Named, Shown
from quiet import crowding, within
from ranged import Ranges
from schemas import check_sarif, new_errors, validator_of

import rustload

MIB = 1 << 20
SECONDS = 2.0
"""Of a core, in a release build."""
FILES = [case for case in CASES if not isinstance(case.load, Shown)]
KIND_OF = {code: kind for code, kind, _, _ in rustload._rustload.CODES}
NO_FINDING = {"Io", "NotRegularFile"}
"""Codes that a scan raises as an error of the path and does not list as a finding in a file."""
VALIDATES = importlib.util.find_spec("jsonschema") is not None


@pytest.mark.parametrize("case", FILES, ids=lambda case: case.label)
def test_scans(case, folder):
    source = case.input(folder)
    try:
        limits = rustload.Limits(**case.options["limits"]) if "limits" in case.options else None
        report = rustload.scan(source, limits=limits)
    except OSError:
        assert case.finds
        assert set(case.finds) <= NO_FINDING
        return
    # Every code and verdict has its rule.
    check_sarif(
        json.loads(report.to_sarif(root=folder if case.placed else source.parent)),
        schema=VALIDATES,
        rules_too=False,
    )
    assert not VALIDATES or new_errors(validator_of("scan"), json.loads(report.to_json())) == []
    codes = {finding.code for finding in report.findings}
    assert set(case.finds) <= codes, f"found {sorted(codes)}"
    calls = iter([f"{entry.module}.{entry.name}" for entry in report.trace])
    missing = [wanted for wanted in case.runs if wanted not in calls]
    assert not missing, (
        f"the trace lacks {missing}: {[(entry.module, entry.name) for entry in report.trace][:20]}"
    )
    assert report.verdict in ("inert", "unknown", "would execute")
    if not report.complete:
        assert report.verdict != "inert"
    if case.id[0] in "XZ" and not case.placed:
        by_ranges = rustload.scan(Ranges(source.read_bytes()), limits=limits)
        assert by_ranges.verdict == report.verdict
        assert [(step.module, step.name) for step in by_ranges.trace] == [
            (step.module, step.name) for step in report.trace
        ]
    if case.verdict is not None:
        assert report.verdict == case.verdict
    elif "posix.system" in case.runs:
        assert report.verdict == "would execute"
    elif KIND_OF.get(getattr(case.load, "code", "")) == "Unsupported":
        pass  # nothing would run, and rustload cannot read it: inert and unknown are both right
    elif set(case.finds) & KIND_OF.keys() and not isinstance(case.load, Named):
        assert report.verdict != "inert", sorted(codes)


BOMBS = [
    case
    for case in FILES
    if case.id.startswith("R")
    or "X90" <= case.id <= "X99"
    or case.metadata
    or case.tensors
    or case.id in ("Z41", "S17", "S22")
]


@pytest.mark.parametrize("case", BOMBS, ids=lambda case: case.label)
def test_a_scan_of_a_bomb_stays_within_the_memory_and_time_bounds(case, folder, prober):
    source = case.input(folder)
    metadata = max(source.stat().st_size if source.is_file() else 0, case.metadata)
    outcome = prober.ask(source, scan=True, **case.options)
    bound = 64 * MIB + 40 * min(metadata, 1 << 28) + 512 * case.tensors
    assert outcome["scan"]["peak"] <= bound, (
        f"{outcome['scan']['peak'] >> 20} MiB, the bound is {bound >> 20}"
    )
    seconds = [outcome["scan"]["seconds"]]
    allowed = SECONDS * crowding()
    while seconds[-1] > allowed and len(seconds) < 3:
        seconds.append(prober.ask(source, scan=True, **case.options)["scan"]["seconds"])
    assert rustload._rustload.DEBUG or within(min(seconds), allowed), seconds
