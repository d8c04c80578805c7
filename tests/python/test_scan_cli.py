"""`rustload scan`: exit codes, what is printed on stdout and stderr, and escaped names."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rustload._cli import main

EVIL = b"cposix\nsystem\n(S'x'\ntR."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    (tmp_path / "evil.bin").write_bytes(EVIL)
    (tmp_path / "odd.pkl").write_bytes(b"\x80\x02csome.lib\nNet\n)\x81.")
    (tmp_path / "README.md").write_text("# Model\n")
    return tmp_path


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["good.pt"], 0),
        (["odd.pkl"], 1),
        (["evil.bin"], 1),
        (["good.pt", "evil.bin"], 1),
        (["README.md"], 3),
        (["absent.pt"], 3),
        (["good.pt", "absent.pt"], 3),
        (["evil.bin", "absent.pt"], 1),
    ],
)
def test_exit_codes(folder, command, names, code):
    assert command("scan", *(folder / name for name in names))[0] == code


def test_no_path_is_wrong_usage(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["scan"])
    assert caught.value.code == 2
    assert "rustload scan --help" in capsys.readouterr().err


def test_an_empty_directory_has_nothing_to_scan(tmp_path, command):
    wanted = f"rustload: nothing to scan: {tmp_path}: it has no files\n"
    assert command("scan", tmp_path) == (3, "", wanted)
    (tmp_path / "some").mkdir()
    (tmp_path / "none").mkdir()
    torch.save({"w": torch.ones(2)}, tmp_path / "some" / "ok.pt")
    code, out, err = command("scan", tmp_path / "none", tmp_path / "some")
    assert (code, out) == (0, f"{tmp_path}/some/ok.pt: inert\n")
    assert err == f"rustload: nothing to scan: {tmp_path}/none: it has no files\n"


def test_a_scan_of_a_file_without_a_pickle_is_reported(folder, command):
    code, _, err = command("scan", folder / "README.md")
    assert (code, err) == (3, "rustload: nothing was scanned: no file holds a pickle, as far as is known\n")


def test_json_has_files_that_could_not_be_opened(folder, command):
    code, out, err = command("scan", "--json", folder / "absent.pt", folder / "good.pt")
    document = json.loads(out)
    assert (code, document["complete"], document["verdict"]) == (3, False, "unknown")
    assert list(document) == [
        "schema", "rustload", "verdict", "complete", "passes", "excluded", "policy", "files",
    ]  # fmt: skip
    absent, good = document["files"]
    assert (absent["path"], absent["status"]) == (f"{folder}/absent.pt", "unreadable")
    assert f"rustload: error: {absent['error']['message']}\n" in err
    assert absent.keys() == {*good, "error"}
    assert absent["coverage"].keys() == good["coverage"].keys()
    # A single path has the same keys.
    assert list(json.loads(command("scan", "--json", folder / "absent.pt")[1])) == list(document)
    assert out.startswith('{\n "schema": 1,\n "rustload": ')


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_standard_input_is_scanned_from_a_pipe_and_from_a_file(folder, name):
    command = [sys.executable, "-m", "rustload", "scan", name]
    piped = subprocess.run(command, input=EVIL, capture_output=True, check=False)
    assert piped.returncode == 1
    assert piped.stdout.startswith(b"-: would execute\n")
    with (folder / "good.pt").open("rb") as file:
        read = subprocess.run(command, stdin=file, capture_output=True, check=False)
    assert (read.returncode, read.stdout, read.stderr) == (0, b"-: inert\n", b"")


def test_a_pipe_is_read_up_to_64_mib():
    command = [sys.executable, "-m", "rustload", "scan", "-"]
    done = subprocess.run(command, input=bytes((64 << 20) + 1), capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (3, b"")
    assert done.stderr.startswith(b"rustload: error: -: standard input goes on beyond 64.0 MiB")


@pytest.mark.parametrize("width", [30, 44])
def test_findings_fit_narrow_terminals(folder, command, monkeypatch, width):
    from rustload._common import terminal

    monkeypatch.setattr(terminal.Page, "width", width)
    _, out, _ = command("scan", folder / "evil.bin")
    assert max(map(len, out.splitlines()[1:])) <= width
    assert "runs programs" in " ".join(out.split())


def test_output_is_one_line_per_file_followed_by_its_findings(folder, command):
    code, out, err = command("scan", folder)
    lines = out.splitlines()
    assert code == 1
    assert lines[0] == f"{folder}/evil.bin: would execute"
    words = "error DisallowedGlobal byte 21 posix.system('x'): would be called: it runs programs"
    assert " ".join(lines[1].split()) == words
    assert f"{folder}/good.pt: inert" in lines
    assert f"{folder}/odd.pkl: unknown" in lines
    assert lines[-1].startswith("passed over, as they hold no pickle: ")
    assert err == "rustload: 4 files: 1 skipped, 1 would execute, 1 inert, 1 unknown\n"
    assert "\x1b" not in out


def test_quiet_omits_inert_and_skipped_files(folder, command):
    _, out, _ = command("scan", "-q", folder)
    assert "good.pt" not in out
    assert "README" not in out
    assert "evil.bin" in out


def test_json_has_verdict_and_trace(folder, command):
    code, out, err = command("scan", "--json", folder / "evil.bin", folder / "absent.pt")
    document = json.loads(out)
    assert (code, document["schema"], document["verdict"]) == (1, 1, "would execute")
    assert document["files"][0]["trace"][1]["arguments"] == "('x')"
    assert "absent.pt" in err


def test_control_characters_in_names_are_escaped(tmp_path, command):
    path = tmp_path / "x.pkl"
    path.write_bytes(b"\x80\x04\x8c\x08\x1b[31mlib\x8c\x03\x07Ne\x93)R.")
    _, out, _ = command("scan", path)
    assert "\x1b" not in out
    assert "\\x1b[31mlib.\\x07Ne()" in out


def test_colour_is_on_by_request(folder, command):
    _, out, _ = command("scan", "--color", "always", folder / "evil.bin")
    assert "\x1b[1;31mwould execute\x1b[0m" in out
