"""Cases that take more than one input file: truncation, bit flips, files that change, signals, threads, forks, out of memory."""

import os
import signal
from pathlib import Path

import pytest
import torch
from attacks.n_numpy import npy
from attacks.pickles import SIX, named, pickle, tensor
from attacks.streams import info, legacy, safetensors
from attacks.zips import Zip, around
from support import child, coded

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


def big(folder: Path) -> Path:
    """A file of one tensor of many pages."""
    torch.save({"w": torch.arange(1 << 20, dtype=torch.float32)}, folder / "m.pt")
    return folder / "m.pt"


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
    for attempt in range(300):
        try:
            lazy.materialize(**({"copy": True} if attempt % 3 else {"dtype": "float16"}))
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
    with coded(rustload.FormatError, "UnknownFormat") as caught:
        rustload.open(os.fsencode(path))
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


def test_the_payload_executes_in_pythons_unpickler(tmp_path):
    """The control: without it, an untouched canary folder would prove nothing."""
    from attacks.pickles import SYSTEM

    (tmp_path / "p.pkl").write_bytes(pickle(SYSTEM))
    code = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    child(code, tmp_path / "p.pkl", env={"RUSTLOAD_CANARY": str(tmp_path)})
    assert (tmp_path / "null").exists()
