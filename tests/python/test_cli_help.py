"""What the command line says of itself: help, version, and the completions of shells."""

import shutil
import subprocess

import pytest
from support import child, coded

import rustload
from rustload import _cli
from rustload._cli.command import COMMANDS, parser

SHELLS = ("bash", "zsh", "fish")


def printed(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code = _cli.main(args)
    except SystemExit as stopped:
        code = stopped.code
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return out


def test_every_way_to_ask_for_help_gives_it(capsys):
    whole = printed(["--help"], capsys)
    assert printed([], capsys) == printed(["help"], capsys) == whole
    for name in COMMANDS:
        assert f"  {name} " in whole
        assert printed(["help", name], capsys) == printed([name, "--help"], capsys)
    assert printed(["-V"], capsys) == printed(["--version"], capsys) == f"rustload {rustload.__version__}\n"


def test_help_points_to_nothing_that_a_wheel_lacks(capsys):
    for name in COMMANDS:
        assert "docs/" not in printed([name, "--help"], capsys)


def test_the_completions_have_every_command_and_option(capsys):
    commands = next(one for one in parser([*COMMANDS])._actions if isinstance(one.choices, dict)).choices
    assert isinstance(commands, dict)
    for shell in SHELLS:
        lines = printed(["completion", shell], capsys).splitlines()
        for name, command in commands.items():
            own = [line for line in lines if name in line]
            assert own
            for option in (one for action in command._actions for one in action.option_strings):
                assert option.lstrip("-") in "\n".join(own if shell != "zsh" else lines), (
                    shell,
                    name,
                    option,
                )
        if shutil.which(shell):
            subprocess.run([shell, "-n"], input="\n".join(lines), text=True, check=True)


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["s"], ["show", "stats", "scan", "schema"]),
        (["convert", "--keep"], ["--keep", "--keep-config"]),
        (["convert", "m.bin", "--ties", ""], ["auto", "copy", "drop", "error"]),
        (["schema", "d"], ["diff", "doctor"]),
        (["help", "s"], ["show", "stats", "scan", "schema"]),
        (["info", "m"], []),
    ],
)
def test_bash_completes(words, expected, capsys):
    script = printed(["completion", "bash"], capsys)
    script += f'COMP_WORDS=(rustload "$@")\nCOMP_CWORD={len(words)}\n_rustload\necho "${{COMPREPLY[@]}}"\n'
    found = subprocess.run(
        ["bash", "-s", "--", *words], input=script, text=True, check=True, capture_output=True
    )
    assert found.stdout.split() == expected


def test_the_name_of_no_dtype_is_answered_with_a_similar_one_first(capsys):
    for command in ("info", "convert"):
        with pytest.raises(SystemExit):
            _cli.main([command, "m.bin", "--dtype", "fp17"])
        said = capsys.readouterr().err.splitlines()[0]
        begin = 'rustload: error: argument --dtype: "fp17" is not a dtype (did you mean: float16, bfloat16, float32; known: '
        assert said.startswith(begin)
        assert said.endswith(", bits4x2; and short names, such as bf16, fp16 and fp32)")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["info", "--tensrs", "m.bin"], "unrecognized arguments: --tensrs (did you mean: --tensors)"),
        (["info", "m.bin", "--zzz"], "unrecognized arguments: --zzz"),
        (["view", "a", "b"], "unrecognized arguments: b"),
    ],
)
def test_an_unknown_option_points_to_the_help_of_its_command(args, says, capsys):
    with coded(SystemExit, 2):
        _cli.main(args)
    assert capsys.readouterr().err == f"rustload: error: {says}\n  see: rustload {args[0]} --help\n"


def test_warnings_are_lines_without_a_place_in_the_source():
    program = """
import sys, warnings
import rustload
from rustload import _cli
from rustload._cli import schema

def run(args):
    warnings.warn("the file \\x1b[2J changes", rustload.RustloadWarning)
    warnings.warn("of another package")
    return 0

schema.run = run
sys.exit(_cli.main(["schema", "info"]))
"""
    done = child(program, check=False)
    assert done.returncode == 0
    first, second, *_ = done.stderr.splitlines()
    assert first == r"rustload: warning: the file \x1b[2J changes"
    assert second.endswith(": UserWarning: of another package")
