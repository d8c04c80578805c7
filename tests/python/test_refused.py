"""What the system refuses, and work that goes on without it: threads, mappings of files, file descriptors."""

import platform
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import child, torch_child, write_shards

import rustload

CALLS = """
import sys
from pathlib import Path
import torch
import rustload, rustload.torch

folder = Path(sys.argv[1])
safetensors, archive, deflated, target = (folder / name for name in ("m.safetensors", "m.pt", "m.npz", "out.safetensors"))
expected = torch.load(archive, weights_only=True, mmap=False)

def opened(path=safetensors, framework="torch"):
    return rustload.open(path, framework=framework)

def loaded_into(**options):
    model = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros_like(one)) for name, one in expected.items()})
    rustload.torch.load_into(model, safetensors, **options)
    return {name: one.data for name, one in model.items()}

def converted(source, target, **options):
    rustload.convert(source, target, overwrite=True, **options)
    return dict(opened(target).materialize(copy=True))

def some():
    stream = opened().stream(copy=True)
    names = {name for name, _ in zip(range(2), stream)}
    stream.close()
    return len(names) == 2

STATES = {
    "materialize": lambda: opened().materialize(),
    "materialize, copied": lambda: opened().materialize(copy=True),
    "materialize, archive": lambda: opened(archive).materialize(),
    "stream": lambda: dict(opened().stream()),
    "stream, copied": lambda: dict(opened().stream(copy=True)),
    "stream, in a small window": lambda: dict(opened().stream(copy=True, memory="12MiB")),
    "stream, archive": lambda: dict(opened(archive).stream()),
    "torch.load": lambda: rustload.torch.load(archive),
    "safe_open": lambda: rustload.torch.load(safetensors),
    "load_into": loaded_into,
    "load_into, assigned": lambda: loaded_into(assign=True),
    "convert": lambda: converted(archive, target),
    "convert, verified": lambda: converted(archive, target, verify=True),
    "convert, in shards": lambda: converted(archive, folder / "out", max_shard_size="10MB"),
}
OTHERS = {
    "tensor": lambda: torch.equal(opened()["w0"].materialize(copy=True), expected["w0"]),
    "fingerprint": lambda: opened().fingerprint(data=True) == opened(archive).fingerprint(data=True),
    "stats": lambda: bool(opened().stats()),
    "diff": lambda: rustload.diff(safetensors, archive, data=True).same,
    "scan": lambda: rustload.scan(archive).verdict == "inert",
    "npz": lambda: len(opened(deflated, "numpy").materialize()) == 2,
    "a part of a stream": some,
}

def failures():
    found = {}
    for name, call in [*STATES.items(), *OTHERS.items()]:
        try:
            result = call()
            if name in STATES:
                assert result.keys() == expected.keys()
                result = all(torch.equal(result[key], one) for key, one in expected.items())
            assert result, "another result"
        except BaseException as error:
            found[name] = repr(error)
    return found

"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    generator = torch.Generator().manual_seed(7)
    tensors = {f"w{number}": torch.randn(1024, 1024, generator=generator) for number in range(10)}
    save_file(tensors, made / "m.safetensors")
    torch.save(tensors, made / "m.pt")
    np.savez_compressed(made / "m.npz", **{name: tensors[name].numpy() for name in ("w0", "w1")})
    return made


def test_without_threads_the_caller_does_the_work(folder):
    """The system has no memory for the stack of another thread: of Rust, or of Python."""
    code = CALLS + "import threading; threading.stack_size(1 << 46)\nprint(failures())"
    done = child(code, folder, env={"RUST_MIN_STACK": str(1 << 46)})
    assert done.stdout == "{}\n"


def test_an_error_in_a_stream_without_threads_comes_after_what_is_before_it(folder, tmp_path):
    content = bytearray((folder / "m.safetensors").read_bytes())
    (tmp_path / "m.safetensors").write_bytes(content)
    code = """
    import os, sys
    import rustload
    stream = iter(rustload.open(sys.argv[1], framework="torch").stream(copy=True, memory="12MiB"))
    names = [next(stream)[0]]
    os.truncate(sys.argv[1], 30 << 20)
    try:
        names += [name for name, _ in stream]
    except rustload.FormatError as error:
        print(len(names), error.code, list(stream))
    """
    done = child(code, tmp_path / "m.safetensors", env={"RUST_MIN_STACK": str(1 << 46)})
    count, code, rest = done.stdout.split()
    assert (code, rest) == ("FileChanged", "[]")
    assert 1 <= int(count) <= 7


NO_MAPPINGS = '''
import ctypes, errno, struct

def refuse_mappings_of_files():
    """From now on, mmap of a file fails with ENODEV, as on a file system without mappings."""
    number, descriptor = 0, 16 + 8 * 4  # of `struct seccomp_data`
    load, equal, end, allow, refuse = 0x20, 0x15, 0x06, 0x7FFF0000, 0x00050000 | errno.ENODEV
    program = b"".join(struct.pack("HBBI", *one) for one in [
        (load, 0, 0, number), (equal, 0, 3, 9), (load, 0, 0, descriptor), (equal, 1, 0, 0xFFFFFFFF),
        (end, 0, 0, refuse), (end, 0, 0, allow),
    ])
    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("program", ctypes.c_char_p)]
    libc = ctypes.CDLL(None, use_errno=True)
    made = Filter(len(program) // 8, program)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(made), 0, 0) == 0, ctypes.get_errno()
'''


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter has numbers of x86-64")
def test_without_mappings_results_are_copied(folder):
    # First with mappings: the calls import modules, and libraries of those are mapped.
    code = (
        CALLS
        + NO_MAPPINGS
        + """
assert not failures()
refuse_mappings_of_files()
print(failures())
for call in (lambda: opened()["w0"].materialize(copy=False), lambda: opened().materialize(copy=False)):
    try:
        call()
    except BufferError as error:
        print(error)
"""
    )
    lines = torch_child(code, folder).stdout.splitlines()
    assert lines[0] == "{}"
    assert len(lines) == 3
    assert all("does not map the file" in line and "No such device" in line for line in lines[1:])


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A hundred shards."""
    parts = [{f"x{number}": torch.full((3000,), float(number))} for number in range(100)]
    return write_shards(tmp_path / "shards", parts)


@pytest.mark.parametrize("io", ["auto", "direct"])
@pytest.mark.parametrize("limit", [48, 128])
def test_more_shards_than_descriptors(shards, tmp_path, limit, io):
    code = """
    import os, resource, sys
    from pathlib import Path
    import torch
    import rustload, rustload.torch
    source, folder, limit, io = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    rustload.convert(source, folder / "first.safetensors", verify=True)  # imports what it needs
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    most = 0
    def right(state):
        global most
        most = max(most, len(os.listdir("/proc/self/fd")))
        assert len(state) == 100
        return all(bool((state[f"x{n}"] == n).all()) for n in range(100))
    ckpt = rustload.open(source, framework="torch", io=io)
    assert right(ckpt.materialize(copy=True))
    assert right(ckpt.materialize())
    assert right(dict(ckpt.stream(copy=True)))
    assert all(ckpt[f"x{n}"][n].item() == n for n in range(100))
    others = [rustload.open(source, framework="torch", io=io) for _ in range(5)]
    assert all(right(other.materialize(copy=True)) for other in others)
    for verify in (False, True):
        rustload.convert(source, folder / "one.safetensors", overwrite=True, verify=verify)
        assert right(rustload.open(folder / "one.safetensors", framework="torch").materialize())
        rustload.convert(source, folder / "many", overwrite=True, verify=verify, max_shard_size="13KB")
        assert len(list((folder / "many").glob("*.safetensors"))) == 100
        assert right(rustload.open(folder / "many", framework="torch").materialize())
    assert rustload.diff(source, folder / "many", data=True).same
    assert rustload.scan(source).verdict == "inert"
    with rustload.safe_open(folder / "one.safetensors", "pt") as file:
        assert file.get_tensor("x7")[0] == 7
    del ckpt, others
    left = len(os.listdir("/proc/self/fd"))
    print(most <= limit // 2 + 12, left)
    """
    done = torch_child(code, shards, tmp_path, limit, io)
    most_is_bounded, left = done.stdout.split()
    assert most_is_bounded == "True"
    assert int(left) < 16


def test_a_file_that_is_opened_again_is_the_same_one(shards, tmp_path):
    code = """
    import os, resource, shutil, sys
    from pathlib import Path
    import rustload
    shards = sorted(Path(sys.argv[1]).glob("*.safetensors"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
    os.chdir(sys.argv[1])
    ckpt = rustload.open(".", framework="torch")
    os.chdir("/")
    # The first files were closed: one is replaced by a copy, with the same times, and one is removed.
    shutil.copy2(shards[0], sys.argv[2])
    os.replace(sys.argv[2], shards[0])
    shards[1].unlink()
    for name in ("x0", "x1", "x2", "x99"):
        try:
            print(ckpt[name].materialize(copy=True)[0].item())
        except (rustload.FormatError, FileNotFoundError) as error:
            print(type(error).__name__, error.code)
    """
    done = torch_child(code, shards, tmp_path / "copy")
    assert done.stdout.splitlines() == ["FormatError FileChanged", "FileNotFoundError Io", "2.0", "99.0"]


def test_files_within_the_limit_stay_open(shards):
    """So that what is written over their names does not matter."""
    checkpoint = rustload.open(shards, framework="torch")
    for path in shards.glob("*.safetensors"):
        other = path.with_suffix(".tmp")
        save_file({"other": torch.zeros(5)}, other)
        other.replace(path)
    assert all(checkpoint[f"x{n}"].materialize(copy=True)[0] == n for n in range(100))
    assert load_file(shards / "model-00001-of-00100.safetensors").keys() == {"other"}
