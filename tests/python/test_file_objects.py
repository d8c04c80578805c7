"""Open files and objects that are read by ranges, in `open`, `scan`, `safe_open` and `rustload.torch.load`."""

import gzip
import io
import itertools
import os
import threading
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from ranged import Ranges
from safetensors.torch import save_file
from support import child, in_threads, sparse

import rustload
import rustload.torch

LAYERS = 300


class CountingFile(io.RawIOBase):
    """A file in memory that counts requests and bytes, and takes time for each."""

    name = "counting"

    def __init__(self, data: bytes, delay: float = 0.0) -> None:
        self.data, self.delay, self.at = data, delay, 0
        self.requests: list[tuple[int, int]] = []
        self.busy = threading.Lock()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, len(self.data))[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int = -1) -> bytes:
        assert self.busy.acquire(blocking=False), "two threads read at once"
        try:
            time.sleep(self.delay)
            found = self.data[self.at :] if size < 0 else self.data[self.at : self.at + size]
            self.requests.append((self.at, len(found)))
            self.at += len(found)
            return found
        finally:
            self.busy.release()


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {f"layers.{number}.weight": torch.randn(32, 128, generator=generator) for number in range(LAYERS)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor]) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.bin"
    torch.save(tensors, path)
    return path


@pytest.fixture(scope="module")
def data(model: Path) -> bytes:
    return model.read_bytes()


@pytest.mark.parametrize("kind", [CountingFile, Ranges])
def test_opening_asks_for_at_most_6_ranges(kind, data):
    file = kind(data, 0.005)
    checkpoint = rustload.open(file)
    assert len(checkpoint) == LAYERS
    asked = file.requests if kind is CountingFile else list(itertools.chain(*file.calls))
    assert len(asked) <= 6
    assert sum(length for _, length in asked) <= 6 << 16


@pytest.mark.parametrize("kind", [CountingFile, Ranges])
def test_a_slice_reads_its_bytes_and_64_kib_at_most(kind, data, tensors):
    file = kind(data)
    checkpoint = rustload.open(file)
    asked = file.requests if kind is CountingFile else file.calls
    for name in ("layers.3.weight", "layers.150.weight", "layers.299.weight"):
        asked.clear()
        part = checkpoint[name][4:9].materialize()
        assert torch.equal(part, tensors[name][4:9])
        read = asked if kind is CountingFile else list(itertools.chain(*asked))
        assert sum(length for _, length in read) <= part.nbytes + (64 << 10)


@pytest.mark.parametrize("kind", [CountingFile, Ranges, io.BytesIO])
def test_every_verb_gives_what_a_file_gives(kind, data, tensors):
    checkpoint = rustload.open(kind(data))
    assert list(checkpoint) == list(tensors)
    for name, tensor in checkpoint.items():
        assert torch.equal(tensor.materialize(), tensors[name])
    streamed = dict(checkpoint.stream(dtype="bfloat16"))
    for name, expected in tensors.items():
        assert torch.equal(streamed[name], expected.bfloat16())
    name = "layers.7.weight"
    assert torch.equal(checkpoint[name].materialize(transpose=True), tensors[name].T)
    with rustload.safe_open(kind(data), framework="pt") as file:
        assert torch.equal(file.get_tensor(name), tensors[name])
        assert torch.equal(file.get_slice(name)[:, 3:5], tensors[name][:, 3:5])
    loaded = rustload.torch.load(kind(data)) if kind is not Ranges else {}
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in loaded.items())
    report = rustload.scan(kind(data))
    assert report.verdict == "inert"


def test_ranges_are_read_by_several_threads_and_positions_by_one(data):
    ranges = Ranges(data, 0)
    checkpoint = rustload.open(ranges)
    ranges.delay = 0.1  # so long that the next thread has begun
    for _ in checkpoint.stream():
        pass
    assert ranges.most > 1
    file = CountingFile(data, 0.001)  # which asserts that one thread reads at a time
    for _ in rustload.open(file).stream(threads=4):
        pass


def test_two_threads_that_read_one_file_object_wait_for_each_other(data, tensors):
    checkpoint = rustload.open(CountingFile(data, 0.001))

    def wrong(names: list[str]) -> list[str]:
        return [name for name in names if not torch.equal(checkpoint[name].materialize(), tensors[name])]

    assert in_threads(wrong, [list(tensors)[start::4] for start in range(4)]) == [[]] * 4


def test_a_file_on_disk_is_opened_again_by_its_path(model):
    with model.open("rb") as file:
        file.seek(5)
        checkpoint = rustload.open(file)
        assert file.tell() == 5
    first = checkpoint["layers.0.weight"]
    assert first.materialize(copy=False) is not None
    assert checkpoint.files == [str(model)]


def test_files_in_archives_and_gzip_are_read_as_they_are(tmp_path, data, tensors):
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.writestr("model.bin", data)
    with zipfile.ZipFile(tmp_path / "models.zip") as archive, archive.open("model.bin") as member:
        assert torch.equal(rustload.open(member)["layers.9.weight"].materialize(), tensors["layers.9.weight"])
    with gzip.open(tmp_path / "model.bin.gz", "wb") as packed:
        packed.write(data)
    with gzip.open(tmp_path / "model.bin.gz") as packed:
        loaded = rustload.torch.load(packed)
    assert torch.equal(loaded["layers.299.weight"], tensors["layers.299.weight"])


def test_safetensors_and_legacy_files_open_from_objects(tmp_path):
    weights = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16)}
    save_file(weights, tmp_path / "model.safetensors")
    torch.save(weights, tmp_path / "model.pt", _use_new_zipfile_serialization=False)
    for name in ("model.safetensors", "model.pt"):
        file = CountingFile((tmp_path / name).read_bytes())
        found = rustload.open(file).materialize()
        assert all(torch.equal(found[key], weights[key]) for key in weights)


def test_torch_load_leaves_the_position_behind_the_checkpoint():
    stream = io.BytesIO()
    for value in (1.0, 2.0):
        torch.save({"x": torch.full((3,), value)}, stream, _use_new_zipfile_serialization=False)
    file = CountingFile(stream.getvalue())
    assert [rustload.torch.load(file)["x"][0].item() for _ in range(2)] == [1.0, 2.0]
    assert file.tell() == len(file.data)


def test_exceptions_of_the_object_are_the_cause(data):
    class Failing(CountingFile):
        fails: BaseException | None = None

        def read(self, size: int = -1) -> bytes:
            if self.fails:
                raise self.fails
            return super().read(size)

    file = Failing(data)
    checkpoint = rustload.open(file)
    file.fails = ConnectionResetError("lost")
    with pytest.raises(OSError, match="lost") as caught:
        checkpoint["layers.5.weight"].materialize()
    assert caught.value.__cause__ is file.fails
    assert "counting" in str(caught.value) or caught.value.path == "counting"
    file.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        checkpoint["layers.5.weight"].materialize()


def test_short_and_wrong_answers_are_errors(data):
    class Short(Ranges):
        def read_ranges(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
            return [found[:-1] for found in super().read_ranges(ranges)]

    with pytest.raises(OSError, match=r"returned \d+ byte"):
        rustload.open(Short(data))

    class Few(Ranges):
        def read_ranges(self, ranges: list[tuple[int, int]]) -> list[memoryview]:
            return super().read_ranges(ranges[1:])

    with pytest.raises(OSError, match="too few"):
        rustload.open(Few(data))
    with pytest.raises(TypeError, match="text mode"):
        rustload.open(io.StringIO("text"))


def test_a_file_that_became_shorter_is_an_error(data):
    file = CountingFile(data)
    checkpoint = rustload.open(file)
    file.data = file.data[: len(data) // 2]
    with pytest.raises(OSError, match=r"had \d+ byte|returned") as caught:
        checkpoint["layers.290.weight"].materialize()
    assert caught.value.code in ("FileChanged", "Io")


def test_a_raw_stream_may_return_fewer_bytes(data, tensors):
    class Slow(CountingFile):
        def read(self, size: int = -1) -> bytes:
            return super().read(min(size, 1000))

    name = "layers.11.weight"
    assert torch.equal(rustload.open(Slow(data))[name].materialize(), tensors[name])


def test_copy_false_is_an_error(data):
    with pytest.raises(BufferError):
        rustload.open(CountingFile(data))["layers.0.weight"].materialize(copy=False)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_gets_an_error(data):
    checkpoint = rustload.open(CountingFile(data), framework="numpy")
    child = os.fork()
    if child == 0:
        try:
            checkpoint["layers.200.weight"].materialize()
        except ValueError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert isinstance(checkpoint["layers.200.weight"].materialize(), np.ndarray)


def test_pipes_and_decompressors_are_read_into_memory_once(tmp_path, data, tensors):
    with gzip.open(tmp_path / "model.bin.gz", "wb", compresslevel=1) as packed:
        packed.write(data)
    with gzip.open(tmp_path / "model.bin.gz") as packed:
        checkpoint = rustload.open(packed)
    # The file is closed, and its content is in memory.
    assert torch.equal(checkpoint["layers.9.weight"].materialize(), tensors["layers.9.weight"])
    receive, send = os.pipe()
    with os.fdopen(receive, "rb") as reader, os.fdopen(send, "wb") as writer:
        thread = threading.Thread(target=lambda: (writer.write(data), writer.close()))
        thread.start()
        assert rustload.open(reader).keys() == tensors.keys()
        thread.join()


def test_a_checkpoint_shows_the_name_of_its_file_object(data):
    assert repr(rustload.open(CountingFile(data))).startswith("<Checkpoint 'counting' torch-zip, 300 tensors")
    checkpoint = rustload.open(Ranges(data))
    assert Ranges.name in repr(checkpoint)
    with pytest.raises(BufferError, match="only files on this machine have views"):
        checkpoint["layers.0.weight"].materialize(copy=False)
    assert "bytes" in repr(rustload.open(io.BytesIO(data)))


AT_EXIT = """
import sys, threading, time
import rustload

class Slow:
    def __init__(self, path):
        self.file = open(path, "rb")
    def seek(self, *given):
        return self.file.seek(*given)
    def tell(self):
        return self.file.tell()
    def read(self, size=-1):
        time.sleep(0.05)
        return self.file.read(size)

stream = rustload.open(Slow(sys.argv[1]), framework="numpy").stream(dtype="float16")
next(stream)
if sys.argv[2] == "daemon":
    threading.Thread(target=lambda: print(len(list(stream))), daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.parametrize("consumer", ["none", "daemon"])
def test_a_stream_that_reads_ahead_ends_before_the_interpreter(consumer, tmp_path):
    path = sparse(tmp_path / "many.safetensors", {f"w{number}": ("F32", [1 << 20]) for number in range(64)})
    assert not child(AT_EXIT, path, consumer).stdout
