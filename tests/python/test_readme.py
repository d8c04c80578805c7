"""Runs every Python block of README, each by itself, beside the sample files of `conftest.py`.

A block whose fence says `python compile-only` needs what a test machine lacks (a GPU, a big file), and is
only compiled.
"""

import re
from pathlib import Path

import pytest
from support import child

README = Path(__file__).resolve().parents[2] / "README.md"
FENCE = re.compile(r"^```python(?P<note>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    text = README.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code"))
        # Blank lines in front, so that a traceback names the line in README.
        code = compile("\n" * line + match["code"], str(README), "exec")
        yield pytest.param(code, "compile-only" not in match["note"], id=f"line-{line + 1}")


@pytest.mark.examples
@pytest.mark.parametrize(("code", "runs"), [*blocks()])
def test_every_block_of_the_readme_runs(code, runs):
    if runs:
        exec(code, {"__name__": "__readme__"})


def test_the_first_block_runs_in_an_empty_folder(tmp_path):
    """As a newcomer types it: it makes the file that it opens."""
    code = FENCE.search(README.read_text(encoding="utf-8"))["code"]
    assert "torch" in code.split("rustload.open")[0]
    shown = child(f"import os\nos.chdir({str(tmp_path)!r})\n" + code).stdout
    assert shown.startswith("0.weight float32 (4, 8)\n")
    assert "torch.Size([8, 4]) torch.bfloat16 tensor([[" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["example.pt"]
