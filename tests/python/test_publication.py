"""A writer that is killed while it moves files to an existing folder, and other programs that use the folder since."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rustload import _rustload
from rustload._cli.command import main

FILES = [f"m-{number:05}-of-03000.safetensors" for number in range(3000)]
WRITER = """
import sys
from pathlib import Path
from rustload import _rustload
stage = _rustload.FolderStage(sys.argv[1], "m", overwrite=False)
files = sys.stdin.read().split()
for file in files:
    (Path(stage.path) / file).write_text("new")
print("ready", flush=True)
stage.publish(files, sync=False)
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A folder with a file of others, to which a killed writer has moved some files of a checkpoint."""
    target = tmp_path / "model"
    target.mkdir()
    (target / "config.json").write_text("others")
    for _ in range(50):
        command = [sys.executable, "-c", WRITER, str(target)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdin is not None
            assert writer.stdout is not None
            writer.stdin.write(" ".join(FILES))
            writer.stdin.close()
            assert writer.stdout.readline() == "ready\n"
            while not (target / FILES[0]).exists():
                pass
            writer.kill()
            status = writer.wait()
        if status == -signal.SIGKILL and not (target / FILES[-1]).exists():
            return target
        for file in FILES:
            (target / file).unlink(missing_ok=True)
    raise AssertionError("the writer was never killed at its work")


def clean(target: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, bool]]:
    """What `doctor --clean` finds beside a folder: its kind, and whether it was removed."""
    main(["doctor", "--no-measure", "--json", "--clean", str(target)])
    found = json.loads(capsys.readouterr().out)["left"]
    return {os.path.basename(one["path"]): (one["kind"], one["removed"]) for one in found}  # noqa: PTH119


def test_the_next_run_keeps_a_file_that_others_have_made_since(target):
    (target / FILES[-1]).write_text("theirs")
    with pytest.raises(OSError, match="exists") as caught:
        _rustload.FolderStage(os.fspath(target), "m", overwrite=False)
    assert getattr(caught.value, "code", None) == "TargetExists"
    assert names(target) == {"config.json", FILES[-1]}
    assert (target / FILES[-1]).read_text() == "theirs"
    assert names(target.parent) == {"model"}


def test_doctor_moves_the_files_back_for_those_of_others(target, capsys):
    (target / FILES[-1]).write_text("theirs")
    main(["doctor", "--no-measure", str(target)])
    assert "not all of its files are in their folder" in capsys.readouterr().out
    assert clean(target, capsys) == {".model.part": ("publication", True)}
    assert names(target) == {"config.json", FILES[-1]}
    assert (target / FILES[-1]).read_text() == "theirs"
    assert names(target.parent) == {"model"}


def test_doctor_moves_the_other_files(target, capsys):
    assert clean(target, capsys)[".model.part"] == ("publication", True)
    assert names(target) == {"config.json", *FILES}
    assert names(target.parent) == {"model"}


def test_doctor_knows_a_staged_folder_and_no_other_folder_of_such_a_name(tmp_path, capsys):
    target = tmp_path / "model"
    target.mkdir()
    stage = _rustload.FolderStage(os.fspath(target), "m", overwrite=False)
    (tmp_path / ".other.part").mkdir()
    (tmp_path / ".film.mp4.part").write_bytes(b"0")
    assert clean(target, capsys)[".model.part"] == ("part", False)
    stage.discard()
    assert names(tmp_path) == {"model", ".other.part", ".film.mp4.part"}


def test_a_file_of_the_checkpoint_that_others_make_before_the_publication_is_kept(tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    stage = _rustload.FolderStage(os.fspath(target), "m", overwrite=False)
    (Path(stage.path) / FILES[0]).write_text("new")
    (target / "m.safetensors").write_text("theirs")
    with pytest.raises(OSError, match="exists"):
        stage.publish([FILES[0]], sync=False)
    assert names(target) == {"m.safetensors"}
    assert (target / "m.safetensors").read_text() == "theirs"
    assert names(tmp_path) == {"model"}
