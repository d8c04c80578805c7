"""Cases that take more than one input file: truncation, bit flips, files that change, signals, threads, forks, out of memory."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from attacks.n_numpy import npy
from attacks.pickles import SIX, named, pickle, tensor
from attacks.streams import info, legacy, safetensors
from attacks.zips import Zip, around
from support import child

import rustload

SMALL = {
    "zip": Zip().bytes(),
    "deflated": Zip().spoil("data.pkl", method=8).bytes(),
    "legacy": legacy(),
    "safetensors": safetensors({"w": info("F32", [2, 3], 0, 24)}, SIX),
    "pickle": pickle(named({"a": b"](K\1K\2e"}), protocol=4),
    "npy": npy(),
}


def read_everything(data: bytes) -> None:
    ckpt = rustload.open(bytearray(data), framework="dlpack")
    ckpt.notes, ckpt.tied, ckpt.opaque, ckpt.globals, ckpt.objects  # noqa: B018 - evaluated on purpose
    for lazy in ckpt.values():
        if lazy.nbytes < 1 << 20:
            assert len(lazy.materialize(copy=True).tobytes()) == lazy.nbytes


# A17, A18.


@pytest.mark.parametrize("name", SMALL)
def test_a17_a_file_truncated_at_any_byte_is_an_error(name):
    data = SMALL[name]
    read_everything(data)
    for end in range(len(data)):
        with pytest.raises(rustload.RustloadError) as caught:
            read_everything(data[:end])
        assert not isinstance(caught.value, rustload.InternalError), end


@pytest.mark.parametrize("name", SMALL)
def test_a17_a_flipped_bit_is_never_an_internal_error(name):
    data = SMALL[name]
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        try:
            read_everything(bytes(flipped))
        except rustload.InternalError as error:
            pytest.fail(f"bit {at}: {error}")
        except (rustload.RustloadError, MemoryError):
            pass


def numbers(count: int) -> bytes:
    return np.arange(count, dtype=np.float32).tobytes()


def big(folder: Path, name: str = "m.pt", count: int = 1 << 20) -> Path:
    """A file of one tensor of many pages, in the container that the name's suffix selects."""
    path = folder / name
    if name.endswith(".safetensors"):
        data = safetensors({"w": info("F32", [count], 0, 4 * count)}, numbers(count))
    else:
        torch.save({"w": torch.arange(count, dtype=torch.float32)}, path)
        return path
    path.write_bytes(data)
    return path


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def rewrite(path: Path) -> None:
    """Other bytes of the same length."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 64)
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))


@pytest.mark.parametrize("change", [shrink, grow, rewrite], ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
@pytest.mark.parametrize("asked", [{"copy": True}, {"dtype": "float16"}, {"copy": False}, {}], ids=str)
def test_a18_a_file_that_changed_is_file_changed(tmp_path, change, name, asked):
    path = big(tmp_path, name, 1 << 12)
    lazy = rustload.open(path, framework="numpy")["w"]
    change(path)
    with pytest.raises(rustload.FormatError) as caught:
        lazy.materialize(**asked)
    assert caught.value.code == "FileChanged"
    assert "again" in caught.value.__notes__[0]


def test_a18_a_file_replaced_by_rename_is_read_as_it_was_opened(tmp_path):
    path = big(tmp_path, count=1 << 12)
    lazy = rustload.open(path, framework="numpy")["w"]
    other = tmp_path / "other.pt"
    other.write_bytes(Zip().bytes())
    other.replace(path)
    assert lazy.materialize(copy=True).tobytes() == numbers(1 << 12)
    assert rustload.open(path)["w"].shape == (2, 3)


def test_a18_a_file_truncated_during_a_read_is_an_error_and_not_sigbus(tmp_path):
    code = """
    import os, sys, threading
    import rustload
    path = sys.argv[1]
    size = os.path.getsize(path)
    lazy = rustload.open(path, framework="numpy")["w"]
    done = []
    def cut():
        while not done:
            os.truncate(path, 4096)
            os.truncate(path, size)
    thread = threading.Thread(target=cut)
    thread.start()
    codes = set()
    for _ in range(200):
        try:
            lazy.materialize(dtype="float16")
        except rustload.FormatError as error:
            codes.add(error.code)
    done.append(1)
    thread.join()
    print(sorted(codes))
    """
    assert child(code, big(tmp_path)).stdout == "['FileChanged']\n"


# The boundary to Python.


def test_y02_a_failed_allocation_is_memory_error(tmp_path):
    """RLIMIT_AS bounds the address space, so that the allocation itself fails."""
    huge = tmp_path / "huge.pt"
    huge.write_bytes(around(named({"w": tensor((1 << 32,), (0,))})))
    code = """
    import resource, sys
    import rustload
    sys.modules["numpy"] = None
    from pathlib import Path
    size = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20),) * 2)
    limits = rustload.Limits(materialize_bytes=1 << 60, available_memory=None)
    lazy = rustload.open(sys.argv[1], framework="dlpack", limits=limits)["w"]
    try:
        lazy.materialize(copy=True)
    except MemoryError as error:
        print(error.code)
    """
    assert child(code, huge).stdout == "Memory\n"


@pytest.mark.parametrize("signum", [signal.SIGINT])
def test_y03_ctrl_c_interrupts_the_opening_of_a_file(tmp_path, signum):
    path = tmp_path / "long.pt"
    path.write_bytes(around(b"](" + b"(K\1K\2t" * 8_000_000 + b"e"))
    code = """
    import os, signal, sys, threading, time
    import rustload
    sent = None
    def send():
        global sent
        sent = time.perf_counter()
        os.kill(os.getpid(), int(sys.argv[2]))
    threading.Timer(0.15, send).start()
    try:
        rustload.open(sys.argv[1])
        print("opened")
    except KeyboardInterrupt:
        print(time.perf_counter() - sent)
    """
    output = child(code, path, int(signum)).stdout.strip()
    assert output != "opened", "the file is too small to be interrupted"
    assert float(output) < 1.0


@pytest.mark.parametrize("framework", ["torch", "numpy", "dlpack"])
def test_y04_views_outlive_their_checkpoint(tmp_path, framework):
    path = big(tmp_path, count=1 << 12)
    ckpt = rustload.open(path, framework=framework)
    view = ckpt["w"].materialize(copy=False)
    ckpt.close()
    del ckpt
    path.unlink()
    gc.collect()
    array = np.from_dlpack(view) if framework == "dlpack" else np.asarray(view)
    assert array.tobytes() == numbers(1 << 12)


@pytest.mark.parametrize("name", ["m.pt", "m.safetensors"])
def test_y05_threads_share_a_file(tmp_path, name):
    """Eight threads read one shared checkpoint, and each reads its own checkpoint on the same file."""
    path = big(tmp_path, name)
    shared, right, wrong = rustload.open(path, framework="numpy"), numbers(1 << 20), []
    with np.errstate(over="ignore"):
        half = np.frombuffer(right, np.float32).astype(np.float16).tobytes()

    def work(number: int) -> None:
        for ckpt in (shared, rustload.open(path, framework="numpy")):
            for asked, expected in (
                ({"copy": True}, right),
                ({"copy": False}, right),
                ({"dtype": "float16"}, half),
            ):
                if ckpt["w"].materialize(**asked).tobytes() != expected:
                    wrong.append((number, asked))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_y05_two_checkpoints_on_one_file_share_no_edits(tmp_path):
    path = big(tmp_path, count=1 << 12)
    views = (
        rustload.open(path)["w"].materialize(framework="numpy", copy=False, writable=True) for _ in range(2)
    )
    first, second = views
    first[:] = -1
    assert second.tobytes() == numbers(1 << 12)
    assert rustload.open(path, framework="numpy")["w"].materialize(copy=True).tobytes() == numbers(1 << 12)


def test_y06_a_forked_child_reads_the_same(tmp_path):
    """Forked while threads of the parent read: no lock stays held in the child."""
    code = """
    import os, sys, threading, warnings
    import rustload
    warnings.simplefilter("ignore")  # about forking with threads, which is what is tested
    ckpt = rustload.open(sys.argv[1], framework="dlpack")
    expected = ckpt["w"].materialize(dtype="float16").tobytes()
    done = []
    def work():
        while not done:
            ckpt["w"].materialize(dtype="float16")
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = []
    for _ in range(5):
        pid = os.fork()
        if pid == 0:
            same = ckpt["w"].materialize(dtype="float16").tobytes() == expected
            fresh = rustload.open(sys.argv[1], framework="dlpack")["w"].materialize(dtype="float16").tobytes() == expected
            os._exit(0 if same and fresh else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    done.append(1)
    for thread in threads:
        thread.join()
    print(codes)
    """
    assert child(code, big(tmp_path)).stdout == "[0, 0, 0, 0, 0]\n"


class BytesPath:
    """A path object whose path is bytes."""

    def __init__(self, path: bytes) -> None:
        self.path = path

    def __fspath__(self) -> bytes:
        return self.path


def test_y08_bytes_are_content_and_a_path_object_may_hold_bytes(tmp_path):
    path = tmp_path / "caf\u00e9.pt"
    path.write_bytes(Zip().bytes())
    odd = os.fsencode(tmp_path) + b"/odd\xff.pt"
    Path(os.fsdecode(odd)).write_bytes(Zip().bytes())
    for given in (BytesPath(os.fsencode(path)), BytesPath(odd), os.fsdecode(odd), [BytesPath(odd)]):
        assert list(rustload.open(given)) == ["w"]
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(os.fsencode(path))
    assert caught.value.code == "UnknownFormat"
    assert "os.fsdecode(path)" in caught.value.__notes__[-1]
    with pytest.raises(TypeError, match="an element of type bytes") as wrong:
        rustload.open([os.fsencode(path)])
    assert "os.fsdecode(path)" in wrong.value.__notes__[-1]
    # No length or byte makes a difference: a whole pickle of a few bytes is content too.
    assert rustload.open(b"\x80\2K\1K\2\x86.").objects == (1, 2)


def test_y09_a_truncated_file_is_sigbus_for_a_view_and_an_error_for_an_owned_read(tmp_path):
    """As SECURITY.md says: no library can turn a page fault in a user's array into an error."""
    code = """
    import os, sys
    import rustload
    lazy = rustload.open(sys.argv[1], framework="dlpack")["w"]
    view = memoryview(lazy.materialize(copy=False))
    os.truncate(sys.argv[1], 4096)
    try:
        lazy.materialize(copy=True)
    except rustload.FormatError as error:
        print(error.code, flush=True)
    print(view[(1 << 20) - 1])
    """
    done = child(code, big(tmp_path), check=False)
    assert done.stdout == "FileChanged\n"
    assert done.returncode == -signal.SIGBUS


def test_an_edited_view_changes_and_creates_no_file(tmp_path):
    path = big(tmp_path, count=1 << 12)
    before = path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir())
    view = rustload.open(path, framework="numpy")["w"].materialize(copy=False, writable=True)
    view[:] = 7
    del view
    assert (path.read_bytes(), path.stat().st_mtime_ns, sorted(tmp_path.iterdir())) == before


def test_the_payload_executes_in_pythons_unpickler(tmp_path):
    """The control: without it, an untouched canary folder would prove nothing."""
    from attacks.pickles import SYSTEM

    (tmp_path / "p.pkl").write_bytes(pickle(SYSTEM))
    code = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    subprocess.run(
        [sys.executable, "-c", code, tmp_path / "p.pkl"],
        env={**os.environ, "RUSTLOAD_CANARY": str(tmp_path)},
        check=True,
    )
    assert (tmp_path / "null").exists()
