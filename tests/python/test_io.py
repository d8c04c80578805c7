"""`io=`: direct reads (O_DIRECT) read the same bytes and fall back with a note; files on network file systems are not mapped."""

import json
import os
import subprocess

import pytest
import torch
from support import assert_same_bits, child, cli, patterns, torch_child

import rustload

MIB = 1 << 20
ON_NETWORK = {"RUSTLOAD_FILESYSTEM": "network"}


def has_direct(path) -> bool:
    return bool(rustload._rustload.probe(path, io="direct", measure=False)["direct"])


def drop_from_page_cache(path) -> None:
    """Drops the file from the page cache, if the system does that (POSIX_FADV_DONTNEED)."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


@pytest.fixture(scope="module", params=["bin", "safetensors"])
def model(request, tmp_path_factory):
    import safetensors.torch

    path = tmp_path_factory.mktemp("io") / f"model.{request.param}"
    tensors = {
        "large": patterns("float32", (2100, 3001)),
        "odd": patterns("uint8", (5 * MIB + 12345,), 1),
        "half": patterns("bfloat16", (1500, 2000), 2),
        "tiny": patterns("float32", (7,), 3),
        "empty": torch.zeros(0, 4),
    }
    (torch.save if request.param == "bin" else safetensors.torch.save_file)(tensors, path)
    yield path, tensors
    path.unlink()


@pytest.mark.parametrize("threads", [None, 1, 3])
@pytest.mark.parametrize("io", ["auto", "buffered", "direct"])
def test_every_io_mode_reads_the_same_bits(model, io, threads):
    path, tensors = model
    drop_from_page_cache(path)
    ckpt = rustload.open(path, framework="torch", io=io)
    for name, expected in tensors.items():
        assert_same_bits(ckpt[name].materialize(copy=True, threads=threads), expected)
    drop_from_page_cache(path)
    assert_same_bits(
        ckpt["large"].materialize(dtype="float64", threads=threads).float(),
        tensors["large"].double().float(),
    )
    assert_same_bits(ckpt["half"].materialize(transpose=True, threads=threads), tensors["half"].T)
    assert_same_bits(
        ckpt["large"][1:, ::3].materialize(copy=True, threads=threads), tensors["large"][1:, ::3]
    )


@pytest.mark.parametrize("way", ["handle", "stream", "whole"])
def test_large_direct_reads_keep_the_page_offset_of_the_file(tmp_path, way):
    """O_DIRECT then reads into the results without a bounce buffer. Results are still aligned to 64 bytes."""
    path = tmp_path / "w.bin"
    expected = {f"w{n}": patterns("float32", (3 * MIB + 1000 * n,), n) for n in range(3)}
    torch.save(expected, path)
    if not has_direct(path):
        pytest.skip("the file system has no direct reads")
    data = path.read_bytes()
    for _ in range(2):  # the second time into recycled memory
        drop_from_page_cache(path)
        ckpt = rustload.open(path, framework="torch", io="direct")
        if way == "handle":
            found = {name: ckpt[name].materialize(copy=True) for name in ckpt}
        else:
            found = dict(ckpt.stream(copy=True)) if way == "stream" else ckpt.materialize(copy=True)
        for name, tensor in found.items():
            at = data.index(expected[name].numpy().tobytes())
            assert tensor.data_ptr() % 4096 == at % 4096
            assert tensor.data_ptr() % 64 == 0
            assert_same_bits(tensor, expected[name])
        del tensor, found


@pytest.mark.parametrize("at", [0, 1, 63])
def test_copies_are_aligned_although_the_file_is_not(tmp_path, at):
    import struct

    numbers = patterns("float32", (3 * MIB,), 1)
    header = json.dumps({"w": {"dtype": "F32", "shape": [3 * MIB], "data_offsets": [0, 12 * MIB]}})
    header = header.ljust(120 + at).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + numbers.numpy().tobytes())
    found = rustload.open(path, framework="torch", io="direct")["w"].materialize(copy=True)
    assert found.data_ptr() % 64 == 0
    assert_same_bits(found, numbers)


def test_direct_reads_leave_nothing_in_the_page_cache(tmp_path):
    path = tmp_path / "w.bin"
    torch.save({"w": torch.ones(16 * MIB)}, path)
    if not has_direct(path):
        pytest.skip("the file system has no direct reads")
    drop_from_page_cache(path)
    cached = rustload._rustload.probe(path, io="direct", measure=False)["cached"]
    if cached is None or cached > 0.1:
        pytest.skip("the system does not report what is cached, or keeps it")
    lazy = rustload.open(path, framework="numpy", io="direct")["w"]
    assert bool((lazy.materialize(copy=True) == 1).all())
    assert rustload._rustload.probe(path, io="direct", measure=False)["cached"] < 0.2
    lazy = rustload.open(path, framework="numpy", io="buffered")["w"]
    assert bool((lazy.materialize(copy=True) == 1).all())
    assert rustload._rustload.probe(path, io="direct", measure=False)["cached"] > 0.9


def test_an_unknown_io_mode_is_a_value_error(simple):
    with pytest.raises(ValueError, match="'auto', 'buffered' or 'direct'"):
        rustload.open(simple, io="mmap")  # type: ignore[arg-type]


def test_refused_direct_reads_fall_back_to_buffered_ones_with_a_note(save):
    """The file cannot be opened again with O_DIRECT, as no descriptor is left."""
    code = """
    import os, resource, sys, rustload
    rustload.open(sys.argv[1], framework="dlpack")["w"].materialize(copy=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        os.close(held.pop())
    ckpt = rustload.open(sys.argv[1], framework="dlpack", io="direct")
    found = memoryview(ckpt["w"].materialize(copy=True)).cast("B")
    print(found == b"\\1" * len(found), sum("page cache" in note for note in ckpt.notes))
    """
    path = save({"w": torch.ones(8 * MIB, dtype=torch.uint8)})
    assert child(code, path).stdout.split() == ["True", "1"]


NETWORK = """
import sys, rustload
with open("/proc/self/maps") as maps:
    assert sys.argv[1] not in maps.read()
ckpt = rustload.open(sys.argv[1], framework=sys.argv[2], io=sys.argv[3])
results = {name: lazy.materialize() for name, lazy in ckpt.items()}
if sys.argv[2] == "torch":
    assert results["a"].untyped_storage().data_ptr() == results["b"].untyped_storage().data_ptr()
    assert results["b"].stride() == (1, 512) and results["b"].tolist() == results["a"].T.tolist()
with open("/proc/self/maps") as maps:
    mapped = sys.argv[1] in maps.read()
view = ckpt["a"].materialize(copy=False)
with open("/proc/self/maps") as maps:
    print(mapped, sys.argv[1] in maps.read())
"""


@pytest.mark.parametrize("framework", ["torch", "numpy", "dlpack"])
def test_a_network_file_is_read_and_not_mapped_unless_a_view_is_requested(save, framework):
    a = torch.randn(512, 512)
    path = save({"a": a, "b": a.T, "c": torch.ones(3)})
    assert torch_child(NETWORK, path, framework, "auto", env=ON_NETWORK).stdout.split() == ["False", "True"]
    assert torch_child(NETWORK, path, framework, "buffered", env=ON_NETWORK).stdout.split() == [
        "True",
        "True",
    ]
    assert torch_child(NETWORK, path, framework, "auto").stdout.split() == ["True", "True"]


def doctor(*args: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return cli("doctor", *args, **(env or {}))


def test_doctor_reports_the_io_mode_and_its_reason(simple):
    done = doctor(simple, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["schema"] == 1
    machine = found["machine"]
    assert machine["isa"] in machine["isa_available"]
    assert machine["threads"] >= 1
    assert machine["memory"]["total"] >= machine["memory"]["available"] > 0
    (checkpoint,) = found["checkpoints"]
    (file,) = checkpoint["files"]
    assert file["io"] == "buffered"
    assert file["size"] == simple.stat().st_size
    assert file["reason"]
    assert file["kind"] in ("local", "memory", "network", "unknown")


def test_doctor_reports_network_as_the_reason(simple):
    done = doctor(simple, "--no-measure", env=ON_NETWORK)
    assert done.returncode == 0
    assert "not on a disk of this machine" in done.stdout
    assert "(network)" in done.stdout
    assert "GB/s" not in done.stdout


def test_doctor_measures_both_io_modes(tmp_path):
    path = tmp_path / "w.bin"
    torch.save({"w": torch.ones(4 * MIB)}, path)
    (file,) = json.loads(doctor(path, "--json", "--io", "direct").stdout)["checkpoints"][0]["files"]
    assert file["io"] == "direct"
    assert file["buffered_rate"] > 0
    assert (file["direct_rate"] is not None) == file["direct"] == has_direct(path)


def test_doctor_continues_after_an_unreadable_path(simple, tmp_path):
    done = doctor(tmp_path / "absent.bin", simple, "--json", "--no-measure")
    assert done.returncode == 3
    first, second = json.loads(done.stdout)["checkpoints"]
    assert first["error"]["class"] == "FileNotFoundError"
    assert second["files"]
    assert done.stderr.startswith("rustload: error: ")
