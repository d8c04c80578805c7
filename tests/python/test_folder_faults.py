"""Folders written under faults: other programs in them, file systems and users that may not do all, kills, two writers."""

import contextlib
import errno
import itertools
import json
import multiprocessing
import os
import random
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from folder_faults import NOBODY, as_nobody, ext4, mounted
from support import names, torch_child

import rustload
from rustload.errors import RustloadWarning

OVERWRITE: dict[str, Any] = {"overwrite": True, "fsync": False}


def tensors(value: int, count: int = 3) -> dict[str, torch.Tensor]:
    return {f"t{number}": torch.full((250,), float(value)) for number in range(count)}


def save(path: Path, value: int, **options: Any) -> None:
    """Three shards of 1000 bytes each, all of whose elements are `value`."""
    rustload.save(tensors(value), path, **{"max_shard_size": 1000, **OVERWRITE, **options})


def value_of(path: Path) -> int:
    """The value that all tensors have; fails for a mix."""
    ckpt = rustload.open(path)
    values = {float(one) for name in ckpt for one in ckpt[name].torch().unique()}
    assert len(ckpt) == 3
    assert len(values) == 1, values
    return int(values.pop())


def hidden(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir() if one.name.startswith("."))


def test_files_that_others_make_in_a_folder_meanwhile_are_kept(tmp_path):
    path = tmp_path / "model"
    save(path, 0)
    (path / "sub").mkdir()
    made: list[str] = []
    is_done = threading.Event()

    def others() -> None:
        while not is_done.is_set():
            name = ("" if len(made) % 2 else "sub/") + f"log{len(made)}"
            try:
                (path / name).write_text(name)
            except FileNotFoundError:  # between the last file that moves and the removal of the old folder
                continue
            made.append(name)
            time.sleep(0.001)

    thread = threading.Thread(target=others)
    thread.start()
    value = 0
    while value < 15 or len(made) <= 100:
        value += 1
        save(path, value)
    is_done.set()
    thread.join()
    assert [name for name in made if not (path / name).exists()] == []
    assert all((path / name).read_text() == name for name in made)
    assert value_of(path) == value
    assert hidden(tmp_path) == []


def test_a_file_that_is_replaced_meanwhile_has_its_new_content(tmp_path):
    path = tmp_path / "model"
    save(path, 0)
    is_done, last = threading.Event(), [0]

    def edits() -> None:
        while not is_done.is_set():
            (tmp_path / "new").write_text(str(last[0] + 1))
            try:
                (tmp_path / "new").replace(path / "config.json")
            except FileNotFoundError:
                continue
            last[0] += 1
            time.sleep(0.002)

    thread = threading.Thread(target=edits)
    thread.start()
    try:
        for value in range(1, 16):
            save(path, value)
    finally:
        is_done.set()
        thread.join()
    assert int((path / "config.json").read_text()) == last[0]


def test_nothing_is_left_where_not_a_byte_can_be_written(tmp_path):
    path = tmp_path / "model"
    save(path, 0)
    for target in (path, tmp_path / "new"):
        before = sorted(tmp_path.rglob("*"))
        child = os.fork()
        if not child:
            # As on a full disk; Python ignores the signal.
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
            try:
                save(target, 1)
            except OSError as error:
                os._exit(error.errno or 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EFBIG
        assert sorted(tmp_path.rglob("*")) == before
    assert value_of(path) == 0


@pytest.mark.parametrize("mode", [0o700, 0o2775, 0o1777])
@pytest.mark.parametrize("place", ["folder", "subfolder"])
def test_a_replaced_folder_keeps_mode_owner_and_group(mode, place, tmp_path):
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    path = tmp_path / "model"
    save(path, 0)
    kept = path if place == "folder" else path / "logs"
    kept.mkdir(exist_ok=True)
    os.chown(kept, NOBODY, 12345)
    kept.chmod(mode)
    save(path, 1)
    found = kept.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (NOBODY, 12345, mode)
    assert value_of(path) == 1


def set_list(path: Path, kind: str) -> None:
    """Sets an access control list of a folder; skips the test where there are none."""
    # version, and entries of tag, permissions, id: user::rwx user:1234:rwx group::r-x mask::rwx other::---
    entries = [(1, 7, -1), (2, 7, 1234), (4, 5, -1), (16, 7, -1), (32, 0, -1)]
    acl = b"\2\0\0\0" + b"".join(
        tag.to_bytes(2, "little") + bits.to_bytes(2, "little") + (user & 0xFFFFFFFF).to_bytes(4, "little")
        for tag, bits, user in entries
    )
    try:
        os.setxattr(path, f"system.posix_acl_{kind}", acl)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")


def test_a_replaced_folder_keeps_its_access_control_lists(tmp_path):
    path = tmp_path / "model"
    save(path, 0)
    for kind in ("access", "default"):
        set_list(path, kind)
    os.setxattr(path, "user.note", b"kept")
    before = {name: os.getxattr(path, name) for name in os.listxattr(path)}
    inode = path.stat().st_ino
    save(path, 1)
    assert {name: os.getxattr(path, name) for name in os.listxattr(path)} == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o770
    assert path.stat().st_ino != inode
    assert value_of(path) == 1


def test_a_replaced_folder_gets_no_list_of_its_parent(tmp_path):
    save(tmp_path / "model", 0)
    set_list(tmp_path, "default")
    save(tmp_path / "model", 1)
    assert os.listxattr(tmp_path / "model") == []
    assert value_of(tmp_path / "model") == 1


def test_a_new_folder_follows_the_umask_and_its_parent(tmp_path):
    if os.geteuid():
        pytest.skip("only root can give a folder to another group")
    os.chown(tmp_path, -1, 12345)
    tmp_path.chmod(0o2770)
    for name, resume in (("one", False), ("two", True)):
        save(tmp_path / name, 1, resume=resume)
        (tmp_path / f"plain {name}").mkdir()
        found, plain = (tmp_path / name).stat(), (tmp_path / f"plain {name}").stat()
        assert (found.st_mode, found.st_gid) == (plain.st_mode, plain.st_gid) == (plain.st_mode, 12345)


def replaced_one_by_one(path: Path, why: str, **options: Any) -> None:
    """Saves over a checkpoint in a folder that cannot be exchanged: it stays the same one, and a warning says why."""
    save(path, 0)
    (path / "config.json").write_text("kept")
    inode = path.stat().st_ino
    with pytest.warns(RustloadWarning, match=f"replaced one by one: .*{why}"):
        save(path, 1, **options)
    assert value_of(path) == 1
    assert path.stat().st_ino == inode
    assert (path / "config.json").read_text() == "kept"
    assert hidden(path) == hidden(path.parent) == []
    index = (path / "model.safetensors.index.json").read_text()
    shards = [name for name in names(path) if name.endswith(".safetensors")]
    assert shards == [f"model.generation2-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    assert all(shard in index for shard in shards)
    with pytest.warns(RustloadWarning, match="one by one"):
        save(path, 2)
    assert value_of(path) == 2
    assert "model.generation3-00001-of-00003.safetensors" in names(path)
    with pytest.warns(RustloadWarning, match="one by one"):
        save(path, 3, max_shard_size="1GB")
    assert value_of(path) == 3
    assert names(path) == ["config.json", "model.safetensors"]


@pytest.mark.filterwarnings("ignore:.*one by one")
@pytest.mark.parametrize("resume", [False, True])
def test_the_root_of_a_mount_is_a_target(resume, tmp_path):
    with mounted(tmp_path / "volume", "-t", "tmpfs", "none") as volume:
        replaced_one_by_one(volume, "nothing beside it can be moved to it", resume=resume)


@pytest.mark.filterwarnings("ignore:.*one by one")
def test_a_bind_mount_of_the_same_file_system_is_a_target(tmp_path):
    (tmp_path / "data").mkdir()
    with mounted(tmp_path / "bound", "--bind", str(tmp_path / "data")) as bound:
        replaced_one_by_one(bound, "nothing beside it can be moved to it")


@pytest.mark.filterwarnings("ignore:.*one by one")
def test_the_root_of_a_disk_is_a_target(tmp_path):
    with ext4(tmp_path) as disk:
        save(disk, 0)
        assert value_of(disk) == 0
        assert "lost+found" in names(disk)


def test_a_folder_of_a_lower_layer_is_a_target(tmp_path):
    """As in a container whose image has the folder: it cannot be renamed."""
    for name in ("lower/model", "upper", "work"):
        (tmp_path / name).mkdir(parents=True)
    save(tmp_path / "lower" / "model", 0)
    layers = f"lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    with mounted(tmp_path / "merged", "-t", "overlay", "overlay", "-o", layers) as merged:
        with pytest.warns(RustloadWarning, match="one by one"):
            save(merged / "model", 1)
        assert value_of(merged / "model") == 1
        assert hidden(merged) == []
    assert value_of(tmp_path / "lower" / "model") == 0


NO_EXCHANGE = """
import sys
from pathlib import Path
import folder_faults, test_folder_faults as test
folder_faults.refuse_exchange(int(sys.argv[2]))
test.replaced_one_by_one(Path(sys.argv[1]), "cannot exchange two folders")
"""


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSYS, errno.EPERM])
def test_a_file_system_without_exchange_is_written_file_by_file(error, tmp_path):
    torch_child(NO_EXCHANGE, tmp_path / "model", error)


OF_ANOTHER_USER = """
import sys, warnings, rustload, torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    rustload.save({"w": torch.ones(3)}, sys.argv[1], overwrite=True)
print(*[one.message for one in caught])
"""


@pytest.mark.parametrize("what", ["its files", "the folder", "its parent"])
def test_what_belongs_to_others_is_neither_linked_nor_moved(what, tmp_path):
    for parent in tmp_path.parents[:-1]:
        if not parent.stat().st_mode & 1:
            parent.chmod(parent.stat().st_mode | 0o111)
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("of root")
    if what == "its files":
        if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() != "1":
            pytest.skip("fs.protected_hardlinks is off")
        os.chown(path, NOBODY, NOBODY)
        os.chown(tmp_path, NOBODY, NOBODY)
    else:
        path.chmod(0o777)
        tmp_path.chmod(0o1777 if what == "the folder" else 0o755)
    before = path.stat()
    done = as_nobody(OF_ANOTHER_USER, str(path))
    assert done.returncode == 0, done.stderr
    assert "replaced one by one" in done.stdout
    assert path.stat().st_ino == before.st_ino
    assert (path / "config.json").stat().st_uid == 0
    assert names(path) == ["config.json", "model.safetensors"]
    assert names(tmp_path) == ["model"]


FAILS_TO_PUBLISH = """
import sys, rustload, errno, torch
import folder_faults
class Last(torch.Tensor):
    def detach(self):
        folder_faults.refuse_exchange(errno.EIO)  # after it has been tried
        return torch.full((250,), 7.0)
given = {"z": torch.zeros(250).as_subclass(Last), **rustload.open(sys.argv[1])}
del given["t2"]
try:
    rustload.save(given, sys.argv[2], overwrite=True, resume=True, max_shard_size=1000, threads=1)
except OSError as error:
    sys.exit(5 if error.errno == errno.EIO else 6)
"""


def test_a_failed_publication_goes_on_when_the_call_is_repeated(tmp_path):
    path = tmp_path / "model"
    source = tmp_path / "source"
    save(source, 7)
    save(path, 0)
    done = torch_child(FAILS_TO_PUBLISH, source, path, check=False)
    assert done.returncode == 5, done.stderr
    assert value_of(path) == 0
    given = {"z": torch.full((250,), 7.0), **rustload.open(source)}
    del given["t2"]
    (path / "config.json").write_text("made meanwhile")
    report = rustload.save(given, path, overwrite=True, resume=True, max_shard_size=1000)
    assert report.reused == 2000
    assert value_of(path) == 7
    assert (path / "config.json").read_text() == "made meanwhile"
    assert hidden(tmp_path) == []


@pytest.mark.parametrize("owner", [0, NOBODY])
def test_a_publication_that_another_user_has_noted_is_not_finished(owner, tmp_path):
    if os.geteuid():
        pytest.skip("only root can give a folder to another user")
    path, outer = tmp_path / "model", tmp_path / ".model.part"
    save(path, 0)
    (path / "config.json").write_text("kept")
    outer.mkdir()
    removed = ["config.json", (path / "config.json").stat().st_ino]
    steps = {"folder": None, "overwrite": True, "sync": False, "add": [], "remove": [removed]}
    (outer / "publish").write_text(json.dumps(steps) + "\n")
    os.chown(outer, owner, -1)
    save(path, 1)
    assert (path / "config.json").exists() == (owner == NOBODY)
    assert value_of(path) == 1
    assert names(tmp_path) == ["model"]


def test_what_a_killed_call_has_tried_out_is_in_no_ones_way(tmp_path):
    path = tmp_path / "model"
    save(path, 0)
    (tmp_path / ".model.resume" / "probe" / "one").mkdir(parents=True)
    save(path, 1, resume=True)
    assert value_of(path) == 1
    assert names(tmp_path) == ["model"]


class Held(torch.Tensor):
    """A tensor that a writer reads when it is told to."""

    events: ClassVar[tuple[Any, Any]]

    def detach(self) -> torch.Tensor:
        reached, go_on = self.events
        reached.set()
        go_on.wait()
        return torch.ones(3)


def test_of_two_writers_of_a_folder_one_is_refused(tmp_path):
    path, forks = tmp_path / "model", multiprocessing.get_context("fork")
    for number in range(3):
        Held.events = reached, go_on = forks.Event(), forks.Event()
        first = forks.Process(
            target=rustload.save,
            args=({"t": torch.ones(3).as_subclass(Held)}, path),
            kwargs={"overwrite": True},
        )
        first.start()
        assert reached.wait(60)
        for resume in (False, True):
            with pytest.raises(OSError, match="another writer") as caught:
                save(path, number, resume=resume)
            assert caught.value.code == "TargetBusy"
        go_on.set()
        first.join()
        assert first.exitcode == 0
        assert list(rustload.open(path)) == ["t"]
        assert hidden(tmp_path) == []


KILLS = int(os.environ.get("RUSTLOAD_KILLS", "24"))
"""How many processes a test kills; set it to some hundreds for a long run."""


def kill_savers(path: Path, saves: Callable[[int], object], seed: str, kills: int) -> None:
    """Kills children that save one value after another over the last one: the folder stays whole, with the files of others."""
    chance = random.Random(seed)
    (path / "config.json").write_text("of others")
    value = value_of(path)
    for number in range(kills):
        child = os.fork()
        if not child:
            with contextlib.suppress(BaseException):
                for later in itertools.count(value + 1):
                    saves(later)
            os._exit(1)
        time.sleep(chance.random() * 0.1)
        os.kill(child, signal.SIGKILL if number % 2 else signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0
        assert value_of(path) >= value
        value = value_of(path)
        assert (path / "config.json").read_text() == "of others"
    saves(value + 1)
    assert value_of(path) == value + 1
    assert hidden(path.parent) == hidden(path) == []
    assert (path / "config.json").read_text() == "of others"


@pytest.mark.filterwarnings("ignore:.*one by one")
@pytest.mark.parametrize("way", ["exchanges", "moves"])
def test_a_killed_call_leaves_the_old_folder_or_the_new_one(way, tmp_path):
    def saves(value: int) -> None:
        save(path, value, max_shard_size=1000 if value % 5 else "1GB")

    with contextlib.ExitStack() as stack:
        path = tmp_path / "model"
        if way == "moves":
            path = stack.enter_context(mounted(path, "-t", "tmpfs", "none"))
        saves(0)
        kill_savers(path, saves, way, KILLS)


def test_copied_files_are_those_of_the_folder(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    torch.save(tensors(1), source / "pytorch_model.bin")
    (source / "config.json").write_text("{}")
    (source / "same.json").symlink_to("config.json")
    rustload.convert(source, tmp_path / "one", copy_others=True)
    assert names(tmp_path / "one") == ["config.json", "model.safetensors", "same.json"]
    (tmp_path / "source-secret").write_text("not of the folder")
    inside, outside = source / "tokenizer", tmp_path / "elsewhere"
    for folder in (inside, outside):
        folder.mkdir()
        (folder / "vocab.json").write_text("{}")
    for leads_to, refused in [
        ("../source-secret", (ValueError, "outside of the folder")),
        ("../elsewhere", (ValueError, "outside of the folder")),
        ("tokenizer", (ValueError, "is a folder")),
        (".", (ValueError, "is a folder")),
        ("gone", (FileNotFoundError, "notes.txt")),
    ]:
        (source / "notes.txt").symlink_to(leads_to)
        with pytest.raises(refused[0], match=refused[1]):
            rustload.convert(source, tmp_path / "two", copy_others=True)
        assert not (tmp_path / "two").exists()
        (source / "notes.txt").unlink()
    # What is left out may lead anywhere.
    for name in (".cache", "latest", "optimizer.bin"):
        (source / name).symlink_to("gone")
    report = rustload.convert(source, tmp_path / "two", copy_others=True)
    assert sorted(report.files) == ["config.json", "model.safetensors", "same.json", "tokenizer/vocab.json"]
    assert report.not_copied == ("optimizer.bin",)


@pytest.mark.parametrize("name", ["config.json", "tokenizer"])
def test_what_cannot_be_read_is_not_left_out(tmp_path, name):
    source = tmp_path / "source"
    (source / "tokenizer").mkdir(parents=True)
    torch.save(tensors(1), source / "pytorch_model.bin")
    (source / "config.json").write_text("{}")
    (source / name).chmod(0)
    # Also root may not read it then.
    rights = "-dac_override,-dac_read_search"
    command = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"] if os.geteuid() == 0 else []
    command += [
        sys.executable,
        "-m",
        "rustload",
        "convert",
        str(source),
        str(tmp_path / "out"),
        "--copy-others",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode in (126, 127):  # of setpriv
        pytest.skip("root keeps its rights here")
    assert done.returncode == 3, done.stderr
    assert f"{source / name}: permission denied" in done.stderr
    assert "write to" not in done.stderr
    assert not (tmp_path / "out").exists()


READS = """
import sys, rustload, torch
from pathlib import Path
from rustload.errors import RustloadError
opened = mixes = 0
print("ready", flush=True)
while not Path(sys.argv[2]).exists():
    try:
        ckpt = rustload.open(sys.argv[1])
    except (RustloadError, OSError):
        continue
    opened += 1
    mixes += len({float(ckpt[name].torch()[0]) for name in ckpt}) != 1
print(opened, mixes)
"""


@pytest.mark.filterwarnings("ignore:.*one by one")
@pytest.mark.parametrize("way", ["exchanges", "moves"])
def test_a_reader_sees_the_old_files_or_the_new_ones_and_never_a_mix(way, tmp_path):
    def saves(path: Path) -> None:
        for value in range(30):
            rustload.save(tensors(value, 60), path, max_shard_size=1000, **OVERWRITE)
            time.sleep(0.03)

    def reads_while_saved(path: Path) -> None:
        rustload.save(tensors(0, 60), path, max_shard_size=1000, **OVERWRITE)
        command = [sys.executable, "-c", READS, str(path), str(tmp_path / "end")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            saves(path)
            (tmp_path / "end").touch()
            opened, mixes = map(int, reader.communicate()[0].split())
        assert opened > 10
        assert mixes == 0

    if way == "exchanges":
        reads_while_saved(tmp_path / "model")
    else:
        with mounted(tmp_path / "volume", "-t", "tmpfs", "none") as volume:
            reads_while_saved(volume)
