"""Every error has a type, a stable code, a location, and a next step as a note."""

import argparse
import copy
import json
import os
import pickle
import re
from pathlib import Path

import pytest
import safetensors.torch
import torch
from support import assert_same_bits, coded, pickled, safetensors_bytes, saved, torch_zip

import rustload.torch


def refused(source, kind, code, **options) -> Exception:
    """The error that `open` raises, checked for type and code."""
    with pytest.raises(kind) as caught:
        rustload.open(source, **options)
    assert type(caught.value) is kind
    assert caught.value.code == code
    return caught.value


def note_of(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


def file(tmp_path, data: bytes, name: str = "model.bin"):
    path = tmp_path / name
    path.write_bytes(data)
    return path


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"


@pytest.mark.parametrize(("data", "says", "advises"), [
    (b"", "empty", "again"),
    (b"P", "too few", "again"),
    (b"PK\3", "too few", "again"),
    (LFS, "Git LFS pointer", "git lfs pull"),
    (b"<!DOCTYPE html><html><body>Not found</body></html>", "web page", "fetch the file itself"),
    (b"\n  <html lang=en>" + b" " * 600, "web page", "logged in"),
    (b'{"weight_map": {"a": "model-00001.safetensors"}}', "JSON", "directory or the shards"),
    (b"GGUF\3\0\0\0" + bytes(100), "GGUF", "llama.cpp"),
    (b"\x89HDF\r\n\x1a\n" + bytes(100), "HDF5", "h5py"),
    (bytes(1000), "00 00", ""),
    (b"\xff" * 1000, "ff ff", ""),
    (b"just some text, and more of it, for a while\n" * 20, "", ""),
])  # fmt: skip
def test_the_error_for_another_format_names_it_with_advice(tmp_path, data, says, advises):
    path = file(tmp_path, data)
    error = refused(path, rustload.FormatError, "UnknownFormat")
    assert says in str(error)
    assert advises in note_of(error)
    assert note_of(error)
    assert error.path == str(path)
    assert str(path) in str(error)


@pytest.mark.parametrize("keep", [0.02, 0.3, 0.6, 0.9, 0.99, 0.9999])
def test_a_truncated_bin_is_a_format_error_with_advice(tmp_path, keep):
    data = saved({f"t{number}": torch.ones(500) for number in range(9)})
    path = file(tmp_path, data[: int(len(data) * keep)])
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(path)
    assert caught.value.code in {"ZipAmbiguous", "Truncated", "UnknownFormat"}
    assert "again" in note_of(caught.value)


@pytest.mark.parametrize("cut", [1, 8, 100, 3999])
def test_the_error_for_a_truncated_safetensors_has_the_sizes(save, cut):
    path = save({"x": torch.ones(1000)}, "m.safetensors")
    size = path.stat().st_size
    os.truncate(path, size - cut)
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(path)
    assert caught.value.code in {"Truncated", "StOffsets"}
    text = str(caught.value)
    assert {str(size), str(4000), str(cut)} & set(text.replace(",", " ").replace("(", " ").split()), text
    assert note_of(caught.value)


@pytest.mark.parametrize(
    ("shape", "start", "text"),
    [
        ("[2]", 4, "leaves a gap after the data before it, which ends at 0"),
        ("[2.0]", 0, "2.0 in shape is not an unsigned 64-bit integer"),
    ],
)
def test_the_error_for_a_header_says_what_it_has(tmp_path, shape, start, text):
    header = b'{"a":{"dtype":"F32","shape":%b,"data_offsets":[%d,%d]}}' % (shape.encode(), start, start + 8)
    path = file(tmp_path, len(header).to_bytes(8, "little") + header + bytes(start + 8))
    with pytest.raises(rustload.FormatError, match=re.escape(text)):
        rustload.open(path)


def test_a_missing_file_is_file_not_found_with_its_name(tmp_path):
    path = tmp_path / "none.bin"
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open(path)
    assert caught.value.errno == 2
    assert caught.value.filename == str(path)
    assert caught.value.code == "Io"


def test_a_missing_file_has_its_name_where_the_working_directory_is_gone(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open("none.bin")
    assert caught.value.filename == "none.bin"


def test_an_empty_file_of_proc_is_an_error():
    with coded(rustload.FormatError, "NotRegularFile"):
        rustload.open("/proc/self/status")


def test_the_error_for_a_directory_without_a_checkpoint_lists_the_expected_names(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    error = refused(tmp_path, rustload.FormatError, "UnknownFormat")
    assert "it has config.json" in str(error)
    for looked_for in ("*.safetensors", "*.bin", "*.index.json", ".metadata"):
        assert looked_for in note_of(error)


# Shards.


def index_of(tmp_path, weight_map, name="model.safetensors.index.json"):
    path = tmp_path / name
    path.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path


@pytest.mark.parametrize("how", ["index", "directory"])
def test_missing_shards_are_all_listed(tmp_path, how):
    weight_map = {f"t{number}": f"model-{number:05}-of-00004.safetensors" for number in range(1, 5)}
    safetensors.torch.save_file({"t2": torch.ones(1)}, tmp_path / weight_map["t2"])
    index = index_of(tmp_path, weight_map)
    error = refused(index if how == "index" else tmp_path, rustload.FormatError, "ShardMissing")
    for number in (1, 3, 4):
        assert weight_map[f"t{number}"] in str(error)
    assert weight_map["t2"] not in str(error)
    assert "ownload" in note_of(error)


def test_a_gap_in_numbered_shards_is_listed(tmp_path):
    for number in (1, 4):
        torch.save({f"t{number}": torch.ones(1)}, tmp_path / f"pytorch_model-{number:05}-of-00004.bin")
    error = refused(tmp_path, rustload.FormatError, "ShardMissing")
    assert "00002" in str(error)
    assert "00003" in str(error)


def test_the_error_for_an_index_with_an_absent_key_names_the_key(tmp_path):
    safetensors.torch.save_file({"a": torch.ones(1)}, tmp_path / "one.safetensors")
    error = refused(
        index_of(tmp_path, {"a": "one.safetensors", "b": "one.safetensors"}), rustload.FormatError, "IndexKey"
    )
    assert '"b"' in str(error)
    assert note_of(error)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 5}}', '{"other": {}}', '{"weight_map": {"w": "1.st"}} x',
        '{"weight_map": {"w": "1.st", "w": "1.st"}}', '{"weight_map": {}, "weight_map": {}}',
        *(json.dumps({"weight_map": {"w": name}})
          for name in ("../1.st", "a/../../b.st", "/etc/passwd", "..", "", "a\\b", "C:x", "a\0b")),
    ],
)  # fmt: skip
def test_a_broken_index_is_index_format(tmp_path, text):
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(text)
    (tmp_path / "1.st").write_bytes(b"x")
    assert refused(path, rustload.FormatError, "IndexFormat").path == str(path)


def test_one_name_in_two_shards_without_an_index_is_shard_duplicate(tmp_path):
    for number in (1, 2):
        torch.save({"a": torch.ones(1)}, tmp_path / f"pytorch_model-{number:05}-of-00002.bin")
    for given in (tmp_path, sorted(tmp_path.iterdir())):
        error = refused(given, rustload.FormatError, "ShardDuplicate")
        assert '"a"' in str(error)
        assert note_of(error)


# safetensors.


def test_compat_takes_the_last_of_duplicate_keys_as_the_reference_does():
    header = b'{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"x":{"dtype":"I8","shape":[2,1],"data_offsets":[0,2]}}'
    data = safetensors_bytes(header, b"\1\2")
    assert "compat=True" in note_of(refused(bytearray(data), rustload.FormatError, "StDuplicateKey"))
    ckpt = rustload.open(bytearray(data), compat=True, framework="torch")
    assert list(ckpt) == ["x"]
    assert_same_bits(ckpt["x"].materialize(), safetensors.torch.load(data)["x"])


# Archives and pickles.


def test_bytes_after_the_pickle_are_refused_unless_ignored():
    data = torch_zip(pickled({"n": 1}) + b"more")
    error = refused(bytearray(data), rustload.FormatError, "TrailingData")
    assert "trailing='ignore'" in note_of(error)
    assert error.member.endswith("data.pkl")
    assert rustload.open(bytearray(data), trailing="ignore").objects == {"n": 1}


def test_an_error_in_a_pickle_has_member_and_offset():
    error = refused(bytearray(torch_zip(b"\x80\x02]q\x00\xfe.")), rustload.FormatError, "PickleOpcode")
    assert error.member == "archive/data.pkl"
    assert error.offset == 5
    assert "5" in str(error)
    assert error.path is None


# Limits.


@pytest.mark.parametrize("suffix", ["bin", "safetensors"])
def test_the_tensor_limit_applies_to_every_format_and_over_shards(tmp_path, suffix):
    write = torch.save if suffix == "bin" else safetensors.torch.save_file
    for number in (1, 2):
        write({f"t{number}{part}": torch.ones(1) for part in "ab"}, tmp_path / f"{number}.{suffix}")
    both = sorted(tmp_path.iterdir())
    with pytest.raises(rustload.LimitError):
        rustload.open(both, limits=rustload.Limits(tensors=3))
    assert len(rustload.open(both, limits=rustload.Limits(tensors=4))) == 4


def test_limits_are_checked_and_described():
    assert rustload.Limits().tensors == 4_000_000
    assert rustload.Limits(tensors=7).tensors == 7
    assert repr(rustload.Limits(tensors=7)) == "Limits(tensors=7)"
    assert set(rustload.Limits.describe()) >= {"tensors", "depth", "rank", "materialize_bytes"}
    for wrong in ({"tensor": 1}, {"tensors": -1}):
        with pytest.raises(ValueError, match="tensor"):
            rustload.Limits(**wrong)
    with pytest.raises(AttributeError):
        rustload.Limits().no_such_limit  # noqa: B018 - the access must fail


@pytest.mark.parametrize("wrong", ["3", 1.5, None, 2**64, 2**70])
def test_a_limit_of_a_wrong_type_or_size_is_refused(simple, wrong):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        rustload.open(simple, limits=rustload.Limits(tensors=wrong))


# Devices, and other arguments of materialize.


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda", 1)])
def test_a_missing_gpu_is_a_device_error_with_the_reason(simple, device):
    with coded(rustload.DeviceError, "Device") as caught:
        rustload.open(simple, framework="torch")["w"].materialize(device=device)
    assert isinstance(caught.value, RuntimeError)
    assert "CUDA" in note_of(caught.value) or "GPU" in note_of(caught.value)


def test_a_gpu_number_that_is_too_high_is_a_device_error(simple):
    with pytest.raises(rustload.DeviceError):
        rustload.open(simple, framework="torch")["w"].materialize(device="cuda:99")


@pytest.mark.parametrize("device", ["toaster", "cuda:x", "cpu:cuda", ""])
def test_a_device_that_torch_does_not_know_is_a_device_error(simple, device):
    with pytest.raises(rustload.DeviceError):
        rustload.open(simple, framework="torch")["w"].materialize(device=device)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda")])
def test_numpy_refuses_gpu_devices(simple, device):
    with pytest.raises(rustload.DeviceError, match="NumPy has host memory only"):
        rustload.open(simple, framework="numpy")["w"].materialize(device=device)


@pytest.mark.skipif(rustload.cuda_info()["available"], reason="needs a machine without a CUDA driver")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda")])
def test_buffers_on_a_gpu_need_the_driver(simple, device):
    with pytest.raises(rustload.DeviceError, match=r"is not available: there is no CUDA driver"):
        rustload.open(simple, framework="dlpack")["w"].materialize(device=device)


@pytest.mark.parametrize("device", ["toaster", "cuda:x", "cuda:", "mps"])
def test_a_device_unknown_to_buffers_is_a_device_error(simple, device):
    with pytest.raises(rustload.DeviceError, match="is none of"):
        rustload.open(simple, framework="dlpack")["w"].materialize(device=device)


@pytest.mark.parametrize("framework", ["torch", "numpy", "dlpack"])
@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
def test_every_framework_accepts_the_cpu(simple, framework, device):
    assert tuple(rustload.open(simple, framework=framework)["w"].materialize(device=device).shape) == (4, 6)


def test_the_device_is_checked_before_anything_is_read(simple):
    lazy = rustload.open(simple, framework="torch")["w"]
    os.truncate(simple, 0)
    with pytest.raises(rustload.DeviceError):
        lazy.materialize(device="cuda:99", copy=True)


def newest_task() -> int:
    """The newest task's number: Linux counts processes and threads upwards, over the whole machine."""
    return int(Path("/proc/loadavg").read_text().split()[-1])


def test_no_more_threads_start_than_the_work_needs(save):
    """4,000 threads would exhaust the machine."""
    lazy = rustload.open(save({"x": torch.ones(3_000_000)}), framework="torch")["x"]
    before = newest_task()
    found = lazy.materialize(dtype="bfloat16", threads=4000)
    started = (newest_task() - before) % int(Path("/proc/sys/kernel/pid_max").read_text())
    assert found.sum() > 0
    assert started < 2000  # other processes start tasks too


# The classes.


def test_every_exception_is_a_rustload_error_and_a_builtin():
    bases = {
        rustload.FormatError: ValueError,
        rustload.UnsupportedError: NotImplementedError,
        rustload.DisallowedError: __import__("pickle").UnpicklingError,
        rustload.LimitError: Exception,
        rustload.TensorNotFoundError: KeyError,
        rustload.DeviceError: RuntimeError,
        rustload.InternalError: RuntimeError,
    }
    for kind, base in bases.items():
        assert issubclass(kind, rustload.RustloadError)
        assert issubclass(kind, base)
        assert getattr(rustload.errors, kind.__name__) is kind


def test_a_message_is_lower_case_without_a_final_period(tmp_path):
    for data in (b"", LFS, b"\x1f\x8b" + bytes(50), saved({}) + b"x", safetensors_bytes(b'{"x":')):
        with pytest.raises(rustload.RustloadError) as caught:
            rustload.open(file(tmp_path, data))
        text = str(caught.value)
        assert not text.endswith(".")
        assert text.removeprefix(str(tmp_path / "model.bin") + ": ").partition(" ")[0].istitle() is False, (
            text
        )


@pytest.mark.parametrize(
    "wrong", [None, 3, 3.0, [3], [None], object(), {"w": torch.ones(2)}, rustload.open(b"\x80\2K\1K\2\x86.")]
)
def test_an_argument_that_is_neither_a_path_nor_a_file_is_a_type_error(wrong):
    with pytest.raises(TypeError, match="path"):
        rustload.open(wrong)


def test_a_missing_path_suggests_a_similar_name(tmp_path):
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open(tmp_path / "model.safetensor")
    assert caught.value.__notes__ == ["did you mean: model.safetensors"]
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open("bert-base-uncased")
    assert "hf://ORGANIZATION/NAME" in caught.value.__notes__[0]


@pytest.mark.parametrize("length", [199, 200, 201, 100_000])
def test_reprs_and_messages_abbreviate_long_names(length):
    name = "a" * (length - 1) + "z"
    data = saved({name: torch.ones(2), "argparse": argparse.Namespace(w=1)})
    ckpt = rustload.open(data, framework="torch")
    assert name in ckpt
    for text in (
        repr(ckpt[name]),
        repr(ckpt[name][:1]),
        repr(rustload.torch.state_dict(data)[name]),
        repr(rustload.Global("m" * length, "z")),
        repr(rustload.concat([ckpt[name]])),
    ):
        assert len(text) <= 280, text[:300]
        assert ("..." in text) == (length > 200 and "JoinedTensor" not in text) or "<global" in text
    assert repr(ckpt[name]).startswith("<LazyTensor 'aaa")
    assert "z' float32 [2] 8 B>" in repr(ckpt[name])
    with pytest.raises(rustload.TensorNotFoundError) as caught:
        ckpt[name + "y"]
    assert caught.value.name == name + "y"
    assert len(str(caught.value)) <= 1010
    assert all(len(note) <= 1010 for note in caught.value.__notes__)
    with pytest.raises(rustload.ModelMismatchError) as caught:
        rustload.torch.load_into(torch.nn.Linear(2, 2), data)
    assert len(str(caught.value)) <= 2000
    with pytest.warns(rustload.RustloadWarning) as warned:
        assert ckpt.select("q" * length + "*") == {}
    assert len(str(warned[0].message)) <= 1010


@pytest.mark.parametrize(
    ("device", "kind", "note"),
    [
        (torch.float16, TypeError, "pass a dtype as dtype="),
        ("bfloat16", rustload.DeviceError, "pass a dtype as dtype='bfloat16'"),
        (3.5, TypeError, None),
    ],
)
def test_a_dtype_in_the_place_of_the_device_is_an_error_with_advice(device, kind, note, tmp_path):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    with pytest.raises(kind, match="device") as caught:
        rustload.open(tmp_path / "m.pt", framework="torch")["w"].materialize(device)
    assert getattr(caught.value, "__notes__", [None]) == [note]


def test_a_note_keeps_its_remedies_for_other_faces(simple, tmp_path):
    data = simple.read_bytes() + b"x"
    error = refused(file(tmp_path, data), rustload.FormatError, "ZipTrailing")
    for one in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
        (note,) = one.__notes__
        assert note == "Pass trailing='ignore' if you know why they are there."
        assert note.remedies == (("pass", "trailing", "ignore", "if you know why they are there"),)


def test_an_error_has_the_argument_that_is_at_fault(simple):
    with pytest.raises(ValueError, match=r"^unknown= is 'keep' or 'error', not 'x'") as caught:
        rustload.open(simple, unknown="x")
    assert caught.value.argument == "unknown"
    with pytest.raises(ValueError, match=r"^order= is 'file', 'name' or 'given', not 'x'$") as caught:
        rustload.open(simple).stream(order="x")
    assert caught.value.argument == "order"
    tensor = next(iter(rustload.open(simple).values()))
    with pytest.raises(TypeError, match=r"^device= is a device such as 'cpu'") as caught:
        tensor.materialize(torch.float32)
    assert caught.value.argument == "device"
    assert refused(b"", rustload.FormatError, "UnknownFormat").argument is None
