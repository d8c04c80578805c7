"""SARIF logs: valid, by the rules of GitHub's code scanning, deterministic, and in accord with the policy and the exit codes."""

import gzip
import json
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
import torch
from schemas import ROOT, check_sarif, texts
from support import cli

import rustload
from rustload import _rustload
from rustload._cli import main
from rustload._scan.codes import NOTED_ERRORS, SCAN_CODES, error_codes
from rustload._scan.sarif import RESULTS_MAX, sarif
from rustload._scan.sarif_rules import RULE_IDS, rule_of

pytestmark = pytest.mark.usefixtures("folder")

EVIL = b"cposix\nsystem\n(S'echo hello'\ntR."
ODD = b"\x80\x02csome.lib\nNet\n)\x81."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files of each verdict in `models`."""
    models = tmp_path / "models"
    models.mkdir()
    torch.save({"w": torch.ones(2)}, models / "good.pt")
    (models / "evil.bin").write_bytes(EVIL)
    (models / "odd.pkl").write_bytes(ODD)
    np.save(models / "damaged.npy", np.ones(3))
    (models / "damaged.npy").write_bytes((models / "damaged.npy").read_bytes()[:-3])
    (models / "README.md").write_text("# Model\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def log_of(*sources: Any, **options: Any) -> dict[str, Any]:
    """The run of the log of a scan by Python."""
    log = json.loads(rustload.scan(list(sources), **options).to_sarif())
    check_sarif(log)
    run: dict[str, Any] = log["runs"][0]
    return run


def test_a_result_says_what_would_happen_and_where(command):
    code, out, err = command("scan", "models", "--sarif")
    log = json.loads(out)
    check_sarif(log)
    assert (code, err) == (1, "")
    found = log["runs"][0]
    assert found["invocations"][0]["exitCode"] == 1
    assert found["invocations"][0]["executionSuccessful"] is True
    evil, *others = found["results"]
    assert evil["ruleId"] == "DisallowedGlobal/would-execute"
    assert evil["level"] == "error"
    assert evil["message"]["text"] == (
        "posix.system('echo hello'): would be called: it runs programs (byte 30)"
    )
    assert evil["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "models/evil.bin"},
        "region": {
            "startLine": 1, "startColumn": 1, "endLine": 1, "endColumn": 1, "byteOffset": 30, "byteLength": 1,
        },
    }  # fmt: skip
    wanted = {
        "code": "DisallowedGlobal",
        "offset": 30,
        "opcode": "REDUCE",
        "module": "posix",
        "name": "system",
    }
    assert evil["properties"].items() >= wanted.items()
    steps = evil["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [step["location"]["message"]["text"] for step in steps] == [
        "import posix.system",
        "call posix.system('echo hello')",
    ]
    assert {result["ruleId"] for result in others} == {"DisallowedGlobal", "Truncated"}
    assert [one["location"]["uri"] for one in found["artifacts"]] == [
        "models/damaged.npy", "models/evil.bin", "models/good.pt", "models/odd.pkl",
    ]  # fmt: skip
    verdicts = [one["properties"]["verdict"] for one in found["artifacts"]]
    assert verdicts == ["unknown", "would execute", "inert", "unknown"]


def test_the_rules_have_the_severities_of_githubs_alerts():
    rules = {rule["id"]: rule for rule in log_of("models")["tool"]["driver"]["rules"]}
    for rule in rules.values():
        assert rule["shortDescription"]["text"].endswith(".")
        assert len(rule["fullDescription"]["text"]) <= 1024
        assert rule["help"]["text"]
        properties = rule["properties"]
        assert properties["precision"] in ("very-high", "high", "medium", "low")
        assert len(properties.get("tags", ())) <= 10
        score = properties.get("security-severity")
        wanted = {"note": (), "warning": ("5.0", "6.5"), "error": ("9.3",)}[
            rule["defaultConfiguration"]["level"]
        ]
        assert score in wanted if wanted else score is None
        assert ("security" in properties.get("tags", ())) == (score is not None)
    assert rules["ZipMismatch"]["properties"]["security-severity"] == "6.5"
    assert rules["DisallowedGlobal"]["properties"]["security-severity"] == "5.0"


def test_a_log_has_all_rules_whatever_was_found():
    full, empty = log_of("models"), log_of("models/good.pt")
    assert empty["results"] == []
    assert empty["tool"] == full["tool"]
    codes = {rule.partition("/")[0] for rule in RULE_IDS}
    assert codes == {*SCAN_CODES, *(code for code, *_ in error_codes()), "NotScanned"}
    kinds = {kind for code, kind, *_ in _rustload.CODES if code not in codes}
    assert not kinds & {"Format", "Unsupported", "Disallowed", "Limit"}


def test_every_code_that_the_scanner_writes_is_in_the_catalogue():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src/scan").rglob("*.rs")]
    text = "\n".join(sources)
    written = set(re.findall(r'Finding::new\(\s*"(\w+)",|\.finding\("(\w+)"', text))
    codes = {name for pair in written for name in pair if name}
    assert len(codes) > 10
    known = {*SCAN_CODES, *(code for code, *_ in _rustload.CODES)}
    assert codes <= known
    assert not {code for code in SCAN_CODES if f'"{code}"' not in text and f"Code::{code}" not in text}
    assert {code for code, *_ in _rustload.CODES} >= NOTED_ERRORS


def test_a_code_with_an_unexpected_verdict_has_the_rule_of_the_code():
    assert rule_of("Import", "would execute") == "Import/would-execute"
    assert rule_of("ZipCase", "inert") == "ZipCase/note"
    assert rule_of("OddName", "would execute") == "OddName"
    assert rule_of("ZipCrc", "inert") == "ZipCrc"


def test_two_runs_at_two_places_are_byte_equal(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("elsewhere") / "deep"
    shutil.copytree(folder, other)
    first, second, third = (
        cli("scan", "models", "--sarif", cwd=place).stdout for place in (folder, folder, other)
    )
    assert first == second == third
    assert first
    assert str(folder) not in first


def test_a_fingerprint_survives_writing_the_file_again():
    def print_of(path: str, content: bytes, rule: str) -> str:
        Path(path).write_bytes(content)
        (found,) = [one for one in log_of(path)["results"] if one["ruleId"] == rule]
        return found["partialFingerprints"]["primaryLocationLineHash"]

    rule = "DisallowedGlobal"
    before = print_of("a.pkl", ODD, rule)
    padded = b"\x80\x02]K\x01acsome.lib\nNet\n)\x81."
    assert print_of("a.pkl", padded, rule) == before
    assert print_of("b.pkl", ODD, rule) != before
    assert print_of("a.pkl", ODD.replace(b"Net", b"Nut"), rule) != before
    # Equal findings of one file are told apart by their number.
    twice = b"\x80\x02(csome.lib\nNet\n)\x81csome.lib\nNet\nK\x01\x85Rt."
    Path("a.pkl").write_bytes(twice)
    prints = [one["partialFingerprints"]["primaryLocationLineHash"] for one in log_of("a.pkl")["results"]]
    assert len(set(prints)) == len(prints)


def test_names_of_files_are_percent_encoded_and_relative(folder):
    names = ["a b.pkl", "a#b?c.pkl", "100%.pkl", "C:x.pkl", "ünï.pkl", "[x].pkl", "a\nb.pkl"]
    for name in names:
        (folder / name).write_bytes(EVIL)
    (folder / "x").symlink_to("models")
    (folder / "link.bin").symlink_to("models/evil.bin")
    for name in (*names, str(folder / "a b.pkl")):
        (result, *_) = log_of(name)["results"]
        uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        assert unquote(uri) == Path(name).name
        assert urlsplit(uri).scheme == ""
    for name in ("x/evil.bin", "link.bin", "./models/../models/evil.bin"):
        (result, *_) = log_of(name)["results"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "models/evil.bin"


def test_a_file_outside_of_the_root_is_absolute_with_a_notification(folder, monkeypatch):
    (folder / "root").mkdir()
    monkeypatch.chdir(folder / "root")
    # A link to elsewhere keeps its name: code scanning can show it.
    Path("cached.bin").symlink_to(folder / "models" / "evil.bin")
    found = log_of("../models/evil.bin", "cached.bin")
    uris = {one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for one in found["results"]}
    assert uris == {f"file://{folder}/models/evil.bin", "cached.bin"}
    (notice,) = found["invocations"][0]["toolExecutionNotifications"]
    assert (notice["descriptor"]["id"], notice["level"]) == ("OutsideRoot", "note")
    inside = json.loads(rustload.scan("../models/evil.bin").to_sarif(root=folder))
    (result,) = inside["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "models/evil.bin"


def test_bytes_and_standard_input_have_names():
    (result,) = log_of(EVIL)["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "urn:rustload:bytes"
    command = [sys.executable, "-m", "rustload", "scan", "-", "--sarif"]
    done = subprocess.run(command, input=EVIL, capture_output=True, check=False)
    check_sarif(json.loads(done.stdout))
    assert b'"urn:rustload:stdin"' in done.stdout


def test_several_reports_become_one_log():
    evil, odd = rustload.scan("models/evil.bin"), rustload.scan("models/odd.pkl")
    log = json.loads(evil.to_sarif(odd))
    check_sarif(log)
    assert log == json.loads(rustload.scan(["models/evil.bin", "models/odd.pkl"]).to_sarif())
    assert log == json.loads(odd.to_sarif(evil)), "the order of the files does not matter"


def test_names_from_a_file_can_write_neither_links_nor_control_characters():
    name = b"[see here](https://example.com) \x1b[31m\xe2\x80\xae{0}"
    content = b"\x80\x04\x8c\x08some.lib\x8c" + bytes([len(name)]) + name + b"\x93(\x8c\x04[a](\x8c\x01btR."
    run_ = log_of(content)
    (message,) = {one["message"]["text"] for one in run_["results"] if one["ruleId"] == "DisallowedGlobal"}
    assert "see here" in message
    for place, text in texts(run_["results"]):
        if "properties" not in place:
            assert "](" not in text, place
            assert text.isprintable(), place


@pytest.mark.parametrize(
    "options",
    [
        ["--allow", "some.lib.Net"],
        ["--allow", "some.*"],
        ["--baseline", "known.json"],
    ],
)
def test_what_the_policy_accepts_is_no_result(command, options):
    Path("known.json").write_text(command("scan", "models/odd.pkl", "--json")[1])
    code, out, _ = command("scan", "models/odd.pkl", "--sarif", *options)
    log = json.loads(out)
    check_sarif(log)
    found = log["runs"][0]
    assert (code, found["results"], found["invocations"][0]["exitCode"]) == (0, [], 0)
    (notice,) = found["invocations"][0]["toolExecutionNotifications"]
    assert (notice["descriptor"]["id"], notice["level"]) == ("Accepted", "note")
    # Something new in the same file is a result, and fails.
    Path("models/odd.pkl").write_bytes(ODD[:-1] + b"0" + EVIL)
    code, out, _ = command("scan", "models/odd.pkl", "--sarif", *options)
    assert code == 1
    assert {one["level"] for one in json.loads(out)["runs"][0]["results"]} == {"error"}


def test_a_baseline_accepts_parts_that_were_not_scanned(command):
    Path("x.bz2").write_bytes(b"BZh91AY&SY" + bytes(40))
    code, out, _ = command("scan", "x.bz2", "--sarif")
    rules = [one["ruleId"] for one in json.loads(out)["runs"][0]["results"]]
    assert (code, sorted(rules)) == (
        1,
        ["NotScanned", "OpaqueContainer", "UnsupportedContainer"],
    )
    Path("known.json").write_text(command("scan", "x.bz2", "--json")[1])
    code, out, _ = command("scan", "x.bz2", "--sarif", "--baseline", "known.json")
    assert (code, json.loads(out)["runs"][0]["results"]) == (0, [])


def test_fail_on_changes_the_exit_code_and_not_the_results(command):
    strict, lax = (
        json.loads(command("scan", "models/odd.pkl", "--sarif", "--fail-on", limit)[1])["runs"][0]
        for limit in ("unknown", "would-execute")
    )
    assert [one["invocations"][0].pop("exitCode") for one in (strict, lax)] == [1, 0]
    assert strict == lax
    assert [one["level"] for one in lax["results"]] == ["warning"]
    assert command("scan", "models", "--sarif", "--fail-on", "would-execute")[0] == 1


def test_a_file_that_cannot_be_read_is_a_notification(command):
    code, out, err = command("scan", "absent.pt", "models/good.pt", "--sarif")
    log = json.loads(out)
    check_sarif(log)
    (invocation,) = log["runs"][0]["invocations"]
    assert (code, invocation["exitCode"], invocation["executionSuccessful"]) == (3, 3, False)
    (notice,) = invocation["toolExecutionNotifications"]
    assert (notice["descriptor"]["id"], notice["level"]) == ("Unreadable", "error")
    assert notice["message"]["text"] == "no such file or directory"
    assert notice["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "absent.pt"
    assert "absent.pt" in err


def test_secrets_of_urls_are_not_in_the_log(command):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe("/sarif/model.pkl", EVIL)
    url = "memory://user:hunter2@sarif/model.pkl?token=hunter2#hunter2"
    (result,) = log_of("memory://sarif/model.pkl")["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "memory://sarif/model.pkl"
    for form in ("--sarif", "--json"):
        code, out, err = command("scan", url, "ftp://user:hunter2@127.0.0.1/m.pt?hunter2", form)
        assert code != 0
        assert "hunter2" not in out + err
        if form == "--sarif":
            check_sarif(json.loads(out))


def test_a_flow_has_at_most_100_steps_and_ends_at_the_finding():
    calls = b"".join(b"clib%d\nf\n)R0" % number for number in range(150))
    Path("long.pkl").write_bytes(b"\x80\x02" + calls + EVIL)
    worst, *others = log_of("long.pkl")["results"]
    steps = worst["codeFlows"][0]["threadFlows"][0]["locations"]
    assert len(steps) == 100
    assert steps[-1]["location"]["message"]["text"] == "call posix.system('echo hello')"
    assert not [one for one in others if "codeFlows" in one]


def test_arguments_are_cut_and_the_log_stays_small():
    Path("wide.pkl").write_bytes(b"cposix\nsystem\n(S'" + b"x" * 100_000 + b"'\ntR.")
    run_ = log_of("wide.pkl")
    assert max(len(text) for _, text in texts(run_["results"])) <= 512


def test_more_results_than_github_takes_are_cut_with_a_notification():
    finding = {
        "code": "Import", "severity": "warning", "verdict": "unknown", "message": "m", "member": None, "offset": 0,
        "module": "lib", "name": "f", "arguments": None, "times": 1, "readers": ["c"], "allowed": None, "known": False,
    }  # fmt: skip
    worst = {**finding, "code": "DisallowedGlobal", "verdict": "would execute", "name": "system"}
    coverage = {"complete": True, "truncated": False, "scanned": [], "unscanned": []}
    findings = [{**finding, "name": f"f{number}"} for number in range(RESULTS_MAX)]
    file = {
        "path": "a.pkl", "status": "scanned", "verdict": "would execute", "findings": [*findings, worst],
        "trace": [], "coverage": coverage,
    }  # fmt: skip
    log = sarif({"files": [file], "excluded": 0})
    run_ = log["runs"][0]
    assert len(run_["results"]) == RESULTS_MAX == 25_000
    assert run_["results"][0]["level"] == "error", "the worst are kept"
    (notice,) = run_["invocations"][0]["toolExecutionNotifications"]
    assert (notice["descriptor"]["id"], notice["level"]) == ("Cut", "warning")
    assert notice["message"]["text"].startswith("1 result")
    assert len(gzip.compress(json.dumps(log, indent=1).encode())) < 10_000_000
    prints = {one["partialFingerprints"]["primaryLocationLineHash"] for one in run_["results"]}
    assert len(prints) == RESULTS_MAX
    run_["results"] = run_["results"][::1000]  # to validate all takes half a minute
    check_sarif(log)


def test_a_report_that_reached_a_limit_has_a_notification():
    content = pickle.dumps([getattr(torch, name) for name in ("load", "save", "compile", "cat")])
    run_ = log_of(content, limits=rustload.Limits(findings=1))
    ids = [one["descriptor"]["id"] for one in run_["invocations"][0]["toolExecutionNotifications"]]
    assert ids == ["Cut"]


def test_the_log_can_be_a_file_beside_the_text(command):
    code, out, _ = command("scan", "models", "--sarif-file", "out.sarif")
    assert code == 1
    assert "models/evil.bin: would execute" in out
    text = Path("out.sarif").read_text(encoding="utf-8")
    assert text == command("scan", "models", "--sarif")[1]
    # An older one is replaced; --json goes with it, too.
    code, out, _ = command("scan", "models/good.pt", "--sarif-file", "out.sarif", "--json")
    assert (code, json.loads(out)["verdict"]) == (0, "inert")
    assert json.loads(Path("out.sarif").read_text())["runs"][0]["results"] == []


def test_a_log_that_cannot_be_written_is_an_error(command):
    code, out, err = command("scan", "models", "--sarif-file", "absent/out.sarif")
    assert code == 3
    assert "would execute" in out
    assert err.startswith("rustload: ")
    assert "absent" in err


def test_sarif_and_json_exclude_each_other(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["scan", "models", "--sarif", "--json"])
    assert caught.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
