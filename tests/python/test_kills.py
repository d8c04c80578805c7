"""Writers that are killed at random moments and between system calls; `kills.py` and `kill_points.py` run as many as wanted."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fuse_folder
import pytest

HARNESS = Path(__file__).with_name("kills.py")
POINTS = Path(__file__).with_name("kill_points.py")
QUICK = "file,convert,writer,resume"


@pytest.fixture(params=["disk", "tmpfs", "fuse"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system with unnamed files, one in memory, and one without unnamed files and links."""
    if request.param == "fuse":
        with fuse_folder.mounted(tmp_path / "fuse") as mounted:
            yield mounted.path
        return
    shared = Path("/dev/shm")
    if request.param == "tmpfs" and not shared.is_dir():
        pytest.skip("there is no /dev/shm")
    yield shared if request.param == "tmpfs" else tmp_path


def test_killed_writers_leave_nothing_half_done(folder):
    # A process of its own, as it forks.
    command = [sys.executable, "-W", "ignore", str(HARNESS), str(folder), "--kills", "40"]
    done = subprocess.run([*command, "--operations", QUICK], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "two writers: one won, one was refused" in done.stdout


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_writer_killed_between_any_two_changes_of_names_leaves_nothing_half_done(tmp_path):
    calls = "rename,renameat2,linkat"
    # One exchanges the folder, the other moves files to it.
    operations = "folder-resume,folder-dcp"
    command = [sys.executable, "-W", "ignore", str(POINTS), str(tmp_path), "--operations", operations]
    done = subprocess.run([*command, "--calls", calls], check=False, capture_output=True, text=True)
    if "strace cannot attach" in done.stderr:
        pytest.skip("strace cannot attach to a process here")
    assert done.returncode == 0, done.stderr
    assert "killed before renameat2" in done.stdout
