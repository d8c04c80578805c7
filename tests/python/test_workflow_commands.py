"""GitHub Actions takes lines of output for commands: names from files must not be one, on stdout or stderr."""

import io
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from rustload._cli import main
from rustload._common.terminal import Page

NAMES = (
    "::error::wrong",
    "  ::add-mask::a",
    "##[add-mask]a",
    "x##[error]wrong",
    "\N{SOFT HYPHEN}::error::wrong",
    "\N{COMBINING GRAPHEME JOINER}:\N{COMBINING GRAPHEME JOINER}:error::wrong",
    "#\N{COMBINING GRAPHEME JOINER}#[error]wrong",
    "a\n::error::wrong",
    "a\r::error::wrong",
)
PASSED_OVER = dict.fromkeys(map(ord, "\N{COMBINING GRAPHEME JOINER}\N{SOFT HYPHEN}"))
"""Characters that a comparison by the rules of a language passes over."""


def commands(output: str) -> list[str]:
    """The lines that a runner takes for commands. They end at CR or LF; `::` may follow blanks, `##[` anything."""
    lines = output.translate(PASSED_OVER).replace("\r", "\n").split("\n")
    return [line for line in lines if line.lstrip().startswith("::") or "##[" in line]


def test_the_names_are_commands_for_a_runner():
    assert all(map(commands, NAMES))


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setattr(Page, "width", None)
    return str(request.param)


@pytest.mark.parametrize("color", ["never", "always"])
def test_no_name_of_a_file_is_a_command(name, tmp_path, capsys, color):
    (tmp_path / name).write_bytes(b"cposix\nsystem\n(S'x'\ntR.")
    assert main(["scan", "--color", color, "--", name]) == 1
    main(["scan", "--", f"{name} that is missing"])
    main(["info", "--color", color, "--", name])
    assert main(["scan", "--policy", name, "--", name]) == 2
    for arguments in (["info", "--sort", name, name], ["info", name, "--no"]):
        with pytest.raises(SystemExit):
            main(arguments)
    printed = capsys.readouterr()
    assert printed.out
    assert printed.err
    assert commands(printed.out) == commands(printed.err) == []


@pytest.mark.parametrize("width", [None, 20, 40])
def test_no_name_of_a_tensor_is_a_command(name, capsys, monkeypatch, width):
    monkeypatch.setattr(Page, "width", width)
    names = {name: torch.ones(2), "a" * 9 + name: torch.ones(2)}
    save_file(names, "m.safetensors", metadata={name: name})
    save_file({one: torch.zeros(2) for one in names}, "n.safetensors")
    for arguments in (
        ["info", "m.safetensors"],
        ["info", "--tensors", "m.safetensors"],
        ["diff", "--data", "m.safetensors", "n.safetensors"],
        ["stats", "m.safetensors"],
        ["convert", "--overwrite", "m.safetensors", f"{name}.safetensors"],
    ):
        main(arguments)
    printed = capsys.readouterr()
    assert printed.out
    assert commands(printed.out) == commands(printed.err) == []


def test_json_has_the_exact_name_and_no_command(name, capsys):
    save_file({name: torch.ones(2)}, "m.safetensors")
    assert main(["info", "--json", "m.safetensors"]) == 0
    printed = capsys.readouterr().out
    assert commands(printed) == []
    assert name in json.dumps(json.loads(printed), ensure_ascii=False) or "\n" in name or "\r" in name


def test_elsewhere_the_text_is_as_it_is(monkeypatch):
    stream = io.StringIO()
    for value in ("", "true"):
        monkeypatch.setenv("GITHUB_ACTIONS", value)
        page = Page(stream, "never")
        page.line("::error::x ##[a]")
        page.line("at::Tensor: #[b]")
        page.flush()
    assert stream.getvalue().splitlines() == [
        "::error::x ##[a]",
        "at::Tensor: #[b]",
        r"\x3a:error::x \x23#[a]",
        "at::Tensor: #[b]",
    ]
