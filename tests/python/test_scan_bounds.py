"""A scan report is bounded, whatever the file names: long texts are shortened, and all texts are charged."""

import json

from support import child

import rustload

TEXT_MAX_BYTES = 512


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def named(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


def pickle(*values: bytes) -> bytes:
    return b"\x80\x04(" + b"".join(values) + b"l."


def test_a_long_name_loses_its_middle_and_keeps_its_verdict():
    report = rustload.scan(pickle(named("os." + "a" * 4000, "system") + b")R"))
    assert report.verdict == "would execute"
    [finding], [called] = report.findings, report.globals
    for module in (finding.module, called.module, report.trace[0].module):
        assert module.startswith("os.aaa")
        assert "..." in module
        assert len(module) <= TEXT_MAX_BYTES
    assert (finding.name, called.name, called.calls) == ("system", "system", 1)
    assert len(finding.message) <= TEXT_MAX_BYTES


def test_two_long_names_that_are_shortened_to_one_text_keep_their_verdicts():
    start, end = "a" * 2000, "b" * 2000
    values = [named("mine", f"{start}{part}{end}") + b")R" for part in ("x", "y", ".__class__.")]
    report = rustload.scan(pickle(*values))
    verdicts = {(called.name, called.verdict): called.calls for called in report.globals}
    assert sorted((verdict, calls) for (_, verdict), calls in verdicts.items()) == [
        ("unknown", 2), ("would execute", 1),
    ]  # fmt: skip
    assert len({name for name, _ in verdicts}) == 1


def test_the_finding_that_gives_a_file_its_verdict_is_kept_when_the_report_is_full():
    harmless = [named("mine", f"name{number}") + b")R" for number in range(50)]
    data = pickle(*harmless, named("os", "system") + b")R")
    for limits in (rustload.Limits(report_bytes=4000), rustload.Limits(findings=10)):
        report = rustload.scan(data, limits=limits)
        assert report.verdict == "would execute"
        assert report.coverage[0].truncated
        assert report.findings[-1].module == "os"
        assert len(report.findings) < 50
    # The finding is kept beyond the limit on their number.
    assert (len(report.findings), len(report.trace), len(report.globals)) == (11, 10, 10)


def test_all_files_of_a_scan_share_one_budget(tmp_path):
    for number in range(4):
        data = pickle(*(named("mine", f"name{number}") + b")R" for number in range(20)))
        (tmp_path / f"{number}.pkl").write_bytes(data)
    whole = rustload.scan(tmp_path)
    assert not any(coverage.truncated for coverage in whole.coverage)
    limit = len(whole.to_json()) // 2
    cut = rustload.scan(tmp_path, limits=rustload.Limits(report_bytes=limit))
    assert [coverage.truncated for coverage in cut.coverage] == [False, True, True, True]
    # Verdicts and coverage do not depend on the budget, and each file has a finding.
    assert [file.verdict for file in cut.files] == [file.verdict for file in whole.files]
    assert cut.complete
    assert all(file.findings for file in cut.files)
    assert len(cut.to_json()) < limit * 2


def test_a_text_is_charged_with_its_escapes():
    data = pickle(*(named("mine", "\x01" * 600 + str(number)) + b")R" for number in range(3)))
    whole = rustload.scan(data)
    assert (len(whole.findings), len(whole.trace), len(whole.globals)) == (3, 6, 3)
    # The first item would fit without them.
    cut = rustload.scan(data, limits=rustload.Limits(report_bytes=2500))
    assert (len(cut.findings), len(cut.trace), len(cut.globals)) == (1, 0, 0)
    assert cut.coverage[0].truncated


def test_messages_and_arguments_have_no_control_characters():
    hostile = "e\x1b[31m\r\n\u202e\u2066\x9b\u200be"
    report = rustload.scan(pickle(named(hostile, "f") + text(hostile) + b"\x85R", named("m", hostile)))
    for found in report.findings:
        assert found.message.isprintable()
        assert found.arguments is None or found.arguments.isprintable()
    # Names are exact.
    assert {hostile} == {found.module for found in report.findings if found.module != "m"}
    assert str(report).replace("\n", "").isprintable()
    assert repr(report).isprintable()


def test_the_memory_of_a_scan_is_bounded(tmp_path):
    parts = [text(f"{number:03}".ljust(4000, "n")) + b"q" + bytes([number]) + b"0" for number in range(200)]
    pairs = (bytes([0x68, one, 0x68, two, 0x93]) for one in range(100) for two in range(100, 200))
    path = tmp_path / "names.pkl"
    path.write_bytes(b"\x80\x04" + b"".join(parts) + b"(" + b"".join(pairs) + b"l.")
    code = """
import json, resource, sys
import rustload
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
report = rustload.scan(sys.argv[1])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"growth": peak - before, "json": len(report.to_json()), "truncated": report.coverage[0].truncated}))
"""
    found = json.loads(child(code, path).stdout)
    assert found["truncated"]
    assert found["json"] <= 20 << 20
    assert found["growth"] <= 160 << 10  # KiB
