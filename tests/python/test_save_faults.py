"""Writing where the system fails late: at fsync, at close, in the folder, in a callback, on a full disk, without /proc."""

import contextlib
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuse_folder
import numpy as np
import pytest
import torch
from folder_faults import mounted
from fuse_folder import names_in

import rustload
from rustload._cli.command import main

MIB = 1 << 20
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount file systems")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 24 MiB, whose tensors are not zeros."""
    path = tmp_path_factory.mktemp("source") / "m.bin"
    torch.save({f"{at}": torch.randn(MIB) + 1 for at in range(6)}, path)
    return path


@pytest.fixture(scope="module")
def whole(source: Path) -> bytes:
    path = source.with_name("whole.safetensors")
    rustload.save(rustload.open(source), path)
    return path.read_bytes()


def test_after_a_failed_fsync_a_resumed_call_writes_everything(source, whole, tmp_path):
    with fuse_folder.mounted(tmp_path / "fuse") as disk:
        for number in range(8):
            path = disk.path / f"{number}.safetensors"
            disk.fail("fsync")
            disk.fail("late", 100 * (number == 7))
            options: dict[str, Any] = {"resume": True, "verify": number % 3 == 0, "fsync": number % 2 == 0}
            options["fsync"] |= not options["verify"]
            with pytest.raises(OSError, match="No space left"):
                rustload.save(rustload.open(source), path, **options)
            report = rustload.save(rustload.open(source), path, **options)
            assert path.read_bytes() == whole
            assert report.reused == 0
        assert names_in(disk.path) == sorted(f"{number}.safetensors" for number in range(8))


def test_after_a_failed_verification_the_same_call_starts_anew(source, whole, tmp_path):
    with fuse_folder.mounted(tmp_path / "fuse") as disk:
        path = disk.path / "m.safetensors"
        for _ in range(2):
            disk.fail("lie", 9)
            with pytest.raises(OSError, match="read back as 0x00") as caught:
                rustload.save(rustload.open(source), path, resume=True, verify=True)
            assert getattr(caught.value, "code", None) == "VerifyFailed"
        disk.fail("lie", 0)
        report = rustload.save(rustload.open(source), path, resume=True, verify=True)
        assert (report.reused, path.read_bytes() == whole) == (0, True)
        assert names_in(disk.path) == ["m.safetensors"]


@as_root
def test_a_thin_volume_that_is_full_for_a_while(source, whole, tmp_path):
    with mounted(tmp_path / "pool", "-t", "tmpfs", "-o", "size=12m", "none") as pool:
        image = pool / "image"
        image.touch()
        os.truncate(image, 96 * MIB)
        subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", str(image)], check=True)
        mount = ["-o", "loop", str(image)]
        path = tmp_path / "thin" / "m.safetensors"
        with mounted(tmp_path / "thin", *mount):
            with pytest.raises(OSError, match=r"space|error") as caught:
                rustload.save(rustload.open(source), path, resume=True)
            assert caught.value.errno in (errno.ENOSPC, errno.EIO)
            subprocess.run(["mount", "-o", "remount,size=128m", str(pool)], check=True)
            for _ in range(5):
                # The kernel may report errors of earlier writes, of the volume's own blocks, once more.
                with contextlib.suppress(OSError):
                    rustload.save(rustload.open(source), path, resume=True)
                    break
            assert names_in(path.parent) == ["lost+found", "m.safetensors"]
        # Mounted anew, so that every byte comes from the volume.
        with mounted(tmp_path / "thin", *mount):
            assert path.read_bytes() == whole


@pytest.mark.parametrize("resume", [False, True])
def test_errors_of_fsync_and_close_come_before_the_name(resume, source, tmp_path):
    with fuse_folder.mounted(tmp_path / "fuse") as disk:
        path = disk.path / "m.safetensors"
        path.write_bytes(b"old")
        for operation, fsync in (("fsync", True), ("flush", False)):
            disk.fail(operation, 1, errno.EDQUOT)
            with pytest.raises(OSError, match="quota") as caught:
                rustload.save(rustload.open(source), path, resume=resume, fsync=fsync)
            assert caught.value.errno == errno.EDQUOT
            disk.fail(operation, 0)
            assert path.read_bytes() == b"old"
            assert set(names_in(disk.path)) <= {"m.safetensors", ".m.safetensors.resume"}
            assert resume or names_in(disk.path) == ["m.safetensors"]


def test_a_folder_that_cannot_be_synced_says_that_the_target_is_complete(source, whole, tmp_path):
    with fuse_folder.mounted(tmp_path / "fuse") as disk:
        path = disk.path / "m.safetensors"
        disk.fail("fsyncdir", 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output") as caught:
            rustload.save(rustload.open(source), path)
        assert any("complete and in its place" in note for note in caught.value.__notes__)
        assert path.read_bytes() == whole
        disk.fail("rename", 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output") as caught:
            rustload.save({"x": np.zeros(3)}, path)
        assert not any("in its place" in note for note in getattr(caught.value, "__notes__", []))
        assert path.read_bytes() == whole
        assert names_in(disk.path) == ["m.safetensors"]


@pytest.mark.filterwarnings("ignore:.*one by one")
@pytest.mark.parametrize("can", ["nothing more", "exchanges"])
def test_what_gets_a_name_is_on_the_disk_before(can, tmp_path):
    deep = tmp_path / "source" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "config.json").write_text("{}")
    tensors = {f"{at}": np.full(250, at, "float32") for at in range(3)}
    rustload.save(tensors, tmp_path / "source", max_shard_size=1000, overwrite=True)
    with fuse_folder.mounted(tmp_path / "fuse", "faulty", can) as disk:
        for number in range(4):
            if number % 2:
                rustload.save(tensors, disk.path / "m.safetensors")
            else:
                rustload.convert(tmp_path / "source", disk.path / "m", copy_others=True, overwrite=True)
            *changes, (_, unsynced) = disk.changes()
            assert unsynced == []
            contents = {
                path.rpartition("/")[2] for _, paths in changes for path in paths if "(name)" not in path
            }
            assert contents <= {"token"}
        names = [change for change, _ in changes]
        assert ("exchange m" in names) == (can == "exchanges")
        # A folder gets its name, an index the name of an old one, and an old file loses its own.
        needs = re.compile(
            r"exchange m|remove model.*"
            if can == "exchanges"
            else r"rename m|rename .*index\.json|remove model.*"
        )
        checked = {change: paths for change, paths in changes if needs.fullmatch(change)}
        assert "remove model.safetensors.index.json" in checked or can != "exchanges"
        assert len(checked) > 2
        for change, paths in checked.items():
            assert not [path for path in paths if not path.startswith("/.") or "/files/" in path], change


def test_where_there_are_no_hard_links_a_new_file_is_written(source, whole, tmp_path):
    with fuse_folder.mounted(tmp_path / "fuse") as disk:
        path = disk.path / "m.safetensors"
        for resume in (False, True):
            rustload.convert(source, path, resume=resume)
            assert path.read_bytes() == whole
            with pytest.raises(FileExistsError):
                rustload.convert(source, path, resume=resume)
            assert names_in(disk.path) == ["m.safetensors"]
            path.unlink()


KILLED = """
import os, signal, sys, rustload, torch
class Fatal(torch.Tensor):
    def detach(self):
        os.kill(os.getpid(), getattr(signal, sys.argv[2]))
rustload.save({"a": torch.ones(1 << 20), "z": torch.zeros(3).as_subclass(Fatal)}, sys.argv[1])
"""


@pytest.mark.parametrize("name", ["SIGKILL", "SIGTERM"])
def test_the_next_call_removes_what_a_killed_one_left(name, source, tmp_path):
    with fuse_folder.mounted(tmp_path / "fuse") as disk:
        path = disk.path / "m.safetensors"
        others = [".other.0123456789abcdef.part", ".m.safetensors.0123456789abcdef.part", "n.safetensors"]
        for other in others:
            (disk.path / other).write_text(other)
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), name], check=False)
        assert done.returncode == -getattr(signal, name)
        left = set(names_in(disk.path)) - set(others)
        assert len(left) == 2
        assert {one.rpartition(".")[2] for one in left} == {"lock", "part"}
        rustload.save(rustload.open(source), path)
        assert names_in(disk.path) == sorted([*others, "m.safetensors"])
        assert all((disk.path / other).read_text() == other for other in others)


def test_a_callback_that_raises_at_the_last_byte_leaves_the_target(source, tmp_path):
    def raises(done: int, total: int, _: str) -> None:
        if done == total:
            raise RuntimeError("mine")

    tensors = {"x": np.ones(3, "float32")}
    path, folder = tmp_path / "m.safetensors", tmp_path / "folder"
    rustload.save(tensors, path)
    rustload.save(tensors, folder)
    calls: list[Callable[[], Any]] = [
        lambda: rustload.save({"y": np.ones(3)}, path, progress=raises),
        lambda: rustload.save({"y": np.ones(3)}, path, progress=raises, verify=True),
        lambda: rustload.convert(source, path, overwrite=True, progress=raises),
        lambda: rustload.save({"y": np.ones(3)}, folder, overwrite=True, progress=raises),
        lambda: rustload.save({"y": np.ones(3)}, tmp_path / "new.safetensors", progress=raises),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="mine"):
            call()
        assert list(rustload.open(path)) == list(rustload.open(folder)) == ["x"]
        assert names_in(tmp_path) == ["folder", "m.safetensors"]


def test_a_signal_at_the_last_byte_leaves_the_target(tmp_path):
    path = tmp_path / "m.safetensors"

    def interrupt(done: int, total: int, _: str) -> None:
        if done == total:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        rustload.save({"y": np.ones(3)}, path, progress=interrupt)
    assert names_in(tmp_path) == []


@as_root
def test_a_full_disk_for_objects_leaves_the_target(source, tmp_path):
    pickle = tmp_path / "m.pt"
    torch.save({"w": torch.ones(3), "texts": [f"{at:0100}" for at in range(4000)]}, pickle)
    target = tmp_path / "m.safetensors"
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=64k", "none") as small:
        objects = small / "m.json"
        with pytest.raises(OSError, match="No space left"):
            rustload.convert(pickle, target, objects=objects)
        assert names_in(small) == []
        assert not target.exists()
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", "size=2m", "none") as small:
        objects = small / "m.json"
        rustload.convert(pickle, target, objects=objects)
        assert len(json.loads(objects.read_text())["texts"]) == 4000
        before = objects.read_text()
        with pytest.raises(OSError, match="No space left"):
            rustload.convert(source, small / "n.safetensors", objects=objects, overwrite=True)
        assert (names_in(small), objects.read_text()) == (["m.json"], before)


def test_objects_in_a_folder_appear_with_it(source, tmp_path):
    folder = tmp_path / "model"
    report = rustload.convert(source, folder, objects=folder / "objects.json")
    assert names_in(folder) == sorted([*report.files, "objects.json"])
    link = tmp_path / "link.json"
    link.symlink_to("missing.json")
    with pytest.raises(ValueError, match="symbolic link"):
        rustload.convert(source, tmp_path / "n.safetensors", objects=link, overwrite=True)
    assert names_in(tmp_path) == ["link.json", "model"]


class Short(io.RawIOBase):
    """Takes some bytes at a time, or says something else."""

    def __init__(self, answers: Callable[[int], Any]) -> None:
        self.taken = bytearray()
        self.answers = answers

    def write(self, data: Any) -> Any:
        answer = self.answers(len(data))
        if isinstance(answer, int):
            self.taken += bytes(data)[: max(answer, 0)]
        return answer


def test_a_file_object_that_takes_less_gets_the_rest(source, whole):
    file = Short(lambda nbytes: min(nbytes, 70_001))
    rustload.save(rustload.open(source), file)
    assert file.taken == whole
    for answer in (None, -1, 1 << 40, "all"):
        with pytest.raises(OSError, match="write returned"):
            rustload.save(rustload.open(source), Short(lambda _, answer=answer: answer))
    with pytest.raises(OSError, match="write"):
        rustload.save(rustload.open(source), Short(lambda _: 0))


def test_a_pipe_that_would_block_is_an_error(source):
    read, write = os.pipe()
    os.set_blocking(write, False)
    with (
        os.fdopen(read, "rb"),
        os.fdopen(write, "wb", buffering=0) as file,
        pytest.raises(OSError, match="None"),
    ):
        rustload.save(rustload.open(source), file)


@as_root
def test_without_proc_files_are_written_and_file_objects_opened(source, whole, tmp_path):
    path = tmp_path / "m.safetensors"
    code = f"""
import os, rustload, tempfile
assert not os.path.exists("/proc/self")
with open({str(source)!r}, "rb") as named, tempfile.TemporaryFile() as unnamed:
    unnamed.write(named.read())
    assert rustload.open(unnamed)["0"].materialize().equal(rustload.open(named)["0"].materialize())
for resume in (False, True):
    for overwrite in (False, True):
        rustload.convert({str(source)!r}, {str(path)!r}, resume=resume, overwrite=overwrite)
    if not resume:
        os.unlink({str(path)!r})
"""
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            'mount -t tmpfs none /proc && exec "$0" -c "$1"',
            sys.executable,
            code,
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"/proc cannot be hidden here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == whole
    assert names_in(tmp_path) == ["m.safetensors"]


class Slow(torch.Tensor):
    """A tensor whose elements come when an event is set."""

    asked: threading.Event
    goes: threading.Event

    def detach(self) -> torch.Tensor:
        self.asked.set()
        self.goes.wait(20)
        return self.as_subclass(torch.Tensor)


def slow_write(writer: rustload.Writer) -> tuple[threading.Thread, threading.Event, list[Any]]:
    """A thread that is inside `write`, the event that lets it go on, and where its exception will be."""
    tensor = torch.ones(3).as_subclass(Slow)
    tensor.asked, tensor.goes = threading.Event(), threading.Event()
    caught: list[Any] = []

    def write() -> None:
        try:
            writer.write("slow", tensor)
        except ValueError as error:
            caught.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    assert tensor.asked.wait(20)
    return thread, tensor.goes, caught


def test_close_and_discard_while_another_thread_writes(tmp_path):
    path = tmp_path / "m.safetensors"
    declared = {"slow": ("float32", (3,))}
    writer = rustload.Writer(path, declared)
    thread, goes, caught = slow_write(writer)
    with pytest.raises(ValueError, match="another thread is still writing"):
        writer.close()
    goes.set()
    thread.join()
    writer.close()
    assert caught == []
    assert rustload.open(path)["slow"].torch().tolist() == [1, 1, 1]
    writer = rustload.Writer(path, {"slow": ("float32", (3,)), "more": ("int8", (1,))})
    thread, goes, caught = slow_write(writer)
    writer.discard()
    goes.set()
    thread.join()
    assert [error.code for error in caught] == ["Closed"]
    assert names_in(tmp_path) == ["m.safetensors"]
    assert list(rustload.open(path)) == ["slow"]


def test_leaving_the_block_while_another_thread_writes_discards(tmp_path):
    path = tmp_path / "m.safetensors"
    writer = rustload.Writer(path, {"slow": ("float32", (3,))})
    thread, goes, caught = slow_write(writer)
    with pytest.raises(ValueError, match="another thread is still writing"), writer:
        pass
    goes.set()
    thread.join()
    assert [error.code for error in caught] == ["Closed"]
    deadline = time.monotonic() + 20
    while names_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert names_in(tmp_path) == []


def test_doctor_finds_what_is_left_and_removes_what_nobody_holds(tmp_path, capsys):
    def left(*options: str) -> dict[str, tuple[str, bool, bool]]:
        assert main(["doctor", "--no-measure", "--json", *options, str(good)]) == 0
        found = json.loads(capsys.readouterr().out)["left"]
        return {one["path"].rpartition("/")[2]: (one["kind"], one["held"], one["removed"]) for one in found}

    good = tmp_path / "good.safetensors"
    rustload.save({"x": np.ones(3)}, good)
    assert left() == {}
    tag = "0123456789abcdef"
    (tmp_path / f".m.{tag}.part").mkdir()
    (tmp_path / f".m.{tag}.part" / "shard").write_bytes(bytes(100))
    (tmp_path / f".n.safetensors.{tag}.part").write_bytes(bytes(100))
    (tmp_path / ".k.safetensors.lock").touch()
    (tmp_path / ".r.safetensors.resume").mkdir()
    (tmp_path / ".r.safetensors.resume" / "plan").write_text("rustload resume 2, rustload 0\n")
    others = [".m.resume", ".x.lock", ".y.safetensors.lock", ".z.0123.part"]
    for other in others:
        (tmp_path / other).write_text("others")
    writer = rustload.Writer(tmp_path / "n.safetensors", {"x": ("int8", (1,))})
    expected = {
        f".m.{tag}.part": ("part", False),
        f".n.safetensors.{tag}.part": ("part", True),
        ".n.safetensors.lock": ("lock", True),
        ".k.safetensors.lock": ("lock", False),
        ".r.safetensors.resume": ("resume", False),
    }
    assert left() == {name: (*state, False) for name, state in expected.items()}
    assert main(["doctor", "--no-measure", str(good)]) == 0
    shown = capsys.readouterr().out
    assert "a writer has it now" in shown
    assert "continues; --clean removes it" in shown
    assert left("--clean") == {name: (*state, not state[1]) for name, state in expected.items()}
    kept = [f".n.safetensors.{tag}.part", ".n.safetensors.lock"]
    assert names_in(tmp_path) == sorted([*others, *kept, "good.safetensors"])
    writer.discard()
    assert set(left("--clean")) == {kept[0]}
    assert names_in(tmp_path) == sorted([*others, "good.safetensors"])
