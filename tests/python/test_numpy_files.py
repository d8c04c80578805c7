"""`.npy` files and `.npz` archives: every result is compared with what `numpy.load` reads."""

import io
import itertools
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attacks.n_numpy import npy as npy_bytes
from attacks.n_numpy import plain
from hypothesis import given, settings
from hypothesis import strategies as st
from support import Reduced, cli, coded

import rustload
import rustload.torch

CODES = ("b1", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")
SHAPES: tuple[tuple[int, ...], ...] = (
    (),
    (1,),
    (7,),
    (0,),
    (3, 0, 2),
    (2, 3),
    (5, 1),
    (2, 3, 4),
    (1, 1, 1, 2),
)
VERSIONS: tuple[tuple[int, int], ...] = ((1, 0), (2, 0), (3, 0))


def random_array(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Random bit patterns; bools are 0 or 1."""
    made = np.dtype(dtype)
    count = int(np.prod(shape, dtype=int)) * made.itemsize
    data = np.random.default_rng(count).integers(0, 2 if made.kind == "b" else 256, count, dtype="u1")
    return data.view(made).reshape(shape)


def npy(array: np.ndarray, version: tuple[int, int] | None = None, **options: Any) -> bytes:
    """What NumPy writes."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version, **options)
    return file.getvalue()


def npz(save: Callable[..., None] = np.savez, /, *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    file = io.BytesIO()
    save(file, *arrays, **named)
    return file.getvalue()


def same(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal to the bit, in native byte order."""
    native = expected.dtype.newbyteorder("=")
    assert (found.dtype, found.shape) == (native, expected.shape)
    assert found.tobytes() == expected.astype(native).tobytes()


def opened(data: bytes, **options: Any) -> rustload.Checkpoint:
    return rustload.open(bytearray(data), framework="numpy", **options)


# Equal to NumPy


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("order", ["<", ">", "=", "|"])
@pytest.mark.parametrize("code", CODES)
def test_a_npy_file_is_what_numpy_loads(tmp_path, code, order, version):
    for shape, layout in itertools.product(SHAPES, "CF"):
        array = random_array("<" + code if order in "=|" else order + code, shape).copy(layout)
        data = npy(array, version)
        if order in "=|":  # NumPy writes neither for numbers of several bytes
            data = data.replace(f"'{array.dtype.str}'".encode(), f"'{order}{code}'".encode(), 1)
        path = tmp_path / "array.npy"
        path.write_bytes(data)
        expected = np.load(path)
        ckpt = rustload.open(path, framework="numpy")
        assert (ckpt.format, list(ckpt)) == ("npy", ["arr_0"])
        t = ckpt["arr_0"]
        assert (t.shape, t.nbytes) == (expected.shape, expected.nbytes)
        for copy in (None, True):
            same(t.materialize(copy=copy), expected)
        same(opened(data)["arr_0"].materialize(), expected)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_of_no_arrays_is_an_empty_checkpoint(save, tmp_path):
    save(tmp_path / "none.npz")
    assert np.load(tmp_path / "none.npz").files == []
    ckpt = rustload.open(tmp_path / "none.npz")
    assert (ckpt.format, list(ckpt)) == ("npz", [])
    # Under another name it may be what is left of any archive.
    (tmp_path / "none.npz").rename(tmp_path / "none.pt")
    with coded(rustload.FormatError, "ZipStructure"):
        rustload.open(tmp_path / "none.pt")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_is_what_numpy_loads(tmp_path, save):
    made = {
        f"{code}/{order}{layout}{number}": random_array(order + code, shape).copy(layout)
        for code, order, layout, (number, shape) in itertools.product(CODES, "<>", "CF", enumerate(SHAPES))
    }
    path = tmp_path / "arrays.npz"
    save(path, **made)
    ckpt = rustload.open(path, framework="numpy", verify=True, unknown="error")
    with np.load(path) as expected:
        assert (ckpt.format, list(ckpt)) == ("npz", expected.files)
        assert list(ckpt) == list(made)
        for name in expected.files:
            same(ckpt[name].materialize(), expected[name])
            same(ckpt[name].materialize(copy=True), expected[name])
    assert ckpt.opaque == []
    assert ckpt.notes == []


def test_unnamed_arrays_have_the_names_that_numpy_gives_them():
    data = npz(np.savez, np.ones(2), np.zeros(3), other=np.ones(1))
    assert sorted(opened(data)) == ["arr_0", "arr_1", "other"]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_archive_written_to_a_pipe_opens(save):
    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise io.UnsupportedOperation

        def tell(self) -> int:
            raise io.UnsupportedOperation

    file = Pipe()
    save(file, a=np.arange(5.0), b=np.arange(3))
    assert int.from_bytes(file.getvalue()[6:8], "little") & 8, "sizes are in a data descriptor"
    ckpt = opened(file.getvalue(), verify=True)
    same(ckpt["a"].materialize(), np.arange(5.0))
    same(ckpt["b"].materialize(), np.arange(3))


@pytest.mark.skipif(
    sys.version_info < (3, 11, 4), reason="older versions of zipfile write the sizes into both"
)
def test_local_headers_of_numpy_have_their_sizes_in_a_zip64_field_only():
    data = npz(np.savez, a=np.ones(2))
    assert data[18:26] == b"\xff" * 8
    assert data[6:8] == bytes(2)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.infolist()[0].extra == b""
    assert list(opened(data)) == ["a"]


def test_an_archive_of_many_arrays_opens():
    made = {f"layers.{number}.weight": np.full(3, number, "f4") for number in range(3000)}
    ckpt = opened(npz(np.savez, **made))
    assert list(ckpt) == list(made)
    for name, array in ckpt.materialize().items():
        same(array, made[name])


# Views, slices, casts, streams


def test_a_npy_file_is_viewed_and_views_share(tmp_path):
    path = tmp_path / "array.npy"
    np.save(path, np.arange(24.0).reshape(4, 6))
    t = rustload.open(path, framework="numpy")["arr_0"]
    one, two = (lazy.materialize(copy=False, writable=True) for lazy in (t, t[1:]))
    one[1, 0] = -1
    assert two[0, 0] == -1
    assert t.materialize(copy=True)[1, 0] == 6
    assert np.load(path)[1, 0] == 6


def test_a_fortran_array_is_a_view_with_its_strides(tmp_path):
    path = tmp_path / "array.npy"
    array = np.asfortranarray(np.arange(24.0).reshape(2, 3, 4))
    np.save(path, array)
    t = rustload.open(path, framework="numpy")["arr_0"]
    assert t.strides == (1, 2, 6)
    view = t.materialize(copy=False)
    assert view.strides == array.strides
    same(view, array)
    assert t.materialize(copy=True).flags.c_contiguous


def test_a_big_endian_array_has_no_view(tmp_path):
    path = tmp_path / "array.npy"
    np.save(path, np.arange(3, dtype=">i4"))
    t = rustload.open(path, framework="numpy")["arr_0"]
    with coded(BufferError, "Buffer"):
        t.materialize(copy=False)
    same(t.materialize(), np.arange(3, dtype="i4"))
    np.save(path, np.arange(3, dtype=">u1"))
    rustload.open(path, framework="numpy")["arr_0"].materialize(copy=False)


@pytest.mark.parametrize("write", ["npy", "npy_unaligned", "npz", "npz_deflated"])
@pytest.mark.parametrize("order", "<>")
@pytest.mark.parametrize("layout", "CF")
def test_slices_casts_and_transposes(tmp_path, write, order, layout):
    array = np.random.default_rng(0).normal(size=(33, 70)).astype(order + "f4").copy(layout)
    data = {
        "npy": lambda: npy(array),
        "npy_unaligned": lambda: npy_bytes(
            plain(descr=f"'{order}f4'", fortran_order=str(layout == "F"), shape=str(array.shape)),
            array.tobytes(layout),
            padded=False,
        ),
        "npz": lambda: npz(np.savez, arr_0=array),
        "npz_deflated": lambda: npz(np.savez_compressed, arr_0=array),
    }[write]()
    path = tmp_path / "arrays"
    path.write_bytes(data)
    native = array.astype("f4")
    t = rustload.open(path, framework="numpy")["arr_0"]
    same(t[3:30:4, 5].materialize(), native[3:30:4, 5])
    same(t.T.materialize(), native.T)
    same(t.materialize(transpose=True), native.T)
    same(t.materialize(dtype="float16"), native.astype("f2"))
    same(t[:, 1:].materialize(dtype="float64", transpose=True), native[:, 1:].T.astype("f8"))
    out = np.zeros((33, 70), "f4")
    t.materialize(out=out)
    same(out, native)
    as_torch = rustload.open(path, framework="torch")["arr_0"].materialize(dtype="bfloat16")
    assert torch.equal(as_torch, torch.from_numpy(native).bfloat16())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_stream_gives_every_array(tmp_path, save):
    path = tmp_path / "arrays.npz"
    made = {f"a{number}": np.arange(number * 1000, dtype="f4") for number in range(50)}
    save(path, **made)
    ckpt = rustload.open(path, framework="numpy")
    for name, array in ckpt.stream(memory="1MiB", dtype="float64"):
        same(array, made.pop(name).astype("f8"))
    assert made == {}


def test_a_large_array_is_read_in_parts(tmp_path):
    array = np.arange(5 << 20, dtype="f4").reshape(1 << 10, -1)
    np.save(tmp_path / "array.npy", array)
    np.savez(tmp_path / "arrays.npz", arr_0=array)
    for name in ("array.npy", "arrays.npz"):
        t = rustload.open(tmp_path / name, framework="numpy")["arr_0"]
        assert np.array_equal(t[100:103, 7:9].materialize(copy=True), array[100:103, 7:9])
        assert np.array_equal(t.materialize(copy=True), array)


def test_bools_other_than_0_and_1_are_copied_as_true(tmp_path):
    path = tmp_path / "array.npy"
    path.write_bytes(npy_bytes(plain(descr="'|b1'", shape="(3,)"), b"\0\2\1"))
    t = rustload.open(path, framework="numpy")["arr_0"]
    assert t.materialize().tobytes() == b"\0\1\1"
    with pytest.raises(BufferError):
        t.materialize(copy=False)


# Other functions of rustload


def test_safe_open_reads_arrays(tmp_path):
    path = tmp_path / "arrays.npz"
    made = {"w": np.arange(6.0).reshape(2, 3), "b": np.arange(3)}
    np.savez(path, **made)
    with rustload.safe_open(path, framework="np") as file:
        assert sorted(file.keys()) == ["b", "w"]
        assert file.get_slice("w").get_shape() == [2, 3]
        same(file.get_slice("w")[:, 1:], made["w"][:, 1:])
        same(file.get_tensor("b"), made["b"])


def test_a_model_loads_from_an_archive(tmp_path):
    model = torch.nn.Linear(3, 2)
    want = {name: np.random.default_rng(0).normal(size=p.shape) for name, p in model.named_parameters()}
    np.savez(tmp_path / "model.npz", **want)
    rustload.torch.load_into(model, tmp_path / "model.npz", dtype="float32")
    for name, parameter in model.named_parameters():
        assert np.array_equal(parameter.detach().numpy(), want[name].astype("f4"))


def test_torch_load_gives_a_dict_of_the_arrays(tmp_path):
    np.savez(tmp_path / "arrays.npz", a=np.arange(3.0), b=np.asfortranarray(np.ones((2, 3), "i4")))
    found = rustload.torch.load(tmp_path / "arrays.npz")
    assert list(found) == ["a", "b"]
    assert torch.equal(found["a"], torch.arange(3.0, dtype=torch.float64))
    assert found["b"].stride() == (1, 2)
    np.save(tmp_path / "array.npy", np.arange(3))
    assert torch.equal(rustload.torch.load(tmp_path / "array.npy")["arr_0"], torch.arange(3))


def test_objects_is_a_dict_of_the_arrays():
    found = opened(npz(np.savez, a=np.ones(2))).objects
    assert list(found) == ["a"]
    assert found["a"].shape == (2,)


def test_several_files_are_one_checkpoint(tmp_path):
    np.savez(tmp_path / "1.npz", a=np.ones(2))
    np.savez_compressed(tmp_path / "2.npz", b=np.zeros(3))
    ckpt = rustload.open([tmp_path / "1.npz", tmp_path / "2.npz"], framework="numpy")
    assert list(ckpt) == ["a", "b"]


def info(path: Path, *options: str) -> str:
    return cli("info", path, *options).stdout


def test_info_lists_the_arrays_and_those_that_are_not_read(tmp_path):
    path = tmp_path / "arrays.npz"
    np.savez(path, w=np.ones((2, 3), "f4"), objects=np.array([None]), names=np.array(["a", "b"]))
    text = info(path)
    for word in ("npz", "w", "float32", "numpy.object_", "numpy.str_", "2 array(s) are not read"):
        assert word in text, text
    found = json.loads(info(path, "--json"))["checkpoints"][0]
    assert found["format"] == "npz"
    assert [one["name"] for one in found["tensors"]] == ["w"]
    assert [(one["class_name"], one["count"], one["at"]) for one in found["opaque"]] == [
        ("numpy.object_", 1, ["objects"]),
        ("numpy.str_", 1, ["names"]),
    ]


# What is not read

OTHERS = {
    "numpy.object_": np.array([None]),
    "numpy.str_": np.array(["a"]),
    "numpy.bytes_": np.array([b"a"]),
    "numpy.void": np.zeros(2, [("x", "f4")]),
    "numpy.datetime64": np.array(["2026-01-01"], "M8[D]"),
    "numpy.timedelta64": np.array([1], "m8[s]"),
    "numpy.longdouble": np.ones(1, np.longdouble),
    "numpy.clongdouble": np.ones(1, np.clongdouble),
}


@pytest.mark.parametrize(("made", "class_name", "advice"), [
    (np.array([None]), "numpy.object_", "Run rustload scan to see what unpickling the objects would run."),
    (np.array(["a"]), "numpy.str_", "Read it with numpy.load(..., allow_pickle=False)."),
])  # fmt: skip
def test_show_says_why_an_array_is_skipped(tmp_path, made, class_name, advice):
    path = tmp_path / "arrays.npz"
    np.savez(path, w=np.ones(2), other=made)
    for name in ("other", "other[:1]"):
        found = cli("show", path, name)
        assert (found.returncode, found.stdout) == (3, "")
        assert found.stderr.splitlines() == [
            f"rustload: error: 'other' is skipped: it holds {class_name}, not numbers",
            f"  note: {advice}",
        ]


@pytest.mark.parametrize("class_name", OTHERS)
def test_an_array_of_no_numbers_is_an_error_alone_and_listed_in_an_archive(class_name):
    array = OTHERS[class_name]
    code = "NpyObjects" if class_name == "numpy.object_" else "NpyDtype"
    with coded(rustload.UnsupportedError, code) as caught:
        opened(npy(array))
    advice = "rustload.scan" if code == "NpyObjects" else "numpy.load"
    assert advice in "".join(caught.value.__notes__)
    archive = npz(np.savez, a=np.ones(2), other=array)
    ckpt = opened(archive)
    assert list(ckpt) == ["a"]
    assert [(found.class_name, found.count, found.at) for found in ckpt.opaque] == [
        (class_name, 1, ["other"])
    ]
    assert any(class_name in note for note in ckpt.notes)
    with pytest.raises(rustload.TensorNotFoundError) as missing:
        ckpt["other"]
    assert missing.value.__notes__[-1] == f"'other' is skipped: it holds {class_name}, not numbers"
    with pytest.raises(rustload.UnsupportedError) as caught:
        opened(archive, unknown="error")
    assert (caught.value.code, caught.value.member) == (code, "other.npy")


def test_classes_in_an_archive_are_counted():
    made = {f"o{number}": np.array([None]) for number in range(40)}
    (found,) = opened(npz(np.savez, a=np.ones(1), **made)).opaque
    assert (found.count, len(found.at)) == (40, 16)


def test_every_cut_of_a_file_is_an_error(tmp_path):
    array, archive = npy(np.arange(5)), npz(np.savez, a=np.arange(5), b=np.ones(1))
    for data in (array, archive):
        for end in range(len(data)):
            with pytest.raises(rustload.RustloadError):
                opened(data[:end])
    path = tmp_path / "array.npy"
    path.write_bytes(array[:-1])
    with pytest.raises(rustload.FormatError, match="cut short") as caught:
        rustload.open(path)
    assert (caught.value.code, caught.value.path) == ("Truncated", str(path))


# Headers that nobody wrote

TOKENS = st.sampled_from([
    *"{}()[],:'\"\\#Ll-+01 \n\t\0é",
    *("00", "True", "False", "None", "descr", "shape", "'<f4'", "'>i2'", "'|u1'", "'=f8'", "'|O'"),
    *("'descr'", "'shape'", "'fortran_order'"),
])  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.lists(TOKENS, max_size=4),
    st.lists(st.tuples(st.integers(0, 80), TOKENS), max_size=3),
    st.sampled_from(VERSIONS),
)
def test_whatever_opens_is_what_numpy_loads(tail, changes, version):
    text = plain(shape="(2, 3)")
    for at, token in changes:
        text = text[:at] + token + text[at + 1 :]
    raw = (text + "".join(tail)).encode("utf-8" if version == (3, 0) else "latin-1")
    data = npy_bytes(raw, bytes(range(24)), version=version)
    try:
        ckpt = opened(data)
    except rustload.RustloadError:
        return
    same(ckpt["arr_0"].materialize(), np.load(io.BytesIO(data)))


# Scans


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_scan_calls_arrays_of_numbers_inert(tmp_path, save):
    path = tmp_path / "arrays.npz"
    save(path, a=np.arange(300_000), names=np.array(["cposix\nsystem\n"]), when=OTHERS["numpy.datetime64"])
    report = rustload.scan(path)
    assert (report.verdict, report.complete) == ("inert", True), report.findings
    assert report.files[0].format == "npz"
    np.save(tmp_path / "array.npy", np.arange(3))
    report = rustload.scan(tmp_path / "array.npy")
    assert (report.verdict, list(report.findings), report.files[0].format) == ("inert", [], "npy")


@pytest.mark.parametrize("write", ["npy", "savez", "savez_compressed"])
def test_a_scan_finds_the_call_in_an_array_of_objects(write):
    array = np.array([Reduced(os.system, ("true",))], dtype=object)
    data = (
        npy(array)
        if write == "npy"
        else npz({"savez": np.savez}.get(write, np.savez_compressed), ok=np.ones(2), bad=array)
    )
    report = rustload.scan(bytearray(data))
    assert report.verdict == "would execute"
    assert "posix.system" in {f"{step.module}.{step.name}" for step in report.trace}


def test_benign_objects_are_scanned_and_not_read():
    report = rustload.scan(bytearray(npy(np.array([1, "x"], dtype=object))))
    assert "NpyObjects" in {finding.code for finding in report.findings}
    assert any(part.what == "pickle" for part in report.coverage[0].scanned)
