"""`rustload scan`: exit codes, what is printed where, and names from files that cannot steer a terminal."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING

import pytest
import torch

from rustload._cli import main

if TYPE_CHECKING:
    from pathlib import Path

EVIL = b"cposix\nsystem\n(S'x'\ntR."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.save({"w": torch.ones(2)}, tmp_path / "good.pt")
    (tmp_path / "evil.bin").write_bytes(EVIL)
    (tmp_path / "odd.pkl").write_bytes(b"\x80\x02csome.lib\nNet\n)\x81.")
    (tmp_path / "README.md").write_text("# Model\n")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["scan", *map(str, arguments)])
    told = capsys.readouterr()
    return code, told.out, told.err


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
def test_exit_codes(folder: Path, capsys: pytest.CaptureFixture[str], names: list[str], code: int) -> None:
    assert run(capsys, *(folder / name for name in names))[0] == code


def test_no_path_is_a_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["scan"])
    assert caught.value.code == 2
    assert "rustload scan --help" in capsys.readouterr().err


def test_an_empty_directory_has_nothing_to_scan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, tmp_path)[0] == 3


def test_one_line_for_each_file_and_findings_below(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, folder)
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


def test_quiet_leaves_out_what_is_inert(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "-q", folder)
    assert "good.pt" not in out
    assert "README" not in out
    assert "evil.bin" in out


def test_json_has_all_of_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--json", folder / "evil.bin", folder / "absent.pt")
    told = json.loads(out)
    assert (code, told["schema"], told["verdict"]) == (1, 1, "would execute")
    assert told["files"][0]["trace"][1]["arguments"] == "('x')"
    assert "absent.pt" in err


def test_names_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(b"\x80\x04\x8c\x08\x1b[31mlib\x8c\x03\x07Ne\x93)R.")
    _, out, _ = run(capsys, path)
    assert "\x1b" not in out
    assert "\\x1b[31mlib.\\x07Ne()" in out


def test_colours_on_request(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--color", "always", folder / "evil.bin")
    assert "\x1b[1;31mwould execute\x1b[0m" in out


def test_narrow_terminals_wrap(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rustload._cli import text

    monkeypatch.setattr(text.Page, "width", 44)
    _, out, _ = run(capsys, folder / "evil.bin")
    assert max(map(len, out.splitlines()[1:])) <= 44
    assert "runs programs" in " ".join(out.split())


def test_a_plain_pickle_of_numbers_is_inert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(pickle.dumps({"a": [1, 2.5, "x", None]}))
    assert run(capsys, path) == (0, f"{path}: inert\n", "")
