"""Nothing that a file names is imported, called or instantiated; and Ctrl-C stops long work."""

import contextlib
import os
import struct
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from support import Reduced, child, saved, sparse, torch_zip

import rustload


def short(text: str) -> bytes:
    """pickletools: SHORT_BINUNICODE"""
    return b"\x8c" + bytes([len(text)]) + text.encode()


def payloads(canary: str) -> dict[str, bytes]:
    """Pickles that create the canary file when Python loads them, each by a different opcode."""
    command = short(f"touch {canary}")
    make = b"(" + short(canary)
    return {
        "reduce": b"\x80\x02cposix\nsystem\n" + command + b"\x85R.",
        "inst": b"\x80\x02(" + command + b"iposix\nsystem\n.",
        "obj": b"\x80\x02(cposix\nsystem\n" + command + b"o.",
        "newobj": b"\x80\x02c_io\nFileIO\n" + make + short("w") + b"t\x81.",
        "newobj_ex": b"\x80\x04c_io\nFileIO\n" + short(canary) + b"\x85}" + short("mode") + short("w") + b"s\x92.",
        "stack_global": b"\x80\x04" + short("posix") + short("system") + b"\x93" + command + b"\x85R.",
        "discarded": b"\x80\x02cposix\nsystem\n" + command + b"\x85R0}.",
        "in_a_dict_key": b"\x80\x02}cposix\nsystem\n" + command + b"\x85RK\x01s.",
        "from_the_memo": b"\x80\x02cposix\nsystem\nq\x000h\x00" + command + b"\x85R.",
        "open": b"\x80\x02cio\nopen\n" + make + short("w") + b"tR.",
        "eval": b"\x80\x02cbuiltins\neval\n" + short(f"open({canary!r}, 'w')") + b"\x85R.",
        "getattr": b"\x80\x02cbuiltins\ngetattr\ncposix\nsystem\n" + short("__call__") + b"\x86R" + command + b"\x85R.",
        "build": b"\x80\x02ccanary_module\nThing\n)\x81}" + short("path") + command + b"sb.",
        "type_v2": b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cposix\nsystem\nctorch\nTensor\n(" + command + b"t}tR.",
        "load_from_bytes": b"\x80\x02ctorch.storage\n_load_from_bytes\n"
         b"B" + struct.pack("<I", 5) + b"\x80\x02N.." + b"\x85R.",
    }  # fmt: skip


NAMES = list(payloads("x"))


@pytest.fixture
def canary(tmp_path, monkeypatch):
    """A file that exists only if a payload was executed; and a module that records its import."""
    (tmp_path / "canary_module.py").write_text(
        "import builtins\nbuiltins.canary_was_imported = True\n\n\nclass Thing:\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "canary"


def read_everything(ckpt) -> None:
    """Reads every attribute and tensor."""
    repr(ckpt), repr(ckpt.objects), ckpt.opaque, ckpt.globals, ckpt.tied, ckpt.notes
    for lazy in ckpt.values():
        repr(lazy), lazy.path, lazy.materialize(framework="numpy")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("unknown", ["keep", "error"])
def test_no_opcode_executes_a_payload(canary, name, unknown):
    import builtins

    before = set(sys.modules)
    data = torch_zip(payloads(str(canary))[name])
    if unknown == "error":
        with pytest.raises(rustload.DisallowedError):
            rustload.open(data, unknown="error")
    else:
        read_everything(rustload.open(data))
    assert not canary.exists()
    assert not hasattr(builtins, "canary_was_imported")
    assert not {
        module for module in set(sys.modules) - before if not module.startswith(("rustload", "encodings"))
    }


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # files that the payloads leave open
def test_the_payloads_execute_in_pythons_unpickler(canary):
    """The control: without it, the tests above would prove nothing."""
    import pickle

    for name in ("reduce", "inst", "obj", "stack_global", "discarded", "open", "eval"):
        pickle.loads(payloads(str(canary))[name])
        assert canary.exists(), name
        canary.unlink()


def test_tensors_beside_a_payload_are_read(canary):
    call = Reduced(os.system, (f"touch {canary}",))
    ckpt = rustload.open(
        saved({"w": torch.arange(3), "evil": call, "after": torch.ones(2)}), framework="torch"
    )
    assert list(ckpt) == ["w", "after"]
    assert ckpt["w"].materialize().tolist() == [0, 1, 2]
    evil = ckpt.objects["evil"]
    assert isinstance(evil, rustload.Opaque)
    assert evil.class_name == "posix.system"
    assert evil.args == (f"touch {canary}",)
    assert "posix.system" in ckpt.globals
    assert not canary.exists()


def test_audit_hooks_see_no_import_call_or_unpickling_during_a_read(canary, tmp_path):
    """In a process of its own, as audit hooks cannot be removed."""
    for name, pickled in payloads(str(canary)).items():
        (tmp_path / f"{name}.bin").write_bytes(torch_zip(pickled))
    code = """
    import sys
    import rustload, rustload._checkpoint.opaque_class, rustload._tensor.inert, rustload._frameworks.dlpack, collections
    seen = []
    watched = {"import", "exec", "compile", "os.system", "subprocess.Popen", "pickle.find_class", "os.exec", "os.posix_spawn",
               "ctypes.dlopen", "socket.connect", "open", "code.__new__"}
    on = False
    def hook(event, args):
        if on and event in watched:
            seen.append((event, str(args)[:100]))
    sys.addaudithook(hook)
    for path in sys.argv[1:]:
        on = True
        try:
            ckpt = rustload.open(path, framework="dlpack")
            ckpt.objects, ckpt.opaque, ckpt.globals, ckpt.tied, repr(ckpt), repr(ckpt.objects)
            for lazy in ckpt.values():
                lazy.materialize()
        except rustload.RustloadError:
            pass
        on = False
    print(seen)
    """
    assert child(code, *sorted(tmp_path.glob("*.bin"))).stdout == "[]\n"
    assert not canary.exists()


def test_a_lookup_in_a_dict_of_the_file_executes_no_code_of_the_file():
    """Opaque values as keys are compared by identity, never by what the file says."""
    data = torch_zip(b"\x80\x02}cevil\nKey\n)\x81K\x01scevil\nKey\n)\x81K\x02s.")
    tree = rustload.open(data).objects
    assert sorted(tree.values()) == [1, 2]
    assert all(isinstance(key, rustload.Opaque) for key in tree)


@pytest.mark.parametrize("name", ["__class__", "__dict__", "__reduce__", "_metadata", "items", "keys"])
def test_state_of_an_ordered_dict_never_shadows_its_methods(name):
    data = torch_zip(b"\x80\x02ccollections\nOrderedDict\n)R}" + short(name) + short("shadow") + b"sb.")
    tree = rustload.open(data).objects
    assert dict.keys(tree) == set()
    assert tree.items is not None
    assert callable(tree.items)
    assert callable(tree.keys)
    assert type(tree).__name__ == "OrderedDict"


@pytest.mark.parametrize("pickled", [
    b"\x80\x02cbuiltins\nbytearray\n\x8a\x08\0\0\0\0\0\1\0\0\x85R.",
    b"\x80\x02ctorch\nFloatTensor\n\x8a\x05\0\0\0\0\1\x85R.",
    b"\x80\x02ccollections\nCounter\n" + short("abc") + b"\x85R.",
    b"\x80\x02cbuiltins\nrange\n\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85R.",
    b"\x80\x02cbuiltins\nlist\ncbuiltins\nrange\nJ\xff\xff\xff\x7f\x85R\x85R.",
])  # fmt: skip
def test_allocation_gadgets_allocate_nothing(pickled):
    from support import rss_anon

    before = rss_anon()
    with contextlib.suppress(rustload.RustloadError):
        repr(rustload.open(torch_zip(pickled)).objects)
    assert rss_anon() - before < 8 << 20


INTERRUPT = """
import os, signal, sys, threading, time
import rustload
ckpt = rustload.open(sys.argv[1], framework="dlpack")
(lazy,) = ckpt.values()
sent = None
def send():
    global sent
    sent = time.perf_counter()
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer({delay}, send).start()
try:
    {work}
    print("finished")
except KeyboardInterrupt:
    print(time.perf_counter() - sent)
{after}
"""


def assert_ctrl_c_stops(work: str, path: Path, delay: float, after: str = "") -> None:
    """Within 250 ms."""
    out = child(INTERRUPT.format(work=work, delay=delay, after=after), path).stdout.strip()
    assert out != "finished"
    assert float(out) < 0.25


@pytest.mark.parametrize("how", ["dtype='float8_e5m2'", "copy=True", "dtype='float8_e5m2', threads=1"])
def test_ctrl_c_stops_a_long_materialize_within_250_ms(tmp_path, how):
    path = sparse(tmp_path / "x.safetensors", {"x": ("F32", [3 << 30])})
    after = "assert lazy[:1000].materialize(copy=True).shape == (1000,)"
    assert_ctrl_c_stops(f"lazy.materialize({how})", path, 0.25, after)


def bools(path: Path) -> None:
    """A sparse file of 12 GiB of bools."""
    sparse(path, {"x": ("BOOL", [12 << 30])})


def deflated(path: Path) -> None:
    """A tensor of ten bytes in a deflated storage of a GiB."""
    nbytes = 1 << 30
    storage = (
        b"(\x8c\x07storagectorch\nByteStorage\n\x8c\x010\x8c\x03cpuJ" + struct.pack("<i", nbytes) + b"tQ"
    )
    view = b"K\x00K\x0a\x85K\x01\x85\x89ccollections\nOrderedDict\n)R"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr(
            "x/data.pkl", b"\x80\x04ctorch._utils\n_rebuild_tensor_v2\n(" + storage + view + b"tR."
        )
        archive.writestr("x/version", b"3\n")
        with archive.open("x/data/0", "w") as member:
            for _ in range(64):
                member.write(bytes(nbytes // 64))


WHOLE, FEW, STREAM = "lazy.materialize()", "lazy[:: 4 << 30].materialize()", "list(ckpt.stream())"


@pytest.mark.parametrize(
    ("make", "work"),
    [(bools, WHOLE), (bools, FEW), (bools, STREAM), (deflated, WHOLE), (deflated, STREAM)],
)
def test_ctrl_c_stops_checking_bools_and_inflating_within_250_ms(tmp_path, make, work):
    make(tmp_path / "x")
    assert_ctrl_c_stops(work, tmp_path / "x", 0.1)


def test_one_thread_does_all_the_work_if_no_other_can_start(tmp_path):
    """The system has no memory for the stack of another thread (RUST_MIN_STACK)."""
    path = tmp_path / "large.pt"
    torch.save({"w": torch.arange(12 << 20, dtype=torch.float32)}, path)
    code = """
    import sys, rustload
    ckpt = rustload.open(sys.argv[1], framework="dlpack")
    part = ckpt["w"].materialize(dtype="float16", copy=True)
    print(ckpt["w"].nbytes, part.shape, rustload.scan(sys.argv[1]).verdict)
    """
    done = child(code, path, env={"RUST_MIN_STACK": str(1 << 46)})
    assert done.stdout == f"{48 << 20} ({12 << 20},) inert\n"


def test_another_signal_does_not_stop_a_materialize(tmp_path):
    code = """
    import os, signal, sys, threading
    import rustload
    seen = []
    signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    lazy = rustload.open(sys.argv[1], framework="dlpack")["x"]
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    found = lazy.materialize(dtype="float8_e5m2")
    print(found.nbytes, seen)
    """
    path = sparse(tmp_path / "x.safetensors", {"x": ("F32", [1 << 28])})
    assert child(code, path).stdout.strip() == f"{1 << 28} [1]"


def test_a_conjugate_is_resolved_block_by_block(tmp_path):
    """The peak is the result and a window: signs are flipped in each block and not in a copy of the tensor."""
    path = tmp_path / "m.pt"
    torch.save({"w": torch.zeros(16 << 20, dtype=torch.complex64).conj()}, path)
    code = """
    import sys
    import rustload
    from process_memory import status  # not ru_maxrss, which counts the parent's memory too
    lazy = rustload.open(sys.argv[1], framework="numpy")["w"]
    before = status("VmHWM")
    found = lazy.materialize(dtype="float16", allow_lossy=True)
    print(status("VmHWM") - before >> 20, found.nbytes >> 20)
    """
    peak, result = map(int, child(code, path).stdout.split())
    assert result == 32
    assert peak < 64
