"""`rustload.torch.load` beside `torch.load`: arguments, environment, error texts, file objects and locations."""

import gzip
import io
import json
import os
import pickle
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support import (
    bits,
    coded,
    deflated,
    patterns,
    pickled,
    repacked,
    rss_anon,
    saved,
    torch_child,
    torch_zip,
)
from torch_graph import assert_same_graph

import rustload.torch
from rustload._common import files

LOADERS = (torch.load, rustload.torch.load)
STATE = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1, -2])}


def errors(*args: Any, **options: Any) -> tuple[BaseException, BaseException]:
    """What torch and rustload raise for the same call."""
    found = []
    for load in LOADERS:
        if hasattr(args[0], "seek") and args[0].seekable():
            args[0].seek(0)
        with pytest.raises(Exception) as info:  # noqa: PT011 - the caller compares both
            load(*args, **options)
        found.append(info.value)
    return found[0], found[1]


def assert_same_error(*args: Any, **options: Any) -> str:
    """Asserts that type and text of the error are torch's; returns the text."""
    theirs, ours = errors(*args, **options)
    assert isinstance(ours, type(theirs))
    assert str(ours) == str(theirs)
    return str(ours)


# Arguments and environment.


def test_weights_only_false_is_refused_with_advice(simple):
    with pytest.raises(ValueError, match="weights_only=False would run code") as info:
        rustload.torch.load(simple, weights_only=False)
    assert "leave weights_only out" in info.value.__notes__[0]
    assert "unknown='keep', the default" in info.value.__notes__[0]
    for value in (None, True):
        assert len(rustload.torch.load(simple, weights_only=value)) == 2


def test_a_pickle_module_is_refused(simple):
    assert "pickle_module" in assert_same_error(simple, weights_only=True, pickle_module=pickle)
    with pytest.raises(ValueError, match="pickle_module= would run code") as info:
        rustload.torch.load(simple, "cpu", pickle)  # torch would load it without weights_only
    assert "leave pickle_module out" in info.value.__notes__[0]
    with pytest.raises(ValueError, match="pickle_module=") as info:
        rustload.torch.load(simple, pickle_module=pickle, weights_only=False)
    assert "leave pickle_module and weights_only out" in info.value.__notes__[0]


def test_weights_only_false_is_accepted_for_a_safetensors_file(tmp_path):
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(STATE, path)
    for options in ({"weights_only": False}, {"pickle_module": pickle}):
        assert_same_graph(rustload.torch.load(path, **options), torch.load(path, **options))
    assert "pickle_module" in assert_same_error(path, weights_only=True, pickle_module=pickle)


def test_shards_load_from_a_list_or_a_folder_of_the_hugging_face_cache(tmp_path):
    repository = tmp_path / "models--org--tiny"
    folder = repository / "snapshots" / "abc"
    folder.mkdir(parents=True)
    paths = [folder / f"pytorch_model-0000{number}-of-00002.bin" for number in (1, 2)]
    for path, name in zip(paths, STATE, strict=True):
        torch.save({name: STATE[name]}, path)
    expected = {name: value for path in paths for name, value in torch.load(path).items()}
    index = folder / "pytorch_model.bin.index.json"
    weight_map = {name: path.name for path, name in zip(paths, STATE, strict=True)}
    for given in (repository, str(repository), folder, paths, tuple(map(str, paths)), index, folder):
        if given is index:
            index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
        for mmap in (False, True):
            assert_same_graph(rustload.torch.load(given, mmap=mmap), expected)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="the list of paths has an element of type int"):
        rustload.torch.load([paths[0], 3])  # type: ignore[list-item]
    with pytest.raises(FileNotFoundError):
        rustload.torch.load([paths[0], tmp_path / "none.bin"])


def test_the_error_for_a_path_in_bytes_says_that_bytes_are_content(simple):
    with pytest.raises(rustload.FormatError) as info:
        rustload.torch.load(os.fsencode(simple))
    assert "bytes are the content of a file" in info.value.__notes__[-1]
    with pytest.raises(rustload.FormatError) as info:
        rustload.torch.load(b"\xde\xad\xbe\xef" * 4)
    assert "content" not in "".join(info.value.__notes__)


def test_the_environment_can_force_weights_only(simple, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    for load in LOADERS:
        assert len(load(simple, weights_only=False)) == 2
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "yes")
    assert "both were set" in assert_same_error(simple)
    monkeypatch.delenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD")
    assert len(rustload.torch.load(simple, weights_only=True)) == 2  # the argument takes precedence
    with pytest.raises(ValueError, match="weights_only=False") as info:
        rustload.torch.load(simple)
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" in info.value.__notes__[0]


def test_an_encoding_warns_as_in_torch(simple):
    for load in LOADERS:
        with pytest.warns(UserWarning, match="pickle_load_args only works if `weights_only=False`"):
            load(simple, encoding="ascii")


def test_mmap_needs_a_path(simple):
    text = assert_same_error(io.BytesIO(simple.read_bytes()), mmap=True)
    assert text == "f must be a file path in order to use the mmap argument"
    with simple.open("rb") as file:
        assert assert_same_error(file, mmap=True) == text


def test_mmap_needs_an_archive(tmp_path):
    path = tmp_path / "legacy.bin"
    torch.save(STATE, path, _use_new_zipfile_serialization=False)
    for f in (path, str(path), io.BytesIO(path.read_bytes())):
        assert assert_same_error(f, mmap=True).startswith("mmap can only be used with files saved with")


def test_mmap_follows_torchs_configuration(simple):
    from torch.utils.serialization import config

    def is_mapped(found: Any) -> bool:
        start = found["w"].data_ptr()
        with open("/proc/self/maps") as maps:  # noqa: PTH123 - a proc file
            ranges = [line.split() for line in maps if line.rstrip().endswith(str(simple))]
        bounds = [[int(end, 16) for end in line[0].split("-")] for line in ranges]
        return any(low <= start < high for low, high in bounds)

    for default in (False, True):
        with config.patch("load.mmap", default):
            assert is_mapped(torch.load(simple)) is default
            assert is_mapped(rustload.torch.load(simple)) is default
            assert not is_mapped(rustload.torch.load(simple, mmap=False))


def test_an_invalid_value_of_unknown_is_a_value_error(simple):
    with pytest.raises(ValueError, match="unknown= is 'keep' or 'error'"):
        rustload.torch.load(simple, unknown="ignore")  # type: ignore[arg-type]


def test_limits_are_enforced(simple):
    with pytest.raises(rustload.LimitError):
        rustload.torch.load(simple, limits=rustload.Limits(tensors=1))
    assert len(rustload.torch.load(simple, limits=rustload.Limits(tensors=2))) == 2


# Safetensors paths.


def test_a_safetensors_path_loads_as_in_torch(tmp_path):
    path = tmp_path / "m.safetensors"
    state = {"b": torch.arange(3), "a": torch.randn(2, 2), "c": torch.zeros(0, dtype=torch.float16)}
    safetensors.torch.save_file(state, path)
    expected = torch.load(path)
    found = rustload.torch.load(path)
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert bits(found[name]) == bits(tensor)
    for location in ("cpu", torch.device("cpu")):
        assert torch.equal(rustload.torch.load(str(path), location)["a"], state["a"])


def test_a_safetensors_path_refuses_a_dict_or_callable_map_location(tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    assert "with dict map_location" in assert_same_error(path, map_location={"cpu": "cpu"})
    assert "with callable map_location" in assert_same_error(path, map_location=lambda storage, _: storage)


def test_a_safetensors_file_under_another_name_is_loaded_by_its_content(tmp_path):
    path = tmp_path / "m.bin"
    safetensors.torch.save_file({"a": torch.arange(3.0)}, path)
    for mmap_location in (None, "cpu"):
        assert rustload.torch.load(path, mmap_location)["a"].tolist() == [0, 1, 2]


# Files that torch refuses.


def test_a_torchscript_archive_is_refused(tmp_path):
    path = tmp_path / "script.pt"
    torch.save(STATE, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("script/constants.pkl", pickled(()))
    with (
        pytest.warns(UserWarning, match="TorchScript"),
        pytest.raises(RuntimeError, match="TorchScript") as theirs,
    ):
        torch.load(path)
    for unknown in ("keep", "error"):
        with pytest.raises(RuntimeError) as ours:
            rustload.torch.load(path, unknown=unknown)
        assert str(theirs.value).startswith(str(ours.value))
        assert "rustload.open" in ours.value.__notes__[0]


def test_a_tar_is_refused(tmp_path):
    path = tmp_path / "old.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("sys_info"), io.BytesIO())
    theirs, ours = errors(path)
    assert type(ours) is type(theirs) is RuntimeError
    assert str(theirs).startswith(str(ours))
    assert str(ours) == "Cannot use ``weights_only=True`` with files saved in the legacy .tar format."


def test_a_bare_pickle_has_torchs_error_of_the_magic_number(tmp_path):
    path = tmp_path / "bare.pkl"
    path.write_bytes(pickled({"a": 1}))
    assert assert_same_error(path) == "Invalid magic number; corrupt file?"
    assert assert_same_error(io.BytesIO(path.read_bytes())) == "Invalid magic number; corrupt file?"


@pytest.mark.parametrize("unknown", ["keep", "error"])
def test_a_bare_pickle_that_names_what_torch_refuses_has_torchs_error(unknown):
    """torch reads the magic number with its restricted unpickler."""
    data = pickled({"a": 1, "x": slice(0, 1)})
    with pytest.raises(pickle.UnpicklingError) as theirs:
        torch.load(io.BytesIO(data))
    with pytest.raises(pickle.UnpicklingError) as ours:
        rustload.torch.load(data, unknown=unknown)  # type: ignore[arg-type]  # one of its values
    pattern = re.compile(r"GLOBAL (\S+) was not an allowed global by default")
    (found, expected) = (pattern.search(str(info.value)) for info in (ours, theirs))
    assert found is not None
    assert expected is not None
    assert found[1] == expected[1]
    assert "rustload.open" in ours.value.__notes__[0]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_bare_pickle_has_the_kind_of_torchs_error_in_every_protocol(protocol, tmp_path):
    """Of most protocols, torch's restricted unpickler reads not all opcodes."""
    values = [
        {"a": 1, "b": [1.5, "text", None, True]},
        [torch.Size([2]), torch.device("cpu"), torch.float16],
        {"a": Counter("aab"), "b": OrderedDict(x=(1, 2, 3, 4)), "c": {1 << 70, 2}},
        {"x": slice(0, 1)},
        {"x": os.system, "y": b"bytes"},
    ]
    for number, value in enumerate(values):
        data = pickle.dumps(value, protocol=protocol)
        path = tmp_path / f"{number}.pkl"
        path.write_bytes(data)
        for f in (path, io.BytesIO(data)):
            theirs, ours = errors(f)
            assert isinstance(ours, type(theirs)), value
            names_what = re.compile("Unsupported operand [0-9]+|Invalid magic number|GLOBAL")
            found = [names_what.search(str(error)) for error in (theirs, ours)]
            assert found[0] is not None
            assert found[1] is not None
            # rustload looks at all names first.
            assert found[0][0] == found[1][0] or found[1][0] == "GLOBAL", value
        with pytest.raises(type(theirs)):
            rustload.torch.load(data)


def test_a_missing_file_is_a_file_not_found_error(tmp_path):
    theirs, ours = errors(tmp_path / "none.pt")
    assert type(ours) is type(theirs) is FileNotFoundError


def test_a_bomb_is_stopped_by_a_limit():
    doubled: list[Any] = []
    for _ in range(60):
        doubled = [doubled, doubled]
    found = rustload.torch.load(torch_zip(pickled(doubled)))
    assert found[0] is found[1]  # a list is built once, however many references it has
    deep = b"\x80\x02)" + b"\x85" * 100_000 + b"."
    with pytest.raises(rustload.LimitError):
        rustload.torch.load(torch_zip(deep))


# Other forms of archives.


def test_deflated_storages_are_inflated(tmp_path):
    path = tmp_path / "packed.pt"
    state = {"w": torch.arange(50_000.0), "b": torch.ones(3), "t": torch.zeros(3, dtype=torch.bool)}
    path.write_bytes(deflated(saved(state)))
    expected = torch.load(path)
    for mmap in (False, True):  # torch cannot map such a file; a storage that cannot be viewed is read
        assert_same_graph(rustload.torch.load(path, mmap=mmap), expected)


def test_a_misaligned_storage_is_copied_with_mmap(tmp_path):
    path = tmp_path / "odd.pt"
    members = {"0": bytes(torch.arange(40.0, dtype=torch.float64).untyped_storage())}
    with zipfile.ZipFile(io.BytesIO(saved(torch.arange(40.0, dtype=torch.float64)))) as archive:
        path.write_bytes(torch_zip(archive.read("archive/data.pkl"), members, root="m"))
    found = rustload.torch.load(path, mmap=True)
    assert found.tolist() == list(range(40))
    assert found.data_ptr() % 8 == 0


def test_a_file_without_checksums_is_loaded(tmp_path):
    path = tmp_path / "nocrc.pt"
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert_same_graph(rustload.torch.load(path), torch.load(path))


# Files.


def ordinary(path: Path) -> Any:
    return path.open("rb")


def unbuffered(path: Path) -> Any:
    return path.open("rb", buffering=0)


def updated(path: Path) -> Any:
    return path.open("r+b")


def in_memory(path: Path) -> Any:
    return io.BytesIO(path.read_bytes())


def unlinked(path: Path, make: Callable[[], Any] = tempfile.TemporaryFile) -> Any:
    file = make()
    file.write(path.read_bytes())  # and does not flush it
    file.seek(0)
    return file


def named(path: Path) -> Any:
    return unlinked(path, tempfile.NamedTemporaryFile)


def compressed(path: Path) -> Any:
    with gzip.open(path.with_suffix(".gz"), "wb") as packed:
        packed.write(path.read_bytes())
    return gzip.open(path.with_suffix(".gz"), "rb")


class Wrapped:
    """The methods that torch requires of a file, and no others."""

    def __init__(self, path: Path) -> None:
        self.file = io.BytesIO(path.read_bytes())
        self.read = self.file.read
        self.readline = self.file.readline
        self.seek = self.file.seek
        self.tell = self.file.tell


FILES = [ordinary, unbuffered, updated, in_memory, unlinked, named, compressed, Wrapped]


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
def test_open_files_are_read(make, new, tmp_path):
    path = tmp_path / "m.pt"
    torch.save(STATE, path, _use_new_zipfile_serialization=new)
    expected = torch.load(path)
    file = make(path)
    try:
        found = rustload.torch.load(file)
    finally:
        getattr(file, "close", int)()
    path.write_bytes(b"gone")
    assert_same_graph(found, expected)


@pytest.mark.parametrize("make", [ordinary, in_memory, compressed], ids=lambda make: make.__name__)
@pytest.mark.parametrize("new", [True, False])
def test_an_open_file_is_read_from_its_position(make, new, tmp_path):
    path = tmp_path / "m.pt"
    path.write_bytes(b"before" + saved(STATE, _use_new_zipfile_serialization=new))
    file, theirs = make(path), make(path)
    file.seek(6)
    theirs.seek(6)
    assert_same_graph(rustload.torch.load(file), torch.load(theirs))
    file.seek(6)
    theirs.seek(6)
    expected = torch.load(theirs, map_location="meta")
    assert_same_graph(rustload.torch.load(file, map_location="meta"), expected)
    file.close()
    theirs.close()


@pytest.mark.parametrize("make", [ordinary, in_memory, Wrapped], ids=lambda make: make.__name__)
def test_consecutive_legacy_streams_are_read_one_by_one(make, tmp_path):
    path = tmp_path / "several.pt"
    parts = [{"a": torch.arange(3)}, 7, {"b": torch.ones(2, 2)}]
    path.write_bytes(b"".join(saved(part, _use_new_zipfile_serialization=False) for part in parts))
    file, theirs = make(path), make(path)
    for _ in parts:
        assert_same_graph(rustload.torch.load(file), torch.load(theirs))
        assert file.tell() == theirs.tell()
    for load, opened in ((rustload.torch.load, file), (torch.load, theirs)):
        with pytest.raises(EOFError):
            load(opened)
        getattr(opened, "close", int)()


def test_bytes_are_accepted_as_a_file():
    data = saved(STATE)
    for given in (data, bytearray(data), memoryview(data)):
        assert torch.equal(rustload.torch.load(given)["w"], STATE["w"])


def test_an_object_that_is_no_file_has_torchs_error():
    theirs, ours = errors(7)
    assert type(ours) is type(theirs) is AttributeError
    assert str(ours).partition(".")[0] == str(theirs).partition(".")[0]


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_pipe_is_read_to_its_end(legacy):
    data = saved({**STATE, "large": torch.arange(100_000)}, _use_new_zipfile_serialization=not legacy)
    command = [sys.executable, "-c", "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"]
    for buffering in (-1, 0):
        with (
            tempfile.TemporaryFile() as source,
            subprocess.Popen(command, bufsize=buffering, stdin=source, stdout=subprocess.PIPE) as process,
        ):
            os.pwrite(source.fileno(), data, 0)
            source.seek(0)
            assert process.stdout is not None
            found = rustload.torch.load(process.stdout)
        assert_same_graph(found, torch.load(io.BytesIO(data)))


def test_errors_of_a_pipe(simple):
    def pipe(data: bytes) -> Any:
        reading, writing = os.pipe()
        with os.fdopen(writing, "wb") as file:
            file.write(data)
        return os.fdopen(reading, "rb", buffering=0)

    with pipe(b"") as file, pytest.raises(rustload.FormatError, match="empty"):
        rustload.torch.load(file)
    with pipe(saved(STATE)[:-1]) as file, pytest.raises(rustload.FormatError):
        rustload.torch.load(file)
    with pipe(saved(STATE)) as file, pytest.raises(ValueError, match="f must be a file path"):
        rustload.torch.load(file, mmap=True)
    os.mkfifo(simple.parent / "fifo")
    with coded(rustload.FormatError, "NotRegularFile"):
        rustload.torch.load(simple.parent / "fifo")


def test_a_file_that_refuses_to_seek_is_read_to_its_end():
    class Refusing(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, _offset: int, _whence: int = 0, /) -> int:
            raise io.UnsupportedOperation("seek")

    data = saved(STATE)
    assert_same_graph(rustload.torch.load(Refusing(data)), torch.load(io.BytesIO(data)))


class Endless(io.RawIOBase):
    """The bytes of a checkpoint, and then zeros for ever."""

    def __init__(self, start: bytes, *, seekable: bool) -> None:
        self.start, self.position, self._seekable = start, 0, seekable

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        if not self._seekable:
            raise io.UnsupportedOperation("seek")
        self.position = offset if whence == 0 else self.position
        return self.position

    def readinto(self, buffer: Any, /) -> int:
        wanted = len(buffer)
        data = self.start[self.position : self.position + wanted]
        buffer[:wanted] = data + bytes(wanted - len(data))
        self.position += wanted
        return wanted


@pytest.mark.parametrize("start", [b"", saved(STATE), saved(STATE, _use_new_zipfile_serialization=False)])
def test_an_endless_file_is_read_up_to_half_of_the_available_memory(monkeypatch, start):
    monkeypatch.setattr(files, "headroom", lambda: 5_000_001)
    file = Endless(start, seekable=False)
    with pytest.raises(rustload.LimitError, match=r"more than 2\.4 MiB") as caught:
        rustload.torch.load(file)  # type: ignore[arg-type]  # mypy wants IO[bytes]
    error = caught.value
    assert (error.code, error.name, error.limit, error.found) == (
        "Limit",
        "available_memory",
        2_500_000,
        2_500_001,
    )
    assert file.position == 2_500_001
    assert "pass its path" in error.__notes__[0]


def test_a_seekable_file_without_an_end_is_as_long_as_seek_says():
    with pytest.raises(rustload.FormatError, match="the file is empty"):
        rustload.torch.load(Endless(saved(STATE), seekable=True))  # type: ignore[arg-type]  # mypy wants IO[bytes]


@pytest.mark.parametrize("buffering", [-1, 0])
def test_a_device_without_an_end_is_read_up_to_half_of_the_available_memory(monkeypatch, buffering):
    monkeypatch.setattr(files, "headroom", lambda: 1 << 22)
    with open("/dev/zero", "rb", buffering) as file, pytest.raises(rustload.LimitError):  # noqa: PTH123 - a device
        rustload.torch.load(file)


def test_a_pipe_of_as_many_bytes_as_the_bound_loads(monkeypatch):
    data = saved({"large": torch.arange(1_000_000)})
    monkeypatch.setattr(files, "headroom", lambda: 2 * len(data))
    with gzip.open(io.BytesIO(gzip.compress(data, 1))) as file:
        assert_same_graph(rustload.torch.load(file), torch.load(io.BytesIO(data)))
    monkeypatch.setattr(files, "headroom", lambda: 2 * len(data) - 1)
    with gzip.open(io.BytesIO(gzip.compress(data, 1))) as file, pytest.raises(rustload.LimitError):
        rustload.torch.load(file)


def test_a_file_that_would_block_is_an_error():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.write(writing, saved(STATE)[:100])
    with (
        os.fdopen(writing, "wb"),
        os.fdopen(reading, "rb", buffering=0) as file,
        pytest.raises(BlockingIOError),
    ):
        rustload.torch.load(file)


def test_a_text_file_is_a_type_error(simple):
    with simple.open("r", encoding="latin-1") as file, pytest.raises(TypeError, match="mode 'rb'"):
        rustload.torch.load(file)  # type: ignore[arg-type]


def test_tensors_of_an_open_file_are_owned(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.zeros(1000)}, path)
    with path.open("r+b") as file:
        found = rustload.torch.load(file)
        found["w"] += 1
        file.seek(0)
        file.write(b"\xff" * 2000)
    assert found["w"].sum() == 1000


# Locations.


@pytest.mark.parametrize("new", [True, False])
def test_a_callable_is_called_once_per_storage_with_its_location(new):
    weight = torch.ones(4)
    data = saved({"a": weight, "b": weight[1:], "c": torch.zeros(2)}, _use_new_zipfile_serialization=new)
    calls: list[Any] = []

    def ask(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage:
        calls.append((type(storage), storage.nbytes(), location))
        return storage

    found = rustload.torch.load(data, ask)
    ours, calls = calls, []
    torch.load(io.BytesIO(data), ask)
    assert ours == calls == [(torch.UntypedStorage, 16, "cpu"), (torch.UntypedStorage, 8, "cpu")]
    assert found["b"].data_ptr() == found["a"].data_ptr() + 4


def test_a_callable_that_returns_none_keeps_the_saved_location():
    data = saved(STATE)
    found = rustload.torch.load(data, lambda _storage, _location: None)
    assert_same_graph(found, torch.load(io.BytesIO(data)))


def test_a_callable_may_return_another_storage():
    def zeros(storage: torch.UntypedStorage, _: str) -> torch.UntypedStorage:
        return torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()

    data = saved(STATE)
    found = rustload.torch.load(data, zeros)
    assert_same_graph(found, torch.load(io.BytesIO(data), zeros))
    assert not found["w"].any()


@pytest.mark.parametrize("location", [0, None, b"cpu", torch.device("cpu")])
def test_a_location_in_a_dict_that_is_no_text_has_torchs_error(location):
    assert_same_error(io.BytesIO(saved(STATE)), map_location={"cpu": location})


def test_a_callable_that_returns_no_storage_is_a_type_error():
    theirs, ours = errors(io.BytesIO(saved(STATE)), lambda _storage, _location: 7)
    assert type(ours) is type(theirs) is TypeError


def on_cuda(new: bool) -> bytes:
    """A file whose storages have the location `cuda:0`."""
    data = saved({"a": torch.ones(2), "n": 1}, _use_new_zipfile_serialization=new)

    def moved(_: str, part: bytes) -> bytes:
        return part.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")

    return repacked(data, moved) if new else moved("", data)


@pytest.mark.parametrize("new", [True, False])
def test_without_a_gpu_a_file_saved_on_one_has_torchs_error(new):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    text = assert_same_error(io.BytesIO(on_cuda(new)))
    assert "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False" in text
    for location in ("cpu", torch.device("cpu"), {"cuda:0": "cpu"}, lambda storage, _: storage):
        found = rustload.torch.load(on_cuda(new), location)
        assert_same_graph(found, torch.load(io.BytesIO(on_cuda(new)), location))
    assert_same_error(io.BytesIO(on_cuda(new)), map_location={"cpu": "meta"})


def test_an_unknown_location_has_torchs_error():
    text = assert_same_error(io.BytesIO(saved(STATE)), map_location="nowhere")
    assert text.startswith("don't know how to restore data location of torch.storage.UntypedStorage")
    assert_same_error(io.BytesIO(saved(STATE)), map_location=7)


def permissions(address: int) -> str:
    """Those of the mapping that has an address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1]
    raise AssertionError("no mapping has the address")


@pytest.mark.parametrize("mmap", [False, True])
def test_a_registered_package_restores_its_location(save, *, mmap):
    """What is mapped only to go to another device is mapped read-only."""
    registry = torch.serialization._package_registry
    before = list(registry)
    asked: list[str] = []

    def deserialize(storage: Any, location: str) -> Any:
        if location != "elsewhere":
            return None
        asked.append(permissions(storage.data_ptr()))
        return storage.clone()

    torch.serialization.register_package(5, lambda _storage: None, deserialize)
    try:
        found = rustload.torch.load(save(STATE), {"cpu": "elsewhere"}, mmap=mmap)
    finally:
        registry[:] = before
    assert asked == ["r--p" if mmap else "rw-p"] * 2
    assert torch.equal(found["w"], STATE["w"])


@pytest.mark.parametrize("location", ["meta", torch.device("meta")], ids=str)
def test_meta_keeps_shapes_strides_and_the_offset_in_the_file(location, save):
    base = torch.arange(24.0).reshape(4, 6)
    path = save({"a": base, "t": base.t()[1:], "p": torch.nn.Parameter(torch.ones(2))})
    found = rustload.torch.load(path, location)
    assert_same_graph(found, torch.load(path, location))
    start = found["a"].untyped_storage()._checkpoint_offset
    assert path.read_bytes()[start : start + 96] == bits(base)
    assert isinstance(found["p"], torch.nn.Parameter)


def test_meta_reads_no_tensor_data(tmp_path):
    path = tmp_path / "large.pt"
    torch.save({"w": torch.zeros(8 << 20), "b": torch.zeros(5)}, path)
    code = """
    import sys, torch, rustload.torch
    from process_memory import read
    before = read()
    found = rustload.torch.load(sys.argv[1], "meta")
    assert found["w"].device.type == "meta"
    print(read() - before)
    """
    assert int(torch_child(code, path).stdout) < 100_000


def test_a_default_device_does_not_move_what_is_loaded():
    data = saved(STATE)
    with torch.device("meta"):
        assert_same_graph(rustload.torch.load(data), torch.load(io.BytesIO(data)))


def test_skip_data_reads_nothing():
    data = saved(STATE)
    with torch.serialization.skip_data():
        found, expected = rustload.torch.load(data), torch.load(io.BytesIO(data))
    assert_same_graph(found, expected, values=False)


def test_tensors_are_fake_under_a_fake_tensor_mode():
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    data = saved({"w": torch.ones(2, 3)})
    with FakeTensorMode():
        found, expected = (load(io.BytesIO(data))["w"] for load in LOADERS[::-1])
    assert isinstance(found, FakeTensor)
    assert (found.device, found.shape) == (expected.device, expected.shape)


ELSEWHERE = ', lambda storage, _: torch.UntypedStorage(storage.nbytes(), device="meta")'


@pytest.mark.parametrize(
    ("megabytes", "location", "peak"),
    [(384, ELSEWHERE, 100), (256, "", 256 + 24)],
    ids=["elsewhere-a-few-at-a-time", "here-the-tensors"],
)
def test_the_peak_of_loading(megabytes, location, peak, tmp_path):
    path = tmp_path / "large.pt"
    torch.save({f"t{n}": torch.zeros(4 << 20) for n in range(megabytes // 16)}, path)
    code = f"""
    import sys, torch, rustload.torch
    from process_memory import status
    rustload.torch.load(sys.argv[1], "meta")
    before = status("VmHWM")
    found = rustload.torch.load(sys.argv[1]{location})
    print(status("VmHWM") - before)
    """
    assert int(torch_child(code, path).stdout) < peak << 20


# Refused objects.


class Custom:
    def __init__(self) -> None:
        self.w = torch.ones(2)


REFUSED = {
    "a_class": (lambda: {"x": Custom()}, None),
    "a_builtin": (lambda: {"x": slice(1, 2)}, None),
    "a_function": (lambda: {"x": torch.nn.functional.relu}, None),
    "a_module": (lambda: torch.nn.Linear(1, 1), None),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("new", [True, False])
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_the_error_for_a_refused_name_has_the_name_in_torchs_error(name, new):
    data = saved(REFUSED[name][0](), _use_new_zipfile_serialization=new)
    with pytest.raises(pickle.UnpicklingError) as theirs:
        torch.load(io.BytesIO(data))
    with pytest.raises(pickle.UnpicklingError) as ours:
        rustload.torch.load(data, unknown="error")
    pattern = re.compile(r"GLOBAL (\S+) was not an allowed global by default")
    named = [pattern.search(str(info.value)) for info in (theirs, ours)]
    assert [found and found[1] for found in named] == [named[0] and named[0][1]] * 2
    assert named[0] is not None
    for info in (theirs, ours):
        assert str(info.value).startswith("Weights only load failed.")
    error = ours.value
    assert isinstance(error, rustload.DisallowedError)
    assert f"{error.module}.{error.name}".endswith(named[0][1])
    assert "unknown='keep'" in error.__notes__[0]


@pytest.mark.parametrize("module", ["sys", "os", "posix", "nt"])
def test_a_blocked_module_is_named_as_such(module):
    data = torch_zip(b"\x80\x02c" + module.encode() + b"\nsystem\n.")
    text = f"Trying to load unsupported GLOBAL {module}.system whose module {module} is blocked."
    with pytest.raises(pickle.UnpicklingError, match=re.escape(text)):
        torch.load(io.BytesIO(data))
    with pytest.raises(pickle.UnpicklingError, match=re.escape(text)):
        rustload.torch.load(data, unknown="error")
    assert isinstance(rustload.torch.load(data), rustload.Global)


def test_a_nested_tensor_is_named_as_such():
    data = torch_zip(b"\x80\x02ctorch._dynamo.decorators\n_DimRange\n.")
    text = "``torch.nested`` and ``torch._dynamo`` must be imported to load nested jagged tensors (NJTs)"
    with pytest.raises(pickle.UnpicklingError, match=re.escape(text)) as caught:
        rustload.torch.load(data, unknown="error")
    # To import them does not help here.
    assert "rustload does not load them, whatever is imported" in str(caught.value)


@pytest.mark.parametrize("name", ["DTensor", "placement_types.Shard", "_dtensor_spec.DTensorSpec"])
def test_a_part_of_a_dtensor_is_named_as_in_torch(name):
    module, _, attribute = f"torch.distributed.tensor.{name}".rpartition(".")
    data = torch_zip(f"\x80\x02c{module}\n{attribute}\n.".encode("latin1"))
    text = "``torch.distributed.tensor`` must be imported to load DTensors"
    code = f"import io, torch\ntry: torch.load(io.BytesIO({data!r}))\nexcept Exception as error: print(error)"
    assert text in torch_child(code).stdout
    with pytest.raises(pickle.UnpicklingError, match=re.escape(f"Weights only load failed. {text}")):
        rustload.torch.load(data, unknown="error")


def test_a_known_class_with_unknown_arguments_is_refused():
    data = torch_zip(b"\x80\x02ctorch\nFloatTensor\nK\x05\x85R.")
    with pytest.raises(pickle.UnpicklingError, match=r"Weights only load failed\..*torch.FloatTensor"):
        rustload.torch.load(data, unknown="error")
    kept = rustload.torch.load(data)
    assert isinstance(kept, rustload.Opaque)
    assert kept.args == (5,)


def test_refused_objects_are_kept_as_data_with_their_tensors():
    data = saved({"x": Custom(), "y": [slice(0, 3)], "f": torch.nn.functional.relu})
    found = rustload.torch.load(data)
    assert isinstance(found["x"], rustload.Opaque)
    assert torch.equal(found["x"].state["w"], torch.ones(2))
    assert found["y"][0].args == (0, 3, None)
    assert isinstance(found["f"], rustload.Global)


def test_safe_globals_of_the_user_are_kept_as_data():
    with torch.serialization.safe_globals([Custom]):
        data = saved({"x": Custom()})
        assert type(torch.load(io.BytesIO(data))["x"]) is Custom
        assert isinstance(rustload.torch.load(data)["x"], rustload.Opaque)


def test_the_list_of_allowed_names_is_torchs():
    from rustload.torch import _allowed

    theirs = torch._weights_only_unpickler._get_allowed_globals()
    assert set(theirs) == _allowed.NAMES
    for name, value in _allowed.VALUES.items():
        if isinstance(value, torch.serialization.StorageType):
            assert value.dtype == theirs[name].dtype
        else:
            assert value is theirs[name]


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_later_pickle_protocols_are_read(protocol):
    state = {"w": torch.arange(4.0), "s": {1, 2}, "n": [2**70, "x", None]}
    data = saved(state, pickle_protocol=protocol)
    for unknown in ("keep", "error"):
        found = rustload.torch.load(data, unknown=unknown)
        assert torch.equal(found.pop("w"), state["w"])
        assert found == {name: value for name, value in state.items() if name != "w"}


def test_views_of_torch_before_0_4_share_the_memory_of_their_root():
    from test_legacy import FLOATS, floats, stream, tensor

    parts = {"root": tensor(floats(), 0, (4,), (1,)), "view": tensor(floats(view=("9", 1, 2)), 0, (2,), (1,))}
    data = stream(parts, ["7"], [(4, FLOATS)])
    found, expected = rustload.torch.load(data), torch.load(io.BytesIO(data))
    for name, tensor_ in expected.items():
        assert torch.equal(found[name], tensor_)
    for loaded in (found, expected):
        assert loaded["view"].data_ptr() - loaded["root"].data_ptr() == 4


def test_numpy_arrays_are_tensors_and_scalars_are_numbers():
    import numpy as np

    data = saved({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "s": np.float64(0.5)})
    found = rustload.torch.load(data, map_location=lambda storage, _: storage)
    assert torch.equal(found["a"], torch.arange(6.0).reshape(2, 3))
    assert found["s"] == 0.5
    with pytest.raises(pickle.UnpicklingError, match="GLOBAL numpy"):
        rustload.torch.load(data, unknown="error")


def test_a_file_truncated_during_a_load_is_an_error(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({f"t{n}": torch.zeros(20 << 20) for n in range(2)}, path)

    def cut(storage: torch.UntypedStorage, _: str) -> torch.UntypedStorage:
        os.truncate(path, 1000)
        return storage

    with coded(rustload.FormatError, "FileChanged"):
        rustload.torch.load(path, cut)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "uint16", "bfloat16", "complex128"])
def test_dtypes_that_legacy_files_cannot_hold_are_loaded_with_mmap(dtype, save):
    expected = patterns(dtype, (3, 4))
    path = save({"t": expected.t()})
    assert_same_graph(rustload.torch.load(path, mmap=True), torch.load(path))


def edited(obj: Any, member: str, old: bytes, new: bytes) -> bytes:
    """A file of torch with bytes of one member replaced."""

    def change(name: str, data: bytes) -> bytes:
        assert data.count(old) == 1 or not name.endswith(f"/{member}")
        return data.replace(old, new) if name.endswith(f"/{member}") else data

    return repacked(saved(obj), change)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_indices_outside_the_shape_are_refused(layout):
    dense = torch.tensor([[0, 1.5, 0], [2, 0, 0]])
    member, index = ("data/0", struct.pack("<4q", 0, 1, 1, 0))
    wrong = struct.pack("<4q", 0, 1, 1 << 40, 0)
    if layout == torch.sparse_csr:
        member, index, wrong = "data/1", struct.pack("<2q", 1, 0), struct.pack("<2q", 1 << 40, 0)
    data = edited(dense.to_sparse(layout=layout), member, index, wrong)
    with coded(rustload.FormatError, "SparseInvariant"):
        rustload.torch.load(data)


@pytest.mark.filterwarnings("ignore:.*quantiz")
def test_an_expanded_quantized_tensor_allocates_no_more_than_its_storage():
    tensor = torch.quantize_per_tensor(torch.ones(1), 0.5, 0, torch.qint8)
    data = saved(tensor.expand(1 << 30))
    before = rss_anon()
    found = rustload.torch.load(data)
    assert found.shape == (1 << 30,)
    assert found.untyped_storage().nbytes() == 1
    assert rss_anon() - before < 64 << 20


def test_an_attribute_of_the_file_that_is_a_property_of_the_tensor_is_refused():
    tensor = torch.arange(3.0)
    vars(tensor).update(mine=1)
    data = edited(tensor, "data.pkl", b"X\x04\x00\x00\x00mine", b"X\x04\x00\x00\x00data")
    # torch sets the property, which fails for a number.
    with pytest.raises(TypeError):
        torch.load(io.BytesIO(data), weights_only=False)
    with pytest.raises(rustload.UnsupportedError, match="sets its property"):
        rustload.torch.load(data)


def test_an_unknown_subclass_loads_as_its_plain_tensor():
    class Mine(torch.Tensor):
        pass

    tensor = torch.arange(3.0).as_subclass(Mine)
    tensor.note = "kept"  # type: ignore[attr-defined]
    Mine.__module__, Mine.__qualname__ = __name__, "Mine"
    globals()["Mine"] = Mine
    data = saved(tensor)
    found = rustload.torch.load(data)
    assert type(found) is torch.Tensor
    assert vars(found) == {"note": "kept"}
    with pytest.raises(pickle.UnpicklingError, match="GLOBAL"):
        rustload.torch.load(data, unknown="error")
