"""Splices of two formats: what some reader would run is never inert."""

from attacks.readers import imports
from attacks.splices import splices

import rustload


def test_what_a_reader_would_run_in_a_splice_is_never_inert(pytestconfig):
    count = pytestconfig.getoption("--splices")
    run, inert = 0, 0
    for label, data in splices(count, seed=count):
        report = rustload.scan(data)
        if report.verdict != "inert" and run > count // 8:
            continue  # not inert is right whatever a reader does; that enough of them do was seen
        found = imports(data)
        run += bool(found)
        inert += report.verdict == "inert"
        assert not (found and report.verdict == "inert"), (label, found, str(report))
    assert run > count // 10, f"only {run} of {count} splices run anything"
