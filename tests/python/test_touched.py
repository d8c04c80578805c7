"""When `make test` runs AddressSanitizer: `fuzz/touched` says what a branch touches."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "fuzz" / "touched"
FILES = {
    "src/pickle/read.rs": "fn read() {}",
    "src/write/plan.rs": "fn plan() {}",
    "src/write/close.rs": "fn close() { unsafe { end() } }",
    "README.md": "words",
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in {"NAME": "a", "EMAIL": "a@b"}.items():
        monkeypatch.setenv(f"GIT_AUTHOR_{name}", value)
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", value)
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "fuzz").mkdir()
    shutil.copy(SCRIPT, tmp_path / "fuzz" / "touched")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path)
    git(tmp_path, "checkout", "--quiet", "-b", "branch")
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "change")


def touched(folder: Path) -> bool:
    return (
        subprocess.run(["fuzz/touched"], cwd=folder, check=False, stdout=subprocess.DEVNULL).returncode == 0
    )


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"README.md": "other words"}, False),
        ({"src/write/plan.rs": "fn plan() { other() }"}, False),
        ({"src/pickle/read.rs": "fn read() { other() }"}, True),
        ({"src/write/close.rs": "fn close() {}"}, True),
        ({"src/write/plan.rs": "fn plan() { unsafe { other() } }"}, True),
        ({"tests/rust/new.rs": ""}, True),
    ],
)
def test_parsers_unsafe_code_and_their_tests_are_touched_in_the_tree_on_the_branch_and_on_main(
    change, wanted, repository
):
    assert not touched(repository)
    for name, text in change.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    assert touched(repository) == wanted
    commit(repository)
    assert touched(repository) == wanted
    git(repository, "checkout", "--quiet", "main")
    git(repository, "merge", "--quiet", "branch")
    assert touched(repository) == wanted


def test_git_cannot_tell(repository):
    (repository / "src/pickle/read.rs").write_text("fn read() { other() }")
    shutil.rmtree(repository / ".git")
    assert not touched(repository)
