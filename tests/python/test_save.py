"""`rustload.save`: equal to the reference writer byte by byte, in all forms of arguments, and never half a file."""

import io
import json
import os
import random
import string
import warnings
from pathlib import Path
from typing import Any

import huggingface_hub
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from support import IN_SAFETENSORS, assert_same_bits, child, in_threads, names, patterns, program

import rustload


def generated(seed: int) -> dict[str, torch.Tensor]:
    """A state dict of random names, dtypes and shapes."""
    source = random.Random(seed)
    letters = string.ascii_letters + string.digits + '._-/"\\\x01\n äß漢😀\x7f'
    names = {"".join(source.choices(letters, k=source.randint(0, 12))) for _ in range(source.randint(0, 12))}
    shapes = [(), (0,), (3,), (2, 5), (1, 0, 4), (3, 1, 2), (257,)]
    dtypes = sorted(IN_SAFETENSORS)
    return {
        name: patterns(source.choice(dtypes), source.choice(shapes), seed) for name in sorted(names, key=repr)
    }


@pytest.mark.parametrize("block", range(4))
def test_files_are_those_of_the_reference(block, tmp_path):
    for seed in range(block * 50, block * 50 + 50):
        tensors = generated(seed)
        metadata = {"format": "pt"} if seed % 2 else {}
        expected = safetensors.torch.save(tensors, metadata=metadata or None)
        path = tmp_path / "m.safetensors"
        report = rustload.save(tensors, path, metadata=metadata, fsync=False)
        assert path.read_bytes() == expected, seed
        assert (report.tensors, report.nbytes) == (len(tensors), len(expected))


def test_every_source_gives_the_same_file(tmp_path):
    tensors = generated(7) | {"large": torch.randn(3000, 1000), "half": torch.randn(700, 900).half()}
    expected = safetensors.torch.save(tensors, metadata={"format": "pt"})
    torch.save(tensors, tmp_path / "m.bin")
    torch.save(tensors, tmp_path / "legacy.bin", _use_new_zipfile_serialization=False)
    rustload.save(tensors, tmp_path / "m.safetensors")
    for name in ("m.bin", "legacy.bin", "m.safetensors"):
        for threads in (1, 3):
            path = tmp_path / "out.safetensors"
            rustload.save(rustload.open(tmp_path / name), path, threads=threads, memory="4MiB", fsync=False)
            assert path.read_bytes() == expected, (name, threads)


def test_arrays_of_every_framework_are_written(tmp_path):
    jax = pytest.importorskip("jax")
    array = np.arange(12, dtype="float32").reshape(3, 4)
    torch.save({"w": torch.from_numpy(array)}, tmp_path / "m.bin")
    lazy = rustload.open(tmp_path / "m.bin")["w"]
    big_endian = array.astype(">f4")
    frozen = array.copy()
    frozen.flags.writeable = False
    values = {
        "torch": torch.from_numpy(array),
        "transposed": torch.from_numpy(array.T.copy()).T,
        "conjugate": torch.complex(torch.from_numpy(array), torch.ones(3, 4)).conj(),
        "parameter": torch.nn.Parameter(torch.from_numpy(array.copy())),
        "numpy": array,
        "reversed": array[::-1],
        "big": big_endian,
        "frozen": frozen,
        "scalar": np.float32(2.5),
        "jax": jax.numpy.asarray(array),
        "buffer": lazy.materialize(framework="dlpack"),
        "lazy": lazy,
        "slice": lazy[1:, ::2],
        "turned": lazy.T,
        "joined": rustload.concat([lazy, lazy[:1]]),
        "bytes": bytearray(b"\x01\x02"),
    }
    path = tmp_path / "all.safetensors"
    rustload.save(values, path)
    found = safetensors.torch.load_file(path)
    expected = torch.from_numpy(array)
    for name in ("torch", "transposed", "parameter", "numpy", "big", "frozen", "jax", "buffer", "lazy"):
        assert_same_bits(found[name], expected)
    assert_same_bits(found["reversed"], expected.flip(0))
    assert_same_bits(found["conjugate"], torch.complex(expected, -torch.ones(3, 4)))
    assert_same_bits(found["slice"], expected[1:, ::2])
    assert_same_bits(found["turned"], expected.T)
    assert_same_bits(found["joined"], torch.cat([expected, expected[:1]]))
    assert (found["scalar"].item(), found["bytes"].tolist()) == (2.5, [1, 2])


BUFFERS = """
import array, ctypes, sys
blocked = sys.argv[2] == "without"
if blocked:
    sys.modules["numpy"] = sys.modules["torch"] = None
import rustload

data = bytearray(range(24))
values = {
    "bytes": b"hello", "empty": b"", "view": memoryview(data)[3:], "steps": memoryview(data)[::5], "back": memoryview(data)[::-1],
    "bools": memoryview(b"\\1\\0").cast("?"), "rows": memoryview(data).cast("h", (3, 4)), "single": memoryview(data).cast("f"),
    "floats": array.array("f", [1.5, -2.5]), "doubles": array.array("d", [0.1]), "ints": array.array("l", [1, -(2**40)]),
    "grid": (ctypes.c_uint32 * 3 * 2)((1, 2, 3), (4, 5, 6)), "number": ctypes.c_double(3.5),
}
report = rustload.save(values, sys.argv[1] + "/plain.safetensors")
assert report.tensors == len(values)
floats = {name: values[name] for name in ("single", "floats", "doubles")}
rustload.save(floats, sys.argv[1] + "/cast.safetensors", dtype="bfloat16")
big = (ctypes.c_int32.__ctype_be__ * 2)(1, 2)
if blocked:
    try:
        rustload.save({"big": big}, sys.argv[1] + "/big.safetensors")
    except ImportError as error:
        assert "pip install numpy" in str(error)
    else:
        raise AssertionError
assert not blocked or sys.modules["numpy"] is None
"""


def test_plain_buffers_are_written_without_numpy_as_with_it(tmp_path):
    for how in ("with", "without"):
        (tmp_path / how).mkdir()
        child(BUFFERS, tmp_path / how, how)
    for name in ("plain.safetensors", "cast.safetensors"):
        assert (tmp_path / "without" / name).read_bytes() == (tmp_path / "with" / name).read_bytes()
    found = safetensors.torch.load_file(tmp_path / "without" / "plain.safetensors")
    assert found["bytes"].numpy().tobytes() == b"hello"
    assert found["rows"].tolist() == np.arange(24, dtype="u1").view("<i2").reshape(3, 4).tolist()
    assert found["steps"].tolist() == [0, 5, 10, 15, 20]
    assert found["grid"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (found["number"].shape, found["number"].item()) == ((), 3.5)


def test_casts_and_transposes_are_those_of_materialize(tmp_path):
    tensors = {
        "a.weight": torch.randn(300, 200),
        "b.weight": torch.randn(2100, 1030),
        "b.bias": torch.randn(2100, dtype=torch.float64),
        "ids": torch.arange(9),
    }
    torch.save(tensors, tmp_path / "m.bin")
    ckpt = rustload.open(tmp_path / "m.bin")
    rules: dict[str, Any] = {
        "dtype": {"*.bias": "float16", "*.weight": "bfloat16"},
        "transpose": {"b.weight": True},
    }
    expected = dict(ckpt.materialize(**rules))
    for source in (ckpt, tensors):
        rustload.save(source, tmp_path / "out.safetensors", memory="2MiB", **rules)
        found = safetensors.torch.load_file(tmp_path / "out.safetensors")
        assert found.keys() == expected.keys()
        for name in expected:
            assert_same_bits(found[name], expected[name])
    rustload.save(ckpt, tmp_path / "out.safetensors", dtype="bfloat16")
    dtypes = {name: tensor.dtype for name, tensor in rustload.open(tmp_path / "out.safetensors").items()}
    assert dtypes == dict.fromkeys(("a.weight", "b.weight", "b.bias"), "bfloat16") | {"ids": "int64"}
    with pytest.raises(ValueError, match="lossy"):
        rustload.save(tensors, tmp_path / "out.safetensors", dtype={"a.*": "int8"})


def test_quantized_tensors_are_dequantized(tmp_path):
    weight = torch.randn(64, 32)
    scales = torch.rand(64, dtype=torch.float64) / 20 + 0.01
    with warnings.catch_warnings(action="ignore"):
        quantized = torch.quantize_per_channel(
            weight, scales, torch.zeros(64, dtype=torch.long), 0, torch.qint8
        )
    torch.save({"q": quantized}, tmp_path / "q.bin")
    ckpt = rustload.open(tmp_path / "q.bin")
    rustload.save(ckpt, tmp_path / "q.safetensors", dequantize=True, dtype="float32")
    assert_same_bits(safetensors.torch.load_file(tmp_path / "q.safetensors")["q"], quantized.dequantize())
    for tensors in ({"q": quantized}, ckpt):
        with pytest.raises(rustload.UnsupportedError, match="quantized"):
            rustload.save(tensors, tmp_path / "q2.safetensors")


def test_the_report_counts_conversions_and_names_parts_of_storages(tmp_path):
    whole = torch.randn(10, 4)
    array = np.arange(10.0)
    tensors = {
        "whole": whole,
        "rows": whole[2:5],
        "turned": whole.T,
        "ids": torch.arange(3),
        "end": array[5:],
    }
    torch.save({name: torch.as_tensor(value) for name, value in tensors.items()}, tmp_path / "m.bin")
    # torch takes the memory of a part of an array for a storage of its own.
    for source, packed in ((tensors, ["rows", "end"]), (rustload.open(tmp_path / "m.bin"), ["rows"])):
        report = rustload.save(source, tmp_path / "m.safetensors", dtype="float16", transpose={"rows": True})
        assert (report.packed, report.converted) == (packed, 4)
    assert rustload.save(tensors, tmp_path / "m.safetensors", dtype={"ids": "int64"}).converted == 0


def test_file_objects_get_the_same_bytes(tmp_path):
    tensors = generated(3) | {"x": torch.randn(1200, 1000)}
    rustload.save(tensors, tmp_path / "m.safetensors")
    memory = io.BytesIO()
    report = rustload.save(tensors, memory, memory="1MiB")
    assert memory.getvalue() == (tmp_path / "m.safetensors").read_bytes()
    assert (report.path, report.nbytes) == ("", len(memory.getvalue()))

    class Full(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, _: Any) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        rustload.save(tensors, Full())


def test_nested_values_are_flattened_and_restored(tmp_path):
    one = {name: torch.full((2,), float(at)) for at, name in enumerate("abcd")}
    nested = {
        "layers": [{"w": one["a"]}, (one["b"],)],
        "x.y": one["c"],
        "x": {"y": one["d"]},
        "empty": {},
        5: [],
    }
    path = tmp_path / "n.safetensors"
    rustload.save(nested, path, keep_nesting=True)
    ckpt = rustload.open(path)
    assert sorted(ckpt) == sorted(
        ["layers.0.w", "layers.1.0", '["x.y"]', "x.y"]
    )  # as rustload.open names them
    restored = rustload.unflatten(ckpt)
    assert restored["layers"][1][0].numpy().tolist() == [1, 1]
    assert isinstance(restored["layers"][1], tuple)
    assert restored["x.y"].numpy().tolist() == [2, 2]
    assert restored["x"]["y"].numpy().tolist() == [3, 3]
    assert (restored["empty"], restored[5]) == ({}, [])
    assert rustload.unflatten({"a.b": 1, "a.0": 2}) == {"a": {"b": 1, "0": 2}}
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(ValueError, match="holds itself"):
        rustload.save(loop, path)


def test_ties_are_copied_dropped_or_refused(tmp_path):
    weight = torch.randn(4, 3)
    tensors = {"embed": weight, "head": weight, "other": weight[:2], "own": weight.clone()}
    torch.save(tensors, tmp_path / "m.bin")
    for source in (tensors, rustload.open(tmp_path / "m.bin")):
        path = tmp_path / "m.safetensors"
        assert rustload.save(source, path).dropped == {}
        assert sorted(rustload.open(path)) == sorted(tensors)
        assert rustload.save(source, path, ties="drop").dropped == {"head": "embed"}
        ckpt = rustload.open(path)
        assert (sorted(ckpt), ckpt.metadata["head"]) == (["embed", "other", "own"], "embed")
        assert rustload.save(source, path, ties="drop", keep="h*").dropped == {"embed": "head"}
        with pytest.raises(ValueError, match="'embed' = 'head'"):
            rustload.save(source, path, ties="error")
    # A name may be empty.
    torch.save({"": weight, "head": weight}, tmp_path / "m.bin")
    assert rustload.save(rustload.open(tmp_path / "m.bin"), path, ties="drop").dropped == {"head": ""}


def test_a_tied_name_with_another_text_in_the_metadata_is_written_in_full(tmp_path):
    weight = torch.randn(4, 3)
    tensors = dict.fromkeys(("embed", "format", "by", "head", "other"), weight)
    torch.save(tensors, tmp_path / "m.bin")
    texts = {"by": "me", "head": "embed"}
    path = tmp_path / "m.safetensors"
    for function, source in (
        (rustload.save, tensors),
        (rustload.save, rustload.open(tmp_path / "m.bin")),
        (rustload.convert, tmp_path / "m.bin"),
    ):
        report = function(source, path, ties="drop", metadata=texts, overwrite=True)
        assert report.dropped == {"head": "embed", "other": "embed"}
        ckpt = rustload.open(path)
        assert sorted(ckpt) == ["by", "embed", "format"]
        assert {"by": "me", "head": "embed", "other": "embed"}.items() <= ckpt.metadata.items()


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_the_mode_follows_the_umask(mask, tmp_path):
    before = os.umask(mask)
    try:
        rustload.save({"x": torch.zeros(3)}, tmp_path / "m.safetensors")
        rustload.save({"x": torch.zeros(3)}, tmp_path / "folder")
    finally:
        os.umask(before)
    for path in (tmp_path / "m.safetensors", tmp_path / "folder" / "model.safetensors"):
        assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_mapped_file_can_be_saved_over(tmp_path):
    path = tmp_path / "m.safetensors"
    rustload.save({"x": torch.arange(4.0)}, path)
    path.chmod(0o640)
    ckpt = rustload.open(path)
    view = ckpt["x"].materialize()
    rustload.save(ckpt, path, dtype="float16")
    assert view.tolist() == [0, 1, 2, 3]
    assert rustload.open(path)["x"].dtype == "float16"
    assert path.stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["m.safetensors"]


def test_links_are_followed_and_blobs_of_the_hub_refused(tmp_path):
    (tmp_path / "real.safetensors").write_bytes(b"old")
    link = tmp_path / "link.safetensors"
    link.symlink_to("real.safetensors")
    rustload.save({"x": torch.zeros(1)}, link)
    assert link.is_symlink()
    assert list(rustload.open(tmp_path / "real.safetensors")) == ["x"]
    hub = tmp_path / "models--a--b"
    for name in ("blobs", "snapshots/1"):
        (hub / name).mkdir(parents=True)
    (hub / "blobs" / "12").write_bytes(b"old")
    (hub / "snapshots" / "1" / "m.safetensors").symlink_to("../../blobs/12")
    with pytest.raises(ValueError, match="blob of a Hugging Face cache"):
        rustload.save({"x": torch.zeros(1)}, hub / "snapshots" / "1" / "m.safetensors")
    assert (hub / "blobs" / "12").read_bytes() == b"old"


def test_shards_are_those_of_the_hub(tmp_path):
    source = random.Random(5)
    for number in range(500):
        shared = [torch.zeros(source.randint(1, 40), dtype=torch.uint8) for _ in range(3)]
        tensors = {
            f"t{at}": source.choice(shared)
            if source.random() < 0.2
            else torch.zeros(source.randint(0, 60), dtype=torch.uint8)
            for at in range(source.randint(1, 14))
        }
        # huggingface_hub takes empty tensors for ties of each other.
        tensors = {name: tensor for name, tensor in tensors.items() if tensor.numel()}
        limit = source.randint(10, 90)
        split = huggingface_hub.split_torch_state_dict_into_shards(tensors, max_shard_size=limit)
        folder = tmp_path / str(number)
        report = rustload.save(tensors, folder, max_shard_size=limit, fsync=False)
        expected = (
            {name: sorted(names) for name, names in split.filename_to_tensors.items()} if tensors else {}
        )
        found = {
            name: sorted(rustload.open(folder / name)) for name in report.files if not name.endswith(".json")
        }
        assert found == (expected or {"model.safetensors": []}), (number, limit)
        if split.is_sharded:
            assert sorted(rustload.open(folder)) == sorted(tensors)


def test_a_folder_is_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "model"
    tensors = {f"t{at}": torch.full((100,), float(at)) for at in range(6)}
    rustload.save(tensors, folder, max_shard_size=900)
    (folder / "config.json").write_text("{}")
    (folder / "sub").mkdir()
    (folder / "sub" / "x").write_text("x")
    with pytest.raises(FileExistsError):
        rustload.save(tensors, folder)
    ckpt = rustload.open(folder)
    view = ckpt["t3"].materialize()
    report = rustload.save(ckpt, folder, overwrite=True, dtype="float16")  # into its own folder
    assert report.files.keys() == {"model.safetensors"}
    assert names(folder) == ["config.json", "model.safetensors", "sub"]
    assert names(tmp_path) == ["model"]
    assert (folder / "sub" / "x").read_text() == "x"
    assert view.tolist() == [3.0] * 100
    assert_same_bits(rustload.open(folder)["t5"].torch(), tensors["t5"].half())


class Wrapper(torch.Tensor):
    """Has a shape and no memory of its own, as DTensor."""

    __torch_dispatch__ = None


def wrapper(*shape):
    return torch.Tensor._make_wrapper_subclass(Wrapper, shape)


def test_a_wrapper_without_elements_is_an_empty_tensor(tmp_path):
    rustload.save({"w": wrapper(0, 2)}, tmp_path / "w.safetensors")
    assert rustload.open(tmp_path / "w.safetensors")["w"].shape == (0, 2)


@pytest.mark.parametrize("options", [{}, {"keep_nesting": True}, {"objects": "o.json"}])
def test_a_sparse_tensor_of_a_checkpoint_is_not_written_as_its_components(tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    torch.save({"a": {"s": torch.eye(3).to_sparse(), "w": torch.ones(2)}}, "m.pt")
    ckpt = rustload.open("m.pt")
    with pytest.raises(rustload.UnsupportedError, match=r"'a\.s' is a sparse tensor"):
        rustload.save(ckpt, "out.safetensors", **options)
    assert names(tmp_path) == ["m.pt"]
    assert rustload.save(ckpt.select(["a.s.indices", "a.w"]), "out.safetensors").tensors == 2


def test_what_cannot_be_written_says_why(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"old")
    x = torch.zeros(2)
    cases: list[tuple[Any, type[BaseException], str]] = [
        ({"c": torch.zeros(2, dtype=torch.complex128)}, rustload.UnsupportedError, "complex128"),
        ({"s": torch.eye(3).to_sparse()}, rustload.UnsupportedError, "sparse"),
        ({"m": torch.empty(2, device="meta")}, rustload.UnsupportedError, "meta"),
        (
            {"n": torch.nested.nested_tensor([x], layout=torch.jagged)},
            rustload.UnsupportedError,
            "'n' is a nested tensor",
        ),
        ({"w": wrapper(2)}, rustload.UnsupportedError, "'w' is a .*Wrapper without elements"),
        ({"u": torch.nn.UninitializedParameter()}, rustload.UnsupportedError, "without elements"),
        (
            {"f": torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)},
            rustload.UnsupportedError,
            "float4",
        ),
        ({"o": np.array([None])}, rustload.UnsupportedError, "object"),
        ({"m": np.ma.masked_equal([1, 2], 2)}, rustload.UnsupportedError, "'m' is a masked array"),
        ({"l": np.ones(2, np.longdouble)}, rustload.UnsupportedError, "'l' is of dtype float128"),
        ({"i": np.ones(2, ml_dtypes.int4)}, rustload.UnsupportedError, "'i' is of dtype int4"),
        ({"t": np.array(["a"])}, rustload.UnsupportedError, "NumPy array of <U1"),
        ({"epoch": 3}, TypeError, "'epoch' is an int"),
        ({"__metadata__": x}, ValueError, "__metadata__"),
        (x, TypeError, "mapping"),
    ]
    for tensors, kind, text in cases:
        with pytest.raises(kind, match=text):
            rustload.save(tensors, path)
    with pytest.raises(FileExistsError):
        rustload.save({"x": x}, path, overwrite=False)
    with pytest.raises(ValueError, match="no pickles"):
        rustload.save({"x": x}, tmp_path / "m.bin")
    with pytest.raises(FileNotFoundError):
        rustload.save({"x": x}, tmp_path / "missing" / "m.safetensors")
    with pytest.raises(ValueError, match="folder"):
        rustload.save({"x": x}, path, max_shard_size="1GB")
    with pytest.raises(ValueError, match="give the path of a folder"):
        rustload.save({"x": x}, io.BytesIO(), max_shard_size="1GB")
    with pytest.raises(ValueError, match="not a name of a file"):
        rustload.save({"x": x}, tmp_path / "folder", name="a/b")
    for metadata in ({"a": 1}, ["a"]):
        with pytest.raises(TypeError, match="texts by texts"):
            rustload.save({"x": x}, path, metadata=metadata)  # type: ignore[arg-type]
    for rules in ({"dtype": {"y": "float16"}}, {"transpose": {"y": True}}):
        with pytest.raises(rustload.TensorNotFoundError, match="y"):
            rustload.save({"x": x}, path, **rules)  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["m.safetensors"]


def test_a_pattern_of_save_that_matches_no_name_is_a_warning(tmp_path):
    with pytest.warns(
        rustload.RustloadWarning, match=r"dtype= has the pattern '\*\.wieght'.* matches no name"
    ):
        rustload.save({"a.weight": torch.ones(2)}, tmp_path / "m.safetensors", dtype={"*.wieght": "float16"})


def test_an_expanded_tensor_is_limited(tmp_path):
    torch.save({"x": torch.zeros(1).expand(1 << 40)}, tmp_path / "m.bin")
    lazy = rustload.open(tmp_path / "m.bin")["x"]
    for value in (lazy, rustload.concat([lazy, lazy])):
        with pytest.raises(rustload.LimitError, match="materialize_bytes"):
            rustload.save({"x": value}, tmp_path / "out.safetensors")
    rustload.save({"x": lazy[:1000]}, tmp_path / "out.safetensors")
    # Each alone is below the limit, and so is each shard.
    many = {f"x{at}": lazy[: 1 << 26] for at in range(5)}
    for target, more in (("out.safetensors", {}), ("out", {"max_shard_size": "300MB"})):
        with pytest.raises(rustload.LimitError, match="materialize_bytes"):
            rustload.save(many, tmp_path / target, overwrite=True, **more)  # type: ignore[arg-type]
    assert names(tmp_path) == ["m.bin", "out.safetensors"]


def test_a_writer_takes_tensors_and_parts_in_any_order(tmp_path):
    path = tmp_path / "m.safetensors"
    whole, ids = torch.randn(7, 6, 5), torch.arange(4)
    declared = {
        "w": ("float32", (7, 6, 5)),
        "h": (torch.float16, (7, 6, 5)),
        "ids": (np.int64, (4,)),
        "e": ("bool", (0, 2)),
    }
    with rustload.Writer(path, declared, metadata={"format": "pt"}) as writer:
        writer.write("ids", ids)
        for first in (3, 0):
            writer.write("w", whole[first : first + 3, :4], at=(first, 0, 0))
            writer.write("w", whole[first : first + 3, 4:], at=(first, 4, 0))
        writer.write("w", whole[6:], at=(6, 0, 0))
        parts = [("h", whole[at : at + 1], (at, 0, 0)) for at in range(7)]
        in_threads(lambda given: writer.write(given[0], given[1], at=given[2]), parts)
        assert not path.exists()
    expected = {"w": whole, "h": whole.half(), "ids": ids, "e": torch.empty(0, 2, dtype=torch.bool)}
    assert path.read_bytes() == safetensors.torch.save(expected, metadata={"format": "pt"})


def write_and_raise(path: Path) -> None:
    with rustload.Writer(path, {"x": ("uint8", (1,))}) as writer:
        writer.write("x", torch.zeros(1, dtype=torch.uint8))
        raise RuntimeError("mine")


def test_a_writer_refuses_what_was_not_declared(tmp_path):
    path = tmp_path / "m.safetensors"
    x = torch.zeros(4, 4)
    writer = rustload.Writer(path, {"x": ("float32", (4, 4)), "y": ("float32", (2,))})
    for name, tensor, at, text in [
        ("z", x, None, '"z" was declared'),
        ("x", x[:2], None, "declared was"),
        ("x", x[:2], (3, 0), "does not lie inside"),
        ("x", x[:2], (-1, 0), "whole numbers from 0 on"),
        ("x", x[:2], (0.5, 0), "whole numbers from 0 on"),
        ("x", x[0], (0, 0), "does not lie inside"),
        ("y", torch.zeros(2, dtype=torch.complex64), None, "lossy"),
    ]:
        with pytest.raises(ValueError, match=text):
            writer.write(name, tensor, at=at)
    writer.write("x", x[:2], at=(0, 0))
    with pytest.raises(ValueError, match="before"):
        writer.write("x", x[1:3], at=(1, 0))
    with pytest.raises(ValueError, match='"x", "y"') as caught:
        writer.close()
    assert caught.value.code == "WriterIncomplete"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="closed"):
        writer.write("y", torch.zeros(2))
    with pytest.raises(RuntimeError, match="mine"):
        write_and_raise(path)
    with pytest.raises(OSError, match=r"large|space"):
        rustload.Writer(path, {"x": ("uint8", (1 << 60,))})
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "declared",
    ["float32", ("float32", 2), ("float32", (-1,)), ("float32", (1.5,)), torch.ones(2), ("float32",), None],
)
def test_a_declaration_of_a_writer_is_a_dtype_and_a_shape(declared, tmp_path):
    with pytest.raises(TypeError, match="'w' is not declared as a name with a dtype and a shape"):
        rustload.Writer(tmp_path / "m.safetensors", {"w": declared})
    with pytest.raises(TypeError, match="5 is not declared"):
        rustload.Writer(tmp_path / "m.safetensors", {5: ("float32", (1,))})  # type: ignore[dict-item]


def test_the_block_of_a_writer_may_end_it(tmp_path):
    path = tmp_path / "m.safetensors"
    with rustload.Writer(path, {"x": ("uint8", (1,))}) as writer:
        writer.write("x", torch.ones(1, dtype=torch.uint8))
        assert writer.close() == path.stat().st_size
    with rustload.Writer(path, {"x": ("uint8", (1,))}) as writer:
        writer.discard()
    assert rustload.open(path)["x"].torch().tolist() == [1]
    assert names(tmp_path) == ["m.safetensors"]


def test_a_writer_has_the_working_directory_of_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    with rustload.Writer("m.safetensors", {"x": ("uint8", (1,))}, write_manifest=True) as writer:
        monkeypatch.chdir("later")
        writer.write("x", torch.zeros(1, dtype=torch.uint8))
    assert names(tmp_path) == ["later", "m.safetensors", "m.safetensors.manifest.json"]
    assert names(tmp_path / "later") == []


def test_other_libraries_read_what_is_written(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    folder = tmp_path / "model"
    rustload.save(model.state_dict(), folder, max_shard_size=20_000)
    config.save_pretrained(folder)
    assert len(list(folder.glob("*.safetensors"))) > 1
    again = transformers.GPT2LMHeadModel.from_pretrained(folder)
    for name, value in model.state_dict().items():
        assert_same_bits(again.state_dict()[name], value)


def test_a_dimension_of_one_may_have_any_stride(tmp_path):
    """torch calls such a tensor contiguous, and does not reinterpret it as bytes."""
    tensors = {"half": torch.arange(8.0).half()[2:4][::2], "long": torch.arange(9).view(3, 3)[:, 1][1:2]}
    assert all(tensor.stride() != (1,) for tensor in tensors.values())
    rustload.save(tensors, tmp_path / "m.safetensors")
    found = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_random_state_dicts_are_read_back():
    """A slice of `fuzz/saves.py`, which runs for longer."""
    printed = program("fuzz/saves.py", "--seed", 3, "--count", 300)
    assert printed.startswith("300 state dicts in ")


def parsed(name: str, content: bytes) -> tuple[Any, bytes]:
    """The JSON of an index or a header, in which the order of metadata is not defined, and the tensors' bytes."""
    if name.endswith(".json"):
        return json.loads(content), b""
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end]), content[end:]


def test_names_that_are_left_out_are_where_huggingface_hub_has_them(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    embedding = torch.randn(50, 4)
    tensors = {"embed": embedding, "head": embedding, **{f"layer.{at}": torch.randn(40) for at in range(6)}}
    for size in (600, 10**6):
        theirs, ours, again = (tmp_path / f"{name}-{size}" for name in ("theirs", "ours", "again"))
        theirs.mkdir()
        hub.save_torch_state_dict(
            dict(tensors), theirs, max_shard_size=size, shared_tensors_to_discard=["head"]
        )
        report = rustload.save(tensors, ours, ties="drop", max_shard_size=size)
        assert report.dropped == {"head": "embed"}
        torch.save(tensors, tmp_path / "model.bin")
        rustload.convert(tmp_path / "model.bin", again, ties="drop", max_shard_size=size)
        for folder in (ours, again):
            assert names(folder) == names(theirs)
            for name in names(theirs):
                mine, other = (folder / name).read_bytes(), (theirs / name).read_bytes()
                assert parsed(name, mine) == parsed(name, other)
            assert rustload.open(folder).metadata["head"] == "embed"
        # Divided as its source is.
        rustload.convert(ours, tmp_path / f"as-{size}", ties="drop")
        assert names(tmp_path / f"as-{size}") == names(theirs)


def test_a_callable_gets_renamed_and_joined_tensors_and_reads_the_shape_of_arrays(tmp_path):
    torch.save({"old.weight": torch.ones(2, 3), "old.bias": torch.ones(3)}, tmp_path / "m.pt")

    def rule(tensor):
        return tensor.ndim == 2 and (tensor.numel(), tensor.nbytes) == (6, 24)

    rustload.convert(tmp_path / "m.pt", tmp_path / "c.safetensors", rename={"old": "new"}, transpose=rule)
    assert rustload.open(tmp_path / "c.safetensors")["new.weight"].shape == (3, 2)
    seen = []
    target = tmp_path / "d.safetensors"
    rustload.convert(tmp_path / "m.pt", target, rename={"old": "new"}, dtype=seen.append)
    assert [(type(one).__mro__[1], one.name) for one in seen] == [
        (rustload.LazyTensor, "new.weight"), (rustload.LazyTensor, "new.bias"),
    ]  # fmt: skip
    assert (seen[0].path, seen[0].T.name, seen[0][1:].numpy().tolist()) == (
        ("old.weight",), "old.weight", [[1, 1, 1]],
    )  # fmt: skip
    weight = rustload.open(tmp_path / "m.pt")["old.weight"]
    values = {"a": torch.ones(2, 3), "renamed": weight, "joined": rustload.concat([weight[:1], weight[1:]])}
    rustload.save(values, tmp_path / "s.safetensors", transpose=rule, dtype=seen.append)
    assert [(one.name, len(getattr(one, "parts", ()))) for one in seen[2:]] == [
        ("a", 0), ("renamed", 0), ("joined", 2),
    ]  # fmt: skip
    assert {lazy.shape for lazy in rustload.open(tmp_path / "s.safetensors").values()} == {(3, 2)}
