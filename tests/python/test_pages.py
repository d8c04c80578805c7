"""Runs every Python block and every command of the documentation, page by page, each page in a folder of its own.

The pages in `EMPTY` make the files that they use, and begin in an empty folder. Other pages find those of `page_files.py`.
Blocks of a page run in order and share their names, as a reader would type them. In a block marked `sh`, lines
that begin with `rustload` are run by the command line's `main`, and exit with 0 unless their comment ends with `exit code N`;
other lines are for a shell. A fence `python compile-only: REASON` needs what a test machine lacks, and is only compiled.
"""

import contextlib
import os
import re
import shlex
import shutil
import webbrowser
from pathlib import Path

import page_files
import pytest
from support import child

from rustload._cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/data/**/*.md")])
FENCE = re.compile(r"^```(?P<kind>\w*)(?P<note>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
EXIT = re.compile(r"#.*\bexit code (\d)$")
LIBRARIES = ("vLLM", "SGLang", "TensorRT-LLM", "timm", "spandrel", "ComfyUI")
REASONS = ("a GPU", "the network", "several processes", "a script of its own", *LIBRARIES)
"""What a block may need that a test machine lacks."""
EMPTY = (
    "start/get_started",
    "guides/bin_from_the_internet",
    "guides/jax",
    "guides/training_checkpoints",
)
"""What a newcomer follows from the beginning to the end."""
OWN_NAMES = ROOT / "README.md"
"""Where each block begins anew: `test_readme.py` runs its Python."""


def fences(page):
    return list(FENCE.finditer(page.read_text(encoding="utf-8")))


def shown(page):
    return str(page.relative_to(ROOT))


WITH_CODE = [page for page in PAGES if any(one["kind"] in ("python", "sh") for one in fences(page))]


@pytest.fixture(scope="module")
def files(sample_files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(sample_files, folder, dirs_exist_ok=True)
    page_files.write(folder)
    return folder


@pytest.fixture
def folder(page, request, tmp_path, monkeypatch):
    """The working folder of a page."""
    if page not in {ROOT / "docs" / f"{name}.md" for name in EMPTY}:
        shutil.copytree(request.getfixturevalue("files"), tmp_path, dirs_exist_ok=True)
    if page.name == "formats.md":
        page_files.write_formats(tmp_path)
    if page.name == "training_checkpoints.md":
        page_files.write_zero_run(tmp_path)  # of many ranks, which no newcomer has
    if page.name == "cli.md":
        (tmp_path / "model.safetensors").unlink()  # a command of the page writes it
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda *_: True)
    monkeypatch.syspath_prepend(ROOT)


@pytest.mark.usefixtures("folder")
@pytest.mark.filterwarnings("ignore")  # those of other libraries
@pytest.mark.parametrize("page", WITH_CODE, ids=shown)
def test_every_block_of_a_page_runs(page):
    text, names = page.read_text(encoding="utf-8"), {"__name__": "__page__"}
    for fence in fences(page):
        line = text.count("\n", 0, fence.start("code"))
        if fence["kind"] == "sh":
            run_commands(fence["code"], line, page)
        elif fence["kind"] == "python":
            # Blank lines in front, so that a traceback names the line of the page.
            code = compile("\n" * line + fence["code"], str(page), "exec")
            if page != OWN_NAMES and "compile-only" not in fence["note"]:
                exec(code, names)


def run_commands(code, line, page):
    for number, command in enumerate(code.splitlines(), line + 1):
        if command.startswith("rustload "):
            expected = EXIT.search(command)
            _, *arguments = shlex.split(command, comments=True)
            target = Path(arguments[-1] if ">" in arguments else os.devnull)
            with target.open("w", encoding="utf-8") as file, contextlib.redirect_stdout(file):
                found = main(arguments[: arguments.index(">")] if ">" in arguments else arguments)
            assert found == int(expected[1] if expected else 0), f"{shown(page)}:{number}: {command}"


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_code_on_a_page_is_marked_so_that_it_runs(page):
    for fence in fences(page):
        if fence["kind"] in ("python", "sh"):
            continue
        starts = {line.split(" ")[0] for line in fence["code"].splitlines()}
        marked = fence["kind"] == "text" or not {"rustload", ">>>", "import"} & starts
        assert marked, f"{shown(page)}: mark this block as sh or python: {fence['code']}"


@pytest.mark.parametrize("page", WITH_CODE, ids=shown)
def test_a_block_that_is_not_run_says_what_it_needs(page):
    for fence in fences(page):
        if fence["kind"] == "python" and fence["note"].strip():
            mark, _, reason = fence["note"].strip().partition(": ")
            assert mark == "compile-only", f"{shown(page)}: {fence['note']}"
            assert reason.removeprefix("needs ") in REASONS, f"{shown(page)}: {fence['note']}"


def test_the_guide_to_jax_runs_where_torch_cannot_be_imported(tmp_path):
    page = ROOT / "docs" / "guides" / "jax.md"
    code = "\n".join(fence["code"] for fence in fences(page) if fence["kind"] == "python")
    assert "import rustload.jax" in code
    blocked = "import os, sys\nsys.modules['torch'] = None\n"
    child(f"{blocked}os.chdir({str(tmp_path)!r})\n{code}\nassert sys.modules['torch'] is None\n")
