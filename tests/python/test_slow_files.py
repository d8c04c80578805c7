"""Files on slow file systems: read by many ranges at once, and mapped only when asked. The file system is FUSE, served by
`fuse_folder.py`; where that cannot be mounted, the tests skip."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fuse_folder
import pytest
import torch
from ranged import Ranges
from support import saved

import rustload

MIB = 1 << 20
SECONDS = 0.004
"""The time of one read, of which the kernel makes many for each of rustload's."""


class Slow:
    """A folder behind the slow file system."""

    def __init__(self, mounted: fuse_folder.Mounted) -> None:
        self.folder, self._mounted = mounted.path, mounted

    def counts(self) -> tuple[int, int, int]:
        """The number of reads since the last call, their bytes, and the most at once."""
        reads, nbytes, most = map(int, self._mounted.tell("").split())
        return reads, nbytes, most

    def cold(self, name: str) -> Path:
        """The path of a file, none of which is in the page cache."""
        path = self.folder / name
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        self.counts()
        return path


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    large = {f"large.{number}": torch.randn(1024, 2048) for number in range(3)}
    return {**large, **{f"small.{number}": torch.randn(64, 64) for number in range(200)}}


@pytest.fixture(scope="module")
def slow(tensors, tmp_path_factory) -> Iterator[Slow]:
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("files")
    torch.save(tensors, folder / "model.bin")
    save_file(tensors, folder / "model.safetensors")
    with fuse_folder.mounted(tmp_path_factory.mktemp("slow") / "mounted", "slow", folder, SECONDS) as mounted:
        yield Slow(mounted)


@pytest.mark.parametrize("name", ["model.bin", "model.safetensors"])
def test_a_slow_file_is_read_by_many_ranges_at_once(slow, tensors, name):
    path = slow.cold(name)
    size = path.stat().st_size
    with rustload.open(path, framework="torch") as ckpt:
        found = dict(ckpt.stream())
    _, nbytes, most = slow.counts()
    assert most >= 8, f"{most} reads at once"
    assert nbytes <= size + MIB, f"{nbytes} bytes of {size}"
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in tensors.items())


def test_one_tensor_is_read_by_several_ranges_and_a_slice_by_its_bytes(slow, tensors):
    with rustload.open(slow.cold("model.bin"), framework="torch") as ckpt:
        assert torch.equal(ckpt["large.1"].materialize(), tensors["large.1"])
        assert slow.counts()[2] >= 3
        rows = ckpt["large.2"][500:501].materialize()
        assert torch.equal(rows, tensors["large.2"][500:501])
        assert slow.counts()[1] <= MIB


def test_a_slow_file_is_mapped_only_when_asked(slow, tensors):
    path = slow.cold("model.safetensors")
    mapped = f"{path}".encode()
    for mode, copy, is_view in [("auto", None, False), ("auto", False, True), ("buffered", None, True)]:
        with rustload.open(path, framework="torch", io=mode) as ckpt:
            tensor = ckpt["small.3"].materialize(copy=copy)
            assert (mapped in Path("/proc/self/maps").read_bytes()) == is_view, (mode, copy)
            assert torch.equal(tensor, tensors["small.3"])
        del ckpt, tensor


def test_doctor_says_how_a_slow_file_is_read_and_why(slow):
    path = str(slow.cold("model.bin"))
    command = [sys.executable, "-m", "rustload", "doctor", "--no-measure", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert "not on a disk of this machine" in text
    assert "24 ranges of 1.0 MB" in text or "24 ranges of 1.0 MiB" in text, text
    assert "only with copy=False" in text
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, timeout=60)
    (file,) = json.loads(done.stdout)["checkpoints"][0]["files"]
    assert (file["kind"], file["file_system"], file["io"]) == ("network", "fuse", "buffered")
    assert (file["in_flight"], file["block"], file["views"]) == (24, MIB, False)


@pytest.mark.parametrize(("shape", "requests"), [((16, 16), 10), ((256, 200), 130)])
def test_a_legacy_stream_is_opened_with_its_counts_read_several_at_once(shape, requests):
    values = {f"w.{number}": torch.full(shape, float(number)) for number in range(100)}
    data = saved(values, _use_new_zipfile_serialization=False)
    store = Ranges(data, 0.002)
    with rustload.open(store, framework="torch") as ckpt:
        assert store.requests <= requests, f"{store.requests} requests"
        assert store.most > 1 or requests < 20
        assert all(torch.equal(ckpt[name].materialize(), value) for name, value in values.items())
    cut = Ranges(data[:-100], 0.002)
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(cut)
    assert caught.value.code == "Truncated"


def test_an_archive_behind_an_object_reads_close_to_its_bytes():
    values = {f"w.{number}": torch.full((64, 64), float(number)) for number in range(1000)}
    data = saved(values)
    store = Ranges(data, 0.002)
    with rustload.open(store, framework="torch") as ckpt:
        opening = store.nbytes
        found = dict(ckpt.stream())
    assert all(torch.equal(found[name], value) for name, value in values.items())
    assert store.nbytes - opening <= 1.02 * store.size, f"{store.nbytes - opening} bytes of {store.size}"
    assert store.requests <= 30
    assert rustload.scan(Ranges(data, 0.002)).verdict == "inert"
