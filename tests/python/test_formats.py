"""The tables of `docs/reference/formats.md`, and more rows of their kinds: each cell is checked on files of the stock writers."""

from __future__ import annotations

import argparse
import bz2
import collections
import datetime
import functools
import gzip
import io
import json
import lzma
import pathlib
import pickle
import re
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint
from process_memory import read
from support import Reduced, deflated, saved

import rustload

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "formats.md"
COUNT = 2 << 20
NBYTES = COUNT * 4
# Opening a file or reading a slice may read this much metadata in addition: a legacy stream's head is read as 1 MiB at once.
READ_OVERHEAD = 2 << 20


def table(heading: str) -> list[dict[str, str]]:
    """The rows of the first table under a heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert all(len(row) == len(heads) for row in rows)
    return [dict(zip(heads, row, strict=True)) for row in rows]


def rows_of(heading: str, first: str = "file", more: Sequence[tuple[str, str]] = ()) -> Any:
    """Parametrizes a test with the rows of a table, and with more of two columns."""
    rows = table(heading)
    rows += [dict(zip(rows[0], (f"`{one}`", f"`{two}`"), strict=True)) for one, two in more]
    return pytest.mark.parametrize("row", [pytest.param(row, id=row[first]) for row in rows])


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


# Supported formats


class Buffers(torch.nn.Module):
    """A module that TorchScript can save: these tensors are its buffers."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def torchscript(tensors: dict[str, torch.Tensor]) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, its files are still read
        torch.jit.save(torch.jit.script(Buffers(tensors)), file)
    return file.getvalue()


@pytest.mark.parametrize(
    "name",
    ["uint16", "uint32", "uint64", "complex32", "float4_e2m1fn_x2", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2"]
    + [f"float8_{form}" for form in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_torchscript_has_storage_classes_of_its_own(name):
    stored = torch.arange(8, dtype=torch.uint8).view(getattr(torch, name))
    found = rustload.open(torchscript({"w": stored}))["w"].materialize(framework="torch")
    assert found.dtype == stored.dtype
    assert torch.equal(found.view(torch.uint8), stored.view(torch.uint8))


def arrays(tensors: dict[str, torch.Tensor]) -> bytes:
    by_address = {tensor.data_ptr(): tensor.numpy() for tensor in tensors.values()}
    return pickle.dumps({name: by_address[tensor.data_ptr()] for name, tensor in tensors.items()}, protocol=4)


def pickled(tensors: dict[str, torch.Tensor]) -> bytes:
    return pickle.dumps(tensors, protocol=4)


def savez(tensors: dict[str, torch.Tensor], write: Callable[..., None] = np.savez) -> bytes:
    file = io.BytesIO()
    write(file, **{name: tensor.numpy() for name, tensor in tensors.items()})
    return file.getvalue()


def exported(tensors: dict[str, torch.Tensor]) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a buffer has no name that ends in .pt2
        torch.export.save(torch.export.export(Buffers(tensors), (torch.ones(1),)), file)
    return file.getvalue()


WRITERS: dict[str, Callable[[dict[str, torch.Tensor]], bytes]] = {
    "torch zip": saved,
    "torch zip, deflated": lambda tensors: deflated(saved(tensors)),
    "TorchScript archive": torchscript,
    "legacy stream": lambda tensors: saved(tensors, _use_new_zipfile_serialization=False),
    "bare pickle": arrays,
    "bare pickle of torch tensors": pickled,
    "safetensors": safetensors.torch.save,
    "NumPy archive (.npz)": savez,
    "NumPy archive, deflated": lambda tensors: savez(tensors, np.savez_compressed),
    "exported program (.pt2)": exported,
}

formats = rows_of("Supported formats")
given = pytest.mark.parametrize("given", ["one file", "list", "folder"])
Written = tuple[Any, list[Path]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Written]:
    """Writes tensors in a row's format, as one file or with a second shard; returns what to open, and the files."""

    def run(row: dict[str, str], given: str, tensors: dict[str, torch.Tensor]) -> Written:
        stem, suffix = (
            ("model", ".safetensors") if row["file"] == "safetensors" else ("pytorch_model", ".bin")
        )
        parts = [tensors] if given == "one file" else [tensors, {"other": torch.arange(3.0)}]
        files = []
        for number, part in enumerate(parts, 1):
            files.append(tmp_path / f"{stem}-{number:05}-of-{len(parts):05}{suffix}")
            files[-1].write_bytes(WRITERS[row["file"]](part))
        if given == "folder":
            weight_map = {name: file.name for part, file in zip(parts, files, strict=True) for name in part}
            index = {"metadata": {}, "weight_map": weight_map}
            (tmp_path / f"{stem}{suffix}.index.json").write_text(json.dumps(index))
        return {"one file": files[0], "list": files, "folder": tmp_path}[given], files

    return run


def large() -> torch.Tensor:
    """Random floats, which do not compress."""
    return torch.rand(COUNT, generator=torch.Generator().manual_seed(0))


def test_every_row_has_its_writer_and_every_writer_its_row():
    assert [row["file"] for row in table("Supported formats")] == list(WRITERS)


@given
@formats
def test_format(row, given, write):
    path, _ = write(row, given, {"w": torch.ones(2, 3)})
    ckpt = rustload.open(path)
    assert [ckpt.format] == codes(row["`format`"])
    assert ckpt["w"].materialize().tolist() == [[1.0] * 3] * 2


@given
@formats
def test_lazy(row, given, write):
    path, _ = write(row, given, {"w": large()})
    before = read()
    ckpt = rustload.open(path)
    spent = read() - before
    assert {"yes": spent < READ_OVERHEAD, "no": spent >= NBYTES}[row["lazy"]], spent
    assert ckpt["w"].shape == (COUNT,)


@given
@formats
def test_slice(row, given, write):
    want = large()
    path, _ = write(row, given, {"w": want})
    ckpt = rustload.open(path)
    before = read()
    part = ckpt["w"][10:20_010].materialize(copy=True)
    spent = read() - before
    assert torch.equal(part, want[10:20_010])
    expected = {
        "yes": 80_000 <= spent < READ_OVERHEAD,
        "storage": spent > NBYTES // 2,
        "memory": spent < 4096,
    }
    assert expected[row["slice"]], spent


@given
@formats
def test_ties(row, given, write):
    shared = torch.arange(6.0)
    if row["ties"] == "none":
        if row["file"] == "safetensors":
            with pytest.raises(RuntimeError, match="share memory"):
                WRITERS[row["file"]]({"a": shared, "b": shared})
        else:  # written twice
            path, _ = write(row, given, {"a": shared, "b": shared})
            assert rustload.open(path).tied == []
        path, _ = write(row, given, {"a": shared, "b": shared.clone()})
        assert rustload.open(path).tied == []
        return
    assert row["ties"] == "yes"
    path, _ = write(row, given, {"a": shared, "b": shared, "c": torch.ones(6)})
    ckpt = rustload.open(path)
    assert ckpt.tied == [["a", "b"]]
    a, b, c = (ckpt[name].materialize() for name in "abc")
    a.zero_()
    assert b.tolist() == [0] * 6
    assert c.tolist() == [1] * 6


@given
@formats
def test_view(row, given, write):
    seen = set()
    # The length of the name changes the address of the elements.
    for length in range(1, 9):
        name = "n" * length
        path, _ = write(row, given, {name: torch.arange(6.0)})
        if row["file"] == "safetensors" and given == "one file":
            unpad(path, length)
        t = rustload.open(path, framework="numpy")[name]
        assert t.materialize().tolist() == [0, 1, 2, 3, 4, 5]
        try:
            view = t.materialize(copy=False, writable=True)
        except BufferError as error:
            seen.add(f"no: `{error.code}`")  # type: ignore[attr-defined]
        else:
            view[0] = 7
            assert t.materialize(writable=True)[0] == 7
            assert t.materialize(copy=True)[0] == 0
            seen.add("yes")
    if row["view"] != "if aligned":
        assert seen == {row["view"]}
    elif row["file"] == "safetensors" and given != "one file":
        assert seen == {"yes"}  # the stock writer aligns
    else:
        assert seen == {"yes", "no: `Buffer`"}


def unpad(path: Path, spaces: int) -> None:
    """Replaces the padding of a safetensors header by this many spaces."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].rstrip() + b" " * spaces
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])


@given
@formats
def test_truncated(row, given, write):
    path, files = write(row, given, {"w": torch.ones(2)})
    files[-1].write_bytes(files[-1].read_bytes()[:-1])
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(path)
    assert [caught.value.code] == codes(row["truncated"])
    assert caught.value.path == str(files[-1])


@given
@formats
def test_trailing_bytes(row, given, write):
    path, files = write(row, given, {"w": torch.ones(2)})
    files[-1].write_bytes(files[-1].read_bytes() + b"\0")
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(path)
    assert [caught.value.code] == codes(row["trailing bytes"])
    if row["file"] == "safetensors":
        with pytest.raises(rustload.FormatError):
            rustload.open(path, trailing="ignore")
    else:
        assert "w" in rustload.open(path, trailing="ignore")


def test_a_pickle_that_names_a_storage_is_refused():
    with zipfile.ZipFile(io.BytesIO(saved({"w": torch.ones(2)}))) as archive:
        data = archive.read("archive/data.pkl")
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(data)
    assert caught.value.code == "PersistentId"


# Recognized formats that are not supported


def tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("notes.txt"), io.BytesIO())
    return file.getvalue()


def keras() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            archive.writestr(name, "{}")
    return file.getvalue()


def skops(*, arrays: bool) -> bytes:
    """An archive as `skops.io._persist._save` writes it: arrays first, then their description."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        if arrays:
            array = io.BytesIO()
            np.save(array, np.ones(2))
            archive.writestr("140231.npy", array.getvalue())
        archive.writestr("schema.json", '{"__class__": "dict", "protocol": 2, "_skops_version": "0.13"}')
    return file.getvalue()


def package(folder: Path) -> Path:
    with torch.package.PackageExporter(folder / "package.pt") as exporter:
        exporter.save_pickle("model", "config.pkl", {"layers": 1})
    return folder / "package.pt"


def stable_baselines() -> bytes:
    file, policy = io.BytesIO(), io.BytesIO()
    torch.save({"w": torch.ones(1)}, policy)
    with zipfile.ZipFile(file, "w") as archive:
        for name in ("data", "pytorch_variables.pth", "policy.pth"):
            archive.writestr(name, policy.getvalue())
    return file.getvalue()


def orbax(folder: Path) -> list[Path | bytes]:
    """The folders of a step and of its item, and the manifest: the names and the magic number are what counts."""
    step = folder / "orbax"
    item = step / "default"
    item.mkdir(parents=True)
    manifest = b"\x0c\xdb\x3a\x2a" + bytes(60)
    (step / "_CHECKPOINT_METADATA").write_text("{}")
    (item / "_METADATA").write_text("{}")
    (item / "manifest.ocdbt").write_bytes(manifest)
    store = item / "ocdbt.process_0"
    store.mkdir()
    (store / "manifest.ocdbt").write_bytes(manifest)
    return [step, item, store, manifest]


def joblib_files(folder: Path) -> list[Path]:
    paths = [folder / f"{protocol}.joblib" for protocol in (2, 4)]
    for path, protocol in zip(paths, (2, 4), strict=True):
        joblib.dump({"w": np.arange(300.0), "n": 3}, path, protocol=protocol)
    return paths


def core_ml(folder: Path) -> list[Path | bytes]:
    """A model's specification version and the name of its first input; a package, by its folders."""
    package = folder / "model.mlpackage"
    (package / "Data" / "com.apple.CoreML" / "weights").mkdir(parents=True)
    (package / "Manifest.json").write_text("{}")
    return [package, b"\x08\x04\x12\x1e\x0a\x0c\x0a\x05image\x1a\x03" + bytes(32)]


def flax() -> bytes:
    """`flax.serialization.to_bytes({"params": {"w": np.ones(1, "float32")}})`."""
    return b"\x81\xa6params\x81\xa1w\xc7\x12\x01\x93\x91\x01\xa7float32\xc4\x04\x00\x00\x80\x3f"


def distributed(folder: Path) -> list[Path]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the single process
        torch.distributed.checkpoint.save(
            {"w": torch.ones(2), "b": torch.ones(3)}, checkpoint_id=folder / "dcp", no_dist=True
        )
    files = sorted((folder / "dcp").glob("*.distcp"))
    assert (folder / "dcp" / ".metadata").exists()
    assert files
    return files


REFUSED: dict[str, tuple[str, str, Callable[[Path], Sequence[bytes | Path]]]] = {
    "tar archive of other files": ("TarUnsupported", "Unpack it", lambda _: [tar()]),
    "file of chunks (`.distcp`) of a distributed checkpoint": (
        "UnknownFormat",
        "Open the folder",
        distributed,
    ),
    "GGUF": ("UnknownFormat", "llama.cpp or the gguf package", lambda _: [b"GGUF\x03\0\0\0" + bytes(16)]),
    "HDF5": ("UnknownFormat", "h5py", lambda _: [b"\x89HDF\r\n\x1a\n" + bytes(88)]),
    "Keras archive (.keras)": ("UnknownFormat", "keras.saving.load_model", lambda _: [keras()]),
    "gzip, xz, bzip2, zlib": (
        "UnsupportedContainer",
        "Unpack it",
        lambda _: [pack(b"x") for pack in (gzip.compress, lzma.compress, bz2.compress, zlib.compress)],
    ),
    "Git LFS pointer": (
        "UnknownFormat",
        "git lfs pull",
        lambda _: [b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"],
    ),
    "saved web page": ("UnknownFormat", "fetch the file itself", lambda _: [b"<!DOCTYPE html><html></html>"]),
    "ONNX": (
        "UnknownFormat",
        "onnx.load or onnxruntime",
        lambda _: [b"\x08\x07\x12\x07pytorch\x1a\x052.6.0" + bytes(16)],
    ),
    "TensorFlow Lite": ("UnknownFormat", "LiteRT", lambda _: [b"\x1c\0\0\0TFL3" + bytes(16)]),
    "Flax (.msgpack)": ("UnknownFormat", "flax.serialization.msgpack_restore", lambda _: [flax()]),
    "MXNet parameters (.params)": (
        "UnknownFormat",
        "mxnet.nd.load",
        lambda _: [(0x112).to_bytes(8, "little") + bytes(8) + b"\1" + bytes(15)],
    ),
    "orbax checkpoint, and its OCDBT store": ("UnknownFormat", "orbax.checkpoint", orbax),
    "skops": ("UnknownFormat", "skops.io.load", lambda _: [skops(arrays=False), skops(arrays=True)]),
    "torch.package": ("UnknownFormat", "PackageImporter", lambda folder: [package(folder)]),
    "zip archive of checkpoints": ("RecordMissing", '"policy.pth"', lambda _: [stable_baselines()]),
    "joblib, with arrays": ("UnknownFormat", "joblib.load", joblib_files),
    "Core ML (.mlmodel, .mlpackage)": ("UnknownFormat", "coremltools", core_ml),
    "text of a failed download": (
        "UnknownFormat",
        "fetch the file again",
        lambda _: [b"Entry not found", b'{"error": "Repository not found"}'],
    ),
    "JSON": ("UnknownFormat", "open its directory", lambda _: [b'{"weight_map": {}}', b"[]\n      "]),
    "empty file": ("UnknownFormat", "fetch the file again", lambda _: [b""]),
}
"""Files of other formats: the code of the error, what its notes say, and how one is made."""


@pytest.mark.parametrize(("code", "next_step", "make"), REFUSED.values(), ids=REFUSED)
def test_refused(code, next_step, make, tmp_path):
    for given in make(tmp_path):
        with pytest.raises((rustload.FormatError, rustload.UnsupportedError)) as caught:
            # bytes that are plain text could be a path
            rustload.open(bytearray(given) if isinstance(given, bytes) else given)
        assert caught.value.code == code
        assert next_step in " ".join(caught.value.__notes__)


# NumPy files

ARRAYS: list[list[np.ndarray]] = [
    [
        np.ones((2, 3), order + code).copy(layout)
        for code in ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")
        for order in "<>"
        for layout in "CF"
    ],
    [np.array([None])],
    [
        np.array(["a"]),
        np.array([b"a"]),
        np.zeros(1, "M8[s]"),
        np.zeros(1, "m8[s]"),
        np.zeros(1, [("x", "f4")]),
        np.zeros(1, np.longdouble),
        np.zeros(1, "V2"),
    ],
]


@pytest.mark.parametrize(
    ("row", "arrays"),
    list(zip(table("NumPy files"), ARRAYS, strict=True)),
    ids=["numbers", "objects", "others"],
)
def test_elements_of_numpy_files(row, arrays):
    classes = set()
    for array in arrays:
        alone, packed = io.BytesIO(), io.BytesIO()
        np.save(alone, array)
        np.savez(packed, a=array, w=np.ones(1))
        ckpt = rustload.open(packed, framework="numpy")
        if row["`.npy`"] == row["in an archive"] == "tensor":
            assert list(ckpt) == ["a", "w"]
            found = [ckpt["a"], rustload.open(alone, framework="numpy")["arr_0"]]
            assert all(np.array_equal(t.materialize(), array) for t in found)
            assert not array.flags.fnc or found[1].strides == (1, 2)
            continue
        with pytest.raises(rustload.UnsupportedError) as caught:
            rustload.open(alone)
        assert [caught.value.code] == codes(row["`.npy`"])
        with pytest.raises(rustload.UnsupportedError):
            rustload.open(packed, unknown="error")
        assert list(ckpt) == ["w"]
        classes |= {opaque.class_name for opaque in ckpt.opaque}
    assert {name for name in codes(row["in an archive"]) if name.startswith("numpy.")} <= classes


# Names, objects, rebuilds

EVAL_NAMES: dict[str, Any] = {
    "argparse": argparse,
    "collections": collections,
    "datetime": datetime,
    "functools": functools,
    "np": np,
    "pathlib": pathlib,
    "torch": torch,
    "w": torch.ones(2),
}


def value_of(cell: str) -> Any:
    return eval(cell.strip("`"), dict(EVAL_NAMES))


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
@rows_of("Tensor names", "saved")
def test_names(row, zip_format):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.save cannot find the source of some modules
        data = saved(value_of(row["saved"]), _use_new_zipfile_serialization=zip_format)
    assert list(rustload.open(data)) == codes(row["names"])


MORE_OBJECTS = [
    ("w.untyped_storage()", "<LazyTensor 'tensor' uint8 [8] 8 B>"),
    ('torch.device("cpu")', "<opaque torch.device>"),
    ("collections.defaultdict(None, a=1)", "collections.defaultdict(None, a=1)"),
    ("torch.nn.Parameter(w)", "<LazyTensor 'tensor' float32 [2] 8 B parameter>"),
    ("np.array([None])", "<opaque numpy._core.multiarray._reconstruct>"),
    ('np.zeros(2, dtype=[("a", "f4")])', "<opaque numpy._core.multiarray._reconstruct>"),
    ('np.datetime64("2020-01-01")', "<opaque numpy._core.multiarray.scalar>"),
    ('np.dtype("f4")', "<opaque numpy.dtype>"),
    ("slice(1, 2)", "<opaque builtins.slice>"),
    ("collections.OrderedDict", "<global collections.OrderedDict>"),
    ('pathlib.PurePosixPath("a")', "<opaque pathlib.PurePosixPath>"),
    ("datetime.timedelta(1)", "<opaque datetime.timedelta>"),
]


@rows_of("Values in `ckpt.objects`", "saved", MORE_OBJECTS)
def test_objects(row):
    found = rustload.open(saved(value_of(row["saved"]))).objects
    if isinstance(found, rustload.DefaultDict):
        factory = found.factory
        assert row["found"] == f"`<DefaultDict of {factory.module}.{factory.name} {dict(found)}>`"
    elif row["found"].startswith("`<"):
        # NumPy 1 and CPython 3.13 write other names of these modules.
        shown = repr(found).replace("numpy.core", "numpy._core").replace("pathlib._local", "pathlib")
        assert shown == row["found"].strip("`")
    else:
        expected = value_of(row["found"])
        assert type(found) is type(expected)
        assert repr(found) == repr(expected)


def test_small_torch_values_are_not_opaque():
    values = [torch.device("cpu"), slice(1, 2), torch.float32, np.dtype("f4"), w := torch.ones(1), w.layout]
    assert rustload.open(saved(values), unknown="error").opaque == []


class Subclass(torch.Tensor):
    """A tensor with another class and nothing else."""


class Wrapper(torch.Tensor):
    """A subclass without a storage: its tensor is an attribute."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        wrapper = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        wrapper.inner = inner
        return wrapper  # type: ignore[return-value]  # torch's stubs say a plain tensor

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(function)


def with_attributes() -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.note, tensor.mask = "x", torch.zeros(2)  # type: ignore[attr-defined]
    return tensor


def old_object(kind: Any) -> Reduced:
    """An empty object on which BUILD sets data, flags and hooks (an old variable) or a storage (an old tensor)."""
    w = torch.ones(2)
    state = (w._typed_storage(), 0, (2,), (1,)) if kind is torch.FloatTensor else (w, None, {}, True, False)
    return Reduced(kind, (), state)


def per_channel(dtype: torch.dtype) -> torch.Tensor:
    scales, zeros = torch.full((2,), 0.5), torch.zeros(2)
    zeros = zeros if dtype == torch.quint4x2 else zeros.long()
    return torch.quantize_per_channel(torch.ones(2, 3), scales, zeros, 0, dtype)


def parameter_with_attributes() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.note = "x"  # type: ignore[attr-defined]
    return parameter


REBUILT: dict[str, tuple[str, str, str, Callable[[], Any]]] = {
    "a tensor of torch 0.1": (
        "torch._utils._rebuild_tensor",
        "tensor",
        "tensor",
        lambda: Reduced(torch._utils._rebuild_tensor, (torch.ones(2)._typed_storage(), 0, (2,), (1,))),
    ),
    "a tensor": ("torch._utils._rebuild_tensor_v2", "tensor", "tensor", lambda: torch.ones(2)),
    "a lazy conjugate": (
        "torch._utils._rebuild_tensor_v2",
        "tensor",
        "tensor",
        lambda: torch.ones(2, dtype=torch.complex64).conj(),
    ),
    "a tensor of uint16": (
        "torch._utils._rebuild_tensor_v3",
        "tensor",
        "tensor",
        lambda: torch.ones(2, dtype=torch.uint16),
    ),
    "a parameter": (
        "torch._utils._rebuild_parameter",
        "tensor",
        "tensor",
        lambda: torch.nn.Parameter(torch.ones(2)),
    ),
    "a parameter with attributes": (
        "torch._utils._rebuild_parameter_with_state",
        "tensor",
        "tensor",
        parameter_with_attributes,
    ),
    "a tensor of a subclass": (
        "torch._tensor._rebuild_from_type_v2",
        "tensor",
        "tensor",
        lambda: torch.ones(2).as_subclass(Subclass),
    ),
    "a tensor with attributes": (
        "torch._tensor._rebuild_from_type_v2",
        "tensor",
        "tensor, mask",
        with_attributes,
    ),
    "a tensor of a subclass, torch 1.6": (
        "torch._tensor._rebuild_from_type",
        "tensor",
        "tensor",
        lambda: Reduced(
            torch._tensor._rebuild_from_type,
            (torch._utils._rebuild_tensor, Subclass, (torch.ones(2)._typed_storage(), 0, (2,), (1,)), {}),
        ),
    ),
    "a parameter of torch 0.3": (
        "torch.nn.parameter.Parameter",
        "tensor",
        "tensor",
        lambda: old_object(torch.nn.Parameter),
    ),
    "a variable of torch 0.3": (
        "torch.autograd.variable.Variable",
        "tensor",
        "tensor",
        lambda: old_object(torch.autograd.Variable),
    ),
    "an object of torch.FloatTensor": (
        "torch.FloatTensor",
        "tensor",
        "tensor",
        lambda: old_object(torch.FloatTensor),
    ),
    "a tensor of complex32": (
        "torch._utils._rebuild_tensor_v3",
        "tensor",
        "tensor",
        lambda: torch.ones(2, dtype=torch.complex32),
    ),
    "a tensor of float4_e2m1fn_x2": (
        "torch._utils._rebuild_tensor_v3",
        "tensor",
        "tensor",
        lambda: torch.ones(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    ),
    "a tensor of bits8": (
        "torch._utils._rebuild_tensor_v3",
        "tensor",
        "tensor",
        lambda: torch.ones(2, dtype=torch.uint8).view(torch.bits8),
    ),
    "a meta tensor": (
        "torch._utils._rebuild_meta_tensor_no_storage",
        "tensor",
        "tensor",
        lambda: torch.ones(2, device="meta"),
    ),
    "a device tensor from numpy": (
        "torch._utils._rebuild_device_tensor_from_numpy",
        "tensor",
        "tensor",
        lambda: Reduced(
            torch._utils._rebuild_device_tensor_from_numpy, (np.ones(2, "f4"), torch.float32, "cpu", False)
        ),
    ),
    "a device tensor from the cpu": (
        "torch._utils._rebuild_device_tensor_from_cpu_tensor",
        "tensor",
        "tensor",
        lambda: Reduced(
            torch._utils._rebuild_device_tensor_from_cpu_tensor, (torch.ones(2), torch.float32, "cpu", False)
        ),
    ),
    "a tensor quantized as a whole": (
        "torch._utils._rebuild_qtensor",
        "tensor",
        "tensor",
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    ),
    "a tensor quantized by channel": (
        "torch._utils._rebuild_qtensor",
        "tensor",
        "tensor, scale, zero_point",
        lambda: per_channel(torch.qint8),
    ),
    "a tensor of quint4x2": (
        "torch._utils._rebuild_qtensor",
        "tensor",
        "tensor, scale, zero_point",
        lambda: per_channel(torch.quint4x2),
    ),
    "a sparse COO tensor": (
        "torch._utils._rebuild_sparse_tensor",
        "sparse",
        "indices, values",
        lambda: torch.eye(2).to_sparse(),
    ),
    "a sparse CSR tensor": (
        "torch._utils._rebuild_sparse_tensor",
        "sparse",
        "crow_indices, col_indices, values",
        lambda: torch.eye(2).to_sparse_csr(),
    ),
    "a sparse CSC tensor": (
        "torch._utils._rebuild_sparse_tensor",
        "sparse",
        "ccol_indices, row_indices, values",
        lambda: torch.eye(2).to_sparse_csc(),
    ),
    "a sparse BSR tensor": (
        "torch._utils._rebuild_sparse_tensor",
        "sparse",
        "crow_indices, col_indices, values",
        lambda: torch.eye(2).to_sparse_bsr((1, 1)),
    ),
    "a sparse BSC tensor": (
        "torch._utils._rebuild_sparse_tensor",
        "sparse",
        "ccol_indices, row_indices, values",
        lambda: torch.eye(2).to_sparse_bsc((1, 1)),
    ),
    "a nested tensor": (
        "torch._utils._rebuild_nested_tensor",
        "opaque",
        "args.0, args.1, args.2, args.3",
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    ),
    "a wrapper subclass": (
        "torch._utils._rebuild_wrapper_subclass",
        "opaque",
        "inner",
        lambda: Wrapper(torch.ones(2)),
    ),
    "a device tensor of another dtype than its array": (
        "torch._utils._rebuild_device_tensor_from_numpy",
        "opaque",
        "args.0",
        lambda: Reduced(
            torch._utils._rebuild_device_tensor_from_numpy, (np.ones(2, "f4"), torch.bfloat16, "cpu", False)
        ),
    ),
}
"""Saved values: the function that the pickle names, what is found, the names of tensors, and how one is made."""


@pytest.mark.parametrize(("function", "kind", "names", "make"), REBUILT.values(), ids=REBUILT)
def test_rebuild_functions(function, kind, names, make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse CSR, nested and quantized tensors warn when they are made
        data = saved(make())
    ckpt = rustload.open(data)
    assert function in ckpt.globals
    assert list(ckpt) == names.split(", ")
    kinds = {"tensor": rustload.LazyTensor, "opaque": rustload.Opaque, "sparse": rustload.Sparse}
    assert isinstance(ckpt.objects, kinds[kind])
