"""`rustload.save` under faults: verification, progress, little memory, full disks, and calls that are killed and repeated."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support import WAIT, child, coded, limited_child, names

import rustload

MIB = 1 << 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 96 MiB: 20 large tensors and 200 small ones."""
    path = tmp_path_factory.mktemp("source") / "m.bin"
    large = {f"large.{at:02}": torch.randn(1200, 1000) for at in range(20)}
    torch.save(large | {f"small.{at:03}": torch.randn(50) for at in range(200)}, path)
    return path


def expected(source: Path, dtype: torch.dtype = torch.float32) -> bytes:
    tensors = {name: tensor.to(dtype) for name, tensor in torch.load(source).items()}
    return safetensors.torch.save(tensors, metadata={"format": "pt"})


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_a_verified_file_is_that_of_the_reference(dtype, source, tmp_path):
    path = tmp_path / "m.safetensors"
    rustload.save(rustload.open(source), path, dtype=dtype, verify=True, fsync=False)
    assert path.read_bytes() == expected(source, getattr(torch, dtype or "float32"))
    rustload.save(rustload.open(source), tmp_path / "m", dtype=dtype, verify=True, max_shard_size="20MB")
    found = {name: tensor.torch() for name, tensor in rustload.open(tmp_path / "m").items()}
    assert all(torch.equal(found[name], tensor) for name, tensor in safetensors.torch.load_file(path).items())


class Asked(torch.Tensor):
    """A tensor that calls a function with the number of times that it was asked for its elements."""

    asked: Callable[[int], None]
    times: int

    @staticmethod
    def of(tensor: torch.Tensor, asked: Callable[[int], None]) -> Asked:
        made = tensor.as_subclass(Asked)
        made.asked, made.times = asked, 0
        return made

    def detach(self) -> torch.Tensor:
        self.times += 1
        self.asked(self.times)
        return self.as_subclass(torch.Tensor)


def test_a_source_that_changes_before_it_is_verified_leaves_the_target(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"old")
    plain = torch.zeros(30 * MIB, dtype=torch.uint8)

    def change(times: int) -> None:
        if times == 2:
            plain[[20 * MIB + 7, 29 * MIB]] = 1

    tensors = {"a": torch.zeros(3), "b": Asked.of(plain, change)}
    with pytest.raises(OSError, match="read back as 0x00, its source has 0x01") as caught:
        rustload.save(tensors, path, verify=True, threads=1)
    error: Any = caught.value
    assert (error.code, error.member) == ("VerifyFailed", "b")
    plain[:] = 0
    tensors["b"] = plain
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["m.safetensors"]
    rustload.save(tensors, path, verify=True)
    start = path.stat().st_size - plain.numel()
    assert error.offset == start + 20 * MIB + 7


def test_progress_counts_every_byte(source, tmp_path):
    ckpt = rustload.open(source)
    for verify, more in ((False, {}), (True, {}), (False, {"max_shard_size": "20MB"})):
        calls: list[tuple[int, int, str]] = []
        path = tmp_path / ("folder" if more else "m.safetensors")
        report = rustload.save(
            ckpt,
            path,
            dtype="float16",
            verify=verify,
            progress=lambda *call, calls=calls: calls.append(call),
            overwrite=True,
            **more,  # type: ignore[arg-type]
        )
        total = sum(tensor.nbytes for tensor in ckpt.values()) // 2 * (2 if verify else 1)
        assert {call[1] for call in calls} == {total}
        assert calls[-1][0] == total
        assert [call[0] for call in calls] == sorted(call[0] for call in calls)
        assert {call[2] for call in calls} == set(ckpt)
        assert report.reused == 0


def test_an_exception_of_the_callback_stops_the_call(tmp_path):
    def stop(*_: Any) -> None:
        raise RuntimeError("mine")

    tensors = {f"{at}": torch.zeros(10 * MIB) for at in range(40)}
    with pytest.raises(RuntimeError, match="mine"):
        rustload.save(tensors, tmp_path / "m.safetensors", progress=stop, threads=1)
    assert names(tmp_path) == []
    with pytest.raises(TypeError, match="progress="):
        rustload.save({}, tmp_path / "m.safetensors", progress=3)  # type: ignore[arg-type]


def test_progress_is_written_to_stderr(source, tmp_path, capsys):
    rustload.save(rustload.open(source), tmp_path / "m.safetensors", progress=True)
    assert "saving: 91.6 MiB of 91.6 MiB" in capsys.readouterr().err


def test_a_file_object_is_neither_verified_nor_resumed(tmp_path):
    with (tmp_path / "x").open("wb") as file:
        for more in ({"verify": True}, {"resume": True}):
            with pytest.raises(ValueError, match="write to a file"):
                rustload.save({"x": torch.zeros(3)}, file, **more)  # type: ignore[arg-type]


# A child measures its own peak, beyond what its imports take.
SAVES_ONCE = f"""
import sys, resource, rustload
from process_memory import status
source, target, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
limit = options.pop("limit", None)
if limit:
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
before = peak = status("RssAnon")
def sample(*_):
    global peak
    peak = max(peak, status("RssAnon"))
{WAIT}
rustload.save(rustload.open(source), target, progress=sample, **options)
print(peak - before)
"""


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkpoint of 600 MiB, one tensor of it larger than the limits below."""
    path = tmp_path_factory.mktemp("big") / "m.bin"
    torch.save({"x": torch.randn(100 * MIB)} | {f"{at}": torch.randn(2 * MIB) for at in range(25)}, path)
    yield path
    path.unlink()


@pytest.mark.parametrize("options", [{}, {"dtype": "bfloat16"}])
def test_little_data_memory_is_enough(options, big, tmp_path):
    path = tmp_path / "m.safetensors"
    options = {"limit": 300 * MIB, "threads": 4, "verify": True, **options}
    peak = int(child(SAVES_ONCE, big, path, options).stdout.split()[-1])
    assert peak <= 300 * MIB // 4 + 64 * MIB
    assert len(rustload.open(path)) == 26


def test_a_small_cgroup_is_enough(big, tmp_path):
    path = tmp_path / "m.safetensors"
    done = limited_child(256 * MIB, SAVES_ONCE, big, path, {"dtype": "float16", "verify": True})
    assert int(done.stdout) <= 256 * MIB // 4 + 64 * MIB
    assert len(rustload.open(path)) == 26


def test_a_limit_of_the_file_size_leaves_the_target(source, tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"old")
    code = f"""
import resource, signal, rustload
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50 << 20, 50 << 20))
for resume in (False, True):
    try:
        rustload.save(rustload.open({str(source)!r}), {str(path)!r}, resume=resume)
    except OSError as error:
        print(error.errno, error.filename is not None)
"""
    assert child(code).stdout.split() == [str(errno.EFBIG), "True"] * 2
    assert path.read_bytes() == b"old"
    # The second call was to be resumed.
    assert names(tmp_path) == [".m.safetensors.resume", "m.safetensors"]


def test_a_link_to_a_file_that_does_not_exist_is_refused(source, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "outside").mkdir()
    link = tmp_path / "folder" / "m.safetensors"
    link.symlink_to("../outside/m.safetensors")
    writes: list[Callable[[], Any]] = [
        lambda: rustload.save(rustload.open(source), link),
        lambda: rustload.save(rustload.open(source), link, resume=True),
        lambda: rustload.convert(source, link, overwrite=True),
        lambda: rustload.Writer(link, {"x": ("int8", (1,))}),
    ]
    for write in writes:
        with pytest.raises(ValueError, match="symbolic link to a file that does not exist"):
            write()
    assert names(tmp_path / "outside") == []
    assert names(tmp_path / "folder") == ["m.safetensors"]
    (tmp_path / "outside" / "m.safetensors").write_bytes(b"old")
    rustload.save(rustload.open(source), link)
    assert link.is_symlink()
    assert is_whole(tmp_path / "outside" / "m.safetensors")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")
def test_a_full_disk_leaves_the_target(source, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "none", disk], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        path = disk / "m.safetensors"
        path.write_bytes(b"old")
        for more in ({}, {"max_shard_size": "15MB"}):
            target = disk / "folder" if more else path
            with pytest.raises(OSError, match="No space left") as caught:
                rustload.save(rustload.open(source), target, **more)  # type: ignore[arg-type]
            assert caught.value.errno == errno.ENOSPC
        assert names(disk) == ["m.safetensors"]
        assert path.read_bytes() == b"old"
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_folder_without_permission_is_an_error(source, tmp_path):
    ckpt = rustload.open(source)
    tmp_path.chmod(0o500)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root may write anywhere
    try:
        for resume in (False, True):
            with pytest.raises(PermissionError):
                rustload.save(ckpt, tmp_path / "m.safetensors", resume=resume)
    finally:
        os.seteuid(user)
    tmp_path.chmod(0o700)
    assert names(tmp_path) == []


def test_a_source_that_is_cut_meanwhile_leaves_nothing(source, tmp_path):
    copy = tmp_path / "copy.bin"
    copy.write_bytes(source.read_bytes())
    ckpt = rustload.open(copy)
    os.truncate(copy, 50 * MIB)
    for dtype in (None, "bfloat16"):
        with coded(rustload.FormatError, "FileChanged"):
            rustload.save(ckpt, tmp_path / "m.safetensors", dtype=dtype)
    assert names(tmp_path) == ["copy.bin"]


SAVES_AGAIN = """
import sys, rustload
source, target, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
print("ready", flush=True)
while True:
    report = rustload.save(rustload.open(source), target, overwrite=True, fsync=False, **options)
    print(report.reused, flush=True)
    if options.get("resume"):
        break
"""


def killed_after(seconds: float, source: Path, target: Path, **options: Any) -> bool:
    """Runs a child that saves, and kills it. Returns whether it was done before."""
    command = [sys.executable, "-c", SAVES_AGAIN, str(source), str(target), repr(options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        time.sleep(seconds)
        is_done = running.poll() == 0
        running.send_signal(signal.SIGKILL)
    return is_done


def is_whole(path: Path) -> bool:
    """Whether a file or folder has all tensors."""
    ckpt = rustload.open(path)
    return len(ckpt) == 220 and bool(torch.isfinite(ckpt["large.19"].torch().float()).all())


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_killed_call_leaves_no_target_or_a_whole_one(kind, source, tmp_path):
    chance = random.Random(4)
    options: dict[str, Any] = {} if kind == "file" else {"max_shard_size": "20MB"}
    path = tmp_path / ("m.safetensors" if kind == "file" else "model")
    for _ in range(6):
        killed_after(chance.random() * 0.4, source, path, dtype="bfloat16", **options)
        if path.exists():
            assert is_whole(path)
        if kind == "file":
            # To replace a file, the new one needs a name, for an instant: it may be left, and the lock.
            for left in tmp_path.glob(".m.safetensors*"):
                assert left.stat().st_size == 0 if left.suffix == ".lock" else is_whole(left)
    # The next call of the same target removes what the killed ones have left.
    rustload.save(rustload.open(source), path, dtype="bfloat16", overwrite=True, fsync=False, **options)
    assert is_whole(path)
    if kind == "file":
        assert names(tmp_path) == [path.name]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_resumed_call_does_only_what_is_missing(kind, source, tmp_path):
    chance = random.Random(5)
    options: dict[str, Any] = {"resume": True, "threads": 1}
    name = "m.safetensors" if kind == "file" else "model"
    if kind == "folder":
        options["max_shard_size"] = "20MB"
    (tmp_path / "whole").mkdir()
    rustload.save(rustload.open(source), tmp_path / "whole" / name, **(options | {"resume": False}))
    whole = tmp_path / "whole" / name
    files = {"": whole} if kind == "file" else {path.name: path for path in whole.iterdir()}
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        path = folder / name
        for _ in range(3):
            if killed_after(chance.random() * 0.06, source, path, **options):
                break
            assert not path.exists() or is_whole(path)
        calls: list[tuple[int, int, str]] = []
        report = rustload.save(
            rustload.open(source),
            path,
            overwrite=True,
            progress=lambda *call, calls=calls: calls.append(call),
            **options,
        )
        assert calls[-1][0] == calls[-1][1] == 4 * (20 * 1_200_000 + 200 * 50)
        assert 0 <= report.reused <= calls[-1][1]
        for file, same in files.items():
            assert (path / file if file else path).read_bytes() == same.read_bytes()
        assert names(folder) == [name]


KILLED_MIDWAY = """
import os, signal, sys, rustload, torch
class Fatal(torch.Tensor):
    def detach(self):
        os.kill(os.getpid(), signal.SIGKILL)
source, target, options = sys.argv[1], sys.argv[2], eval(sys.argv[3])
tensors = dict(rustload.open(source)) | {"z": torch.zeros(3).as_subclass(Fatal)}
rustload.save(tensors, target, resume=True, threads=1, **options)
"""


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_call_after_a_killed_one_reuses_what_was_written(kind, source, tmp_path):
    options: dict[str, Any] = {} if kind == "file" else {"max_shard_size": "20MB"}
    path = tmp_path / ("m.safetensors" if kind == "file" else "model")
    command = [sys.executable, "-c", KILLED_MIDWAY, str(source), str(path), repr(options)]
    for _ in range(2):
        assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
        assert not path.exists()
    # The process was killed when it was asked for the elements of `z`, behind all tensors of the checkpoint.
    tensors = dict(rustload.open(source)) | {"z": torch.zeros(3)}
    report = rustload.save(tensors, path, resume=True, **options)
    # The small ones may be written together with `z`.
    assert 4 * 20 * 1_200_000 <= report.reused <= 4 * (20 * 1_200_000 + 200 * 50)
    found = {name: tensor.torch() for name, tensor in rustload.open(path).items()}
    assert found.keys() == tensors.keys()
    assert found["z"].tolist() == [0, 0, 0]
    assert all(torch.equal(found[name], tensor) for name, tensor in torch.load(source).items())
    assert names(tmp_path) == [path.name]


def fail_midway(source: Path, path: Path, **options: Any) -> None:
    """A call with `resume=True` that fails when all large tensors are written."""

    def fail(_: int) -> None:
        raise RuntimeError("mine")

    tensors = dict(rustload.open(source)) | {"z": Asked.of(torch.zeros(3), fail)}
    with pytest.raises(OSError, match="mine"):
        rustload.save(tensors, path, resume=True, threads=1, **options)


def test_only_an_equal_call_is_resumed(source, tmp_path):
    path = tmp_path / "m.safetensors"
    copy = tmp_path / "copy.bin"
    copy.write_bytes(source.read_bytes())
    total = 4 * (20 * 1_200_000 + 200 * 50)

    def reused(**options: Any) -> int:
        tensors = dict(rustload.open(copy)) | {"z": torch.zeros(3)}
        report = rustload.save(tensors, path, resume=True, **options)
        found = safetensors.torch.load_file(path)
        dtype = getattr(torch, options.get("dtype", "float32"))
        assert found["z"].tolist() == [0, 0, 0]
        assert all(torch.equal(found[name], tensor.to(dtype)) for name, tensor in torch.load(copy).items())
        assert names(tmp_path) == ["copy.bin", "m.safetensors"]
        return report.reused

    fail_midway(copy, path)
    assert names(tmp_path) == [".m.safetensors.resume", "copy.bin"]
    assert total / 4 < reused() <= total
    assert reused() == 0
    fail_midway(copy, path)
    assert reused(dtype="float16") == 0
    fail_midway(copy, path)
    assert reused(metadata={"format": "pt", "step": "2"}) == 0
    fail_midway(copy, path)
    os.utime(copy, (1, 1))
    assert reused() == 0
    fail_midway(copy, path)
    (tmp_path / "new.bin").write_bytes(copy.read_bytes())
    os.utime(tmp_path / "new.bin", (1, 1))
    (tmp_path / "new.bin").rename(copy)
    assert reused() == 0
    # What is there is not trusted after a reboot.
    fail_midway(copy, path)
    journal = tmp_path / ".m.safetensors.resume" / "journal"
    lines = journal.read_text().splitlines(keepends=True)
    assert lines[0].startswith("boot ")
    journal.write_text("".join(["boot another\n", *lines[1:]]))
    assert reused() == 0


@pytest.mark.parametrize("resume", [False, True])
def test_two_calls_at_once_are_refused(resume, source, tmp_path):
    path = tmp_path / "m.safetensors"
    caught: list[Any] = []

    def save(times: int = 0) -> None:
        tensors: dict[str, Any] = dict(rustload.open(source))
        tensors["z"] = torch.zeros(3) if times else Asked.of(torch.zeros(3), save)
        try:
            rustload.save(tensors, path, resume=resume)
        except OSError as error:
            caught.append(error)

    save()
    assert [error.code for error in caught] == ["TargetBusy"]
    assert names(tmp_path) == ["m.safetensors"]


def test_convert_verifies_resumes_and_shows_progress(source, tmp_path):
    path = tmp_path / "m.safetensors"
    calls: list[tuple[int, int, str]] = []
    options: dict[str, Any] = {"dtype": "bfloat16", "verify": True, "resume": True}
    report = rustload.convert(source, path, progress=lambda *call: calls.append(call), **options)
    assert calls[-1][0] == calls[-1][1] == 4 * (20 * 1_200_000 + 200 * 50)
    assert report.reused == 0
    assert path.read_bytes() == expected(source, torch.bfloat16)
    assert names(tmp_path) == ["m.safetensors"]
