"""`rustload convert`, run as users run it: in a process of its own, and its arguments in this one."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
import safetensors.torch
import torch
from support import Reduced, child, coded, names

import rustload
from rustload import _cli


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    state = {f"module.{name}": torch.full((2, 3), 1.5) for name in ("a.weight", "b.weight")}
    torch.save({"model": state | {"module.ids": torch.arange(3)}, "epoch": 3}, tmp_path / "last.ckpt")
    torch.save({"a": torch.zeros(2, 3), "c = d": torch.zeros(1, dtype=torch.complex128)}, tmp_path / "c.bin")
    torch.save({"s": torch.eye(2).to_sparse(), "a": torch.zeros(2, 3)}, tmp_path / "s.bin")
    (tmp_path / "t.bin").write_bytes((tmp_path / "c.bin").read_bytes() + b"x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_option_reaches_convert(folder, capsys):
    options = [
        "--key", "model", "--strip", "module.", "--rename", "b=x", "--rename", "ids=", "--dtype", "a.*=float16", "--dtype",
        "bfloat16", "--transpose", "a.*", "--max-shard-size", "14B", "--metadata", "by=me=you", "--objects", "o.json",
        "--select", "model.module.*", "--name", "model",
    ]  # fmt: skip
    assert _cli.main(["convert", "last.ckpt", "-o", "out", *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["rustload"]) == (1, rustload.__version__)
    report = document["report"]
    assert sorted(report["files"]) == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
    ]  # fmt: skip
    assert (report["tensors"], report["converted"], report["skipped_objects"]) == (2, 2, 1)
    ckpt = rustload.open("out")
    assert {name: (one.dtype, one.shape) for name, one in ckpt.items()} == {
        "a.weight": ("float16", (3, 2)),
        "x.weight": ("bfloat16", (2, 3)),
    }
    first = rustload.open("out/model-00001-of-00002.safetensors")
    assert first.metadata == {"by": "me=you", "format": "pt"}
    assert json.loads((folder / "o.json").read_text()) == {"epoch": 3}


def test_one_line_says_what_was_written(folder, capsys):
    assert _cli.main(["convert", "last.ckpt"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("wrote 3 tensors, ")
    assert " to last.safetensors, 1 file, 1 other value left out (epoch), in " in out
    assert (out.count("\n"), err) == (1, "")
    assert _cli.main(["convert", "last.ckpt", "--overwrite", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    whole = torch.load("last.ckpt", weights_only=True)["model"]
    expected = {f"model.{name}": value for name, value in whole.items()}
    assert (folder / "last.safetensors").read_bytes() == safetensors.torch.save(expected, {"format": "pt"})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["last.ckpt", "x.bin"], "write 'x.safetensors'"),
        (["last.ckpt", "--strip", "a", "--strip", "model.module.a", "--strip", "model.module.b"], "Pass --rename to give"),
        (["c.bin"], "Pass --dtype 'c = d=complex64' to cast it, or pass --rename 'c = d=' to leave it out."),
        (["s.bin"], "Pass --rename s= to leave it out, or pass --select with the names of its components."),
        (["last.ckpt", "x.safetensors", "--max-shard-size", "1GB"], "give a folder as the target, such as 'x'"),
        (["last.ckpt", "x", "--copy-others"], "give the folder as the source, and another as the target"),
        (["last.ckpt", "--dtype", "*=int8"], "Pass --allow-lossy"),
        (["last.ckpt", "o.safetensors"], "Pass --overwrite to replace it"),
        (["last.ckpt", "--select", "model.module.a.wieght"], "did you mean: model.module.a.weight"),
        (["last.ckpt", "o.safetensors", "--name", "x"], "--name is for the files of a folder"),
        (["last.ckpt", "x", "--ties", "copy", "--keep", "a"], "--ties is 'copy', and only 'drop' goes with names"),
        (["t.bin"], "In Python, pass trailing='ignore' if you know why they are there."),
        (["none.ckpt"], "no such file"),
        (["last.ckpt", ""], "'': no such file"),
    ],
)  # fmt: skip
def test_an_error_names_the_option_and_exits_with_3(folder, args, message, capsys):
    (folder / "o.safetensors").write_text("old")
    before = names(folder)
    assert _cli.main(["convert", *args]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("rustload: error: ")
    assert message in err
    assert names(folder) == before
    assert _cli.main(["convert", *args, "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert any(message in text for text in (error["message"], *error["notes"]))


@pytest.mark.parametrize(
    "args",
    [
        [], ["a", "b", "-o", "c"], ["a", "--dtype", "flot16"], ["a", "--rename", "x"], ["a", "--metadata", "=x"],
        ["a", "--max-shard-size", "many"], ["a", "--ties", "cut"],
    ],
)  # fmt: skip
def test_wrong_usage_exits_with_2(args, capsys):
    with coded(SystemExit, 2):
        _cli.main(["convert", *args])
    assert capsys.readouterr().err.startswith("rustload: error: ")


@pytest.mark.parametrize(("option", "form"), [("--rename", "OLD=NEW"), ("--metadata", "KEY=TEXT")])
def test_a_pair_has_the_form_that_the_help_shows(option, form, capsys):
    with pytest.raises(SystemExit):
        _cli.main(["convert", "a", option, "x"])
    assert f"argument {option}: 'x' is not of the form {form}" in capsys.readouterr().err


def test_a_name_with_an_equals_sign_can_be_left_out(folder):
    assert _cli.main(["convert", str(folder / "c.bin"), "--rename", "c = d=", "-q"]) == 0
    assert list(rustload.open("c.safetensors")) == ["a"]


def test_a_warning_is_a_line_on_stderr(folder, capsys):
    assert _cli.main(["convert", "last.ckpt", "--select", "model.*", "--select", "optim.*"]) == 0
    assert capsys.readouterr().err.startswith("rustload: warning: --select has the pattern 'optim.*'")
    assert "last.safetensors" in names(folder)


def test_it_starts_without_torch_and_numpy(folder):
    code = """
import sys
from rustload import _cli
assert _cli.main(["convert", "last.ckpt", "out", "--dtype", "bfloat16"]) == 0
assert not {"torch", "numpy", "rustload._scan.scan"} & sys.modules.keys()
"""
    done = child(code, check=False)
    assert done.returncode == 0, done.stderr
    assert names(folder / "out") == ["last.safetensors"]


def test_verify_resume_progress_and_ties(folder, capsys):
    one = torch.randn(300, 400)
    torch.save({"b": one, "a": one, "c": torch.zeros(3)}, "tied.bin")
    options = ["--verify", "--resume", "--discard", "b", "--fingerprint", "data", "--no-progress", "--json"]
    assert _cli.main(["convert", "tied.bin", *options]) == 0
    out = capsys.readouterr()
    assert json.loads(out.out)["report"]["dropped"] == {"b": "a"}
    assert out.err == ""
    assert rustload.open("tied.safetensors").metadata["source_fingerprint"] == rustload.open(
        "tied.bin"
    ).fingerprint(data=True)
    assert ".tied.safetensors.resume" not in names(folder)
    assert _cli.main(["convert", "tied.bin", "--overwrite", "--ties", "copy", "--progress"]) == 0
    assert "converting" in capsys.readouterr().err
    assert set(rustload.open("tied.safetensors")) == {"a", "b", "c"}


def test_a_failed_verification_exits_with_4(folder, capsys, monkeypatch):
    def fail(*_: object, **options: object) -> None:
        assert options["verify"] is True
        error = OSError("b: the new file was read back as 0x00, its source has 0x01")
        error.code = "VerifyFailed"  # type: ignore[attr-defined]
        raise error

    monkeypatch.setattr(rustload, "convert", fail)
    assert _cli.main(["convert", "last.ckpt", "--verify"]) == 4
    assert "read back as 0x00" in capsys.readouterr().err
    assert "last.safetensors" not in names(folder)


def test_what_the_source_would_execute_is_said_on_stderr(folder, capsys):
    attack = pickle.dumps({"w": Reduced(os.system, ("true",)), "n": 1})
    (folder / "attack.bin").write_bytes(attack)
    for args, code in (["-q"], 0), (["--overwrite"], 0), (["--ties", "error", "--select", "nothing"], 3):
        assert _cli.main(["convert", "attack.bin", *args]) == code
        assert "rustload: scan: would execute (posix.system)\n" in capsys.readouterr().err
    assert _cli.main(["info", "attack.bin"]) == 0
    shown = capsys.readouterr().out
    assert "  scan        would execute (posix.system)\n              rustload scan " in shown
    assert _cli.main(["info", "attack.bin", "last.ckpt", "--json"]) == 0
    found = [one.get("scan") for one in json.loads(capsys.readouterr().out)["checkpoints"]]
    assert found == [
        {"verdict": "would execute", "names": ["posix.system"]},
        {"verdict": "inert", "names": []},
    ]
    assert _cli.main(["info", "last.ckpt"]) == 0
    assert "  scan " not in capsys.readouterr().out


def test_rows_are_whole_in_a_pipe(folder, capsys):
    member = "a_folder/with/a/path/that/goes/on/data.pkl"
    with zipfile.ZipFile(folder / "deep.zip", "w") as archive:
        archive.writestr(member, pickle.dumps(Reduced(os.system, ("true",))))
    assert _cli.main(["scan", "deep.zip"]) == 1
    rows = capsys.readouterr().out.splitlines()[1:]
    assert any(f"{member} byte" in row and row.endswith("it runs programs") for row in rows)
    assert any(row.endswith("as torch.save writes") for row in rows)
    dtypes = (torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64)
    torch.save({str(dtype): torch.zeros(1, dtype=dtype) for dtype in dtypes}, folder / "many.pt")
    assert _cli.main(["info", "many.pt"]) == 0
    named = capsys.readouterr().out.partition("named by the pickle")[2].splitlines()[1:]
    assert len(named) == 1
    assert named[0].endswith("torch._utils._rebuild_tensor_v2")


def test_the_line_names_the_tied_name_that_is_left_out(folder, capsys):
    one = torch.ones(2)
    torch.save({"a": one, "b": one, "c": one}, folder / "tied.bin")
    assert _cli.main(["convert", "tied.bin", "--ties", "drop", "--rename", "c="]) == 0
    assert ", 1 tied name left out (b), in " in capsys.readouterr().out
    assert _cli.main(["convert", "tied.bin", "--ties", "drop", "--overwrite"]) == 0
    assert ", 2 tied names left out (b, ...), in " in capsys.readouterr().out
    assert ", 1 tensor, " in repr(rustload.open(folder / "tied.safetensors"))


def test_a_folder_without_its_configuration_is_said_on_stderr(folder, capsys):
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text("{}")
    torch.save({"a": torch.zeros(2)}, folder / "model/pytorch_model.bin")
    says = "rustload: config.json and other files were not copied: --copy-others copies them\n"
    for arguments, expected in (
        (["model", "to"], says),
        (["model", "to.safetensors"], ""),
        (["model", "quiet", "-q"], ""),
        (["model", "to", "--overwrite", "--copy-others"], ""),
        (["model", "to", "--overwrite"], ""),
        (["last.ckpt", "run"], ""),
        (["model"], ""),
    ):
        assert _cli.main(["convert", *arguments]) == 0
        assert capsys.readouterr().err == expected, arguments
    assert (
        _cli.main(["convert", "c.bin", "c", "--verify", "--dtype", "c = d=complex64", "--allow-lossy"]) == 0
    )
    assert capsys.readouterr().out.endswith(" s, read back and compared\n")


def test_a_rule_for_no_tensor_is_an_error(folder, capsys):
    run = ["convert", "last.ckpt", "out", "--key", "model"]
    for option, value in (("--dtype", "nosuch.*=bfloat16"), ("--transpose", "nosuch.*")):
        assert _cli.main([*run, option, value]) == 3
        err = capsys.readouterr().err
        assert err.startswith(f"rustload: error: {option} has 'nosuch.*', which matches no name\n")
    assert "out" not in names(folder)
    # Beside a dtype for all, or a pattern that matches, it is a warning, and an unknown name is an error.
    assert _cli.main([*run, "--dtype", "nosuch.*=float16", "--dtype", "bfloat16"]) == 0
    assert "warning: --dtype has the pattern 'nosuch.*', which matches no name" in capsys.readouterr().err
    assert rustload.open("out")["module.a.weight"].dtype == "bfloat16"
    assert _cli.main([*run, "--overwrite", "--dtype", "w9=float16", "--dtype", "bfloat16"]) == 3
    assert "--dtype names 'w9', and no tensor has that name" in capsys.readouterr().err
    with pytest.warns(rustload.RustloadWarning, match="matches no name"):
        rustload.convert("last.ckpt", "two", key="model", dtype={"nosuch*": "float16", "*weight": "bfloat16"})
