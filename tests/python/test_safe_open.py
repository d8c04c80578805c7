"""`rustload.safe_open` behaves as `safetensors.safe_open`: each test calls both and compares."""

import copy
import json
import pickle
import struct
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from support import child, divided, sparse, write_shards

import rustload

# ruff: noqa: UP031, RUF005, PT017 - JSON is full of braces; the long lists are joined; one test is about a race


REFERENCE = safetensors.safe_open
STATE = {
    "b": torch.arange(24, dtype=torch.float32).reshape(4, 6),
    "a": torch.arange(5, dtype=torch.int64),
    "s": torch.tensor(3.5),
    "z": torch.zeros(0, 3),
    "h": torch.arange(6).to(torch.bfloat16).reshape(2, 3),
    "t": torch.tensor([[True, False], [False, True]]),
    "e8": torch.ones(3).to(torch.float8_e4m3fn),
    "c": torch.ones(2, dtype=torch.complex64),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("safe_open") / "model.safetensors"
    safetensors.torch.save_file(STATE, path, {"format": "pt", "by": "test"})
    return path


@pytest.fixture(scope="module")
def pickled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("safe_open") / "model.bin"
    torch.save(STATE, path)
    return path


@pytest.fixture(params=["model.safetensors", "model.bin", "shards"])
def any_format(request: pytest.FixtureRequest, model: Path, pickled: Path, tmp_path: Path) -> Path:
    if request.param != "shards":
        return {"model.safetensors": model, "model.bin": pickled}[request.param]
    parts = divided(dict(sorted(STATE.items())), 2)
    return write_shards(tmp_path, parts, metadata={"format": "pt"})


def comparable(value: Any) -> Any:
    """A value that can be compared: kind, dtype, shape and bytes of tensors and arrays."""
    if isinstance(value, torch.Tensor):
        raw = (
            value.detach()
            .cpu()
            .clone(memory_format=torch.contiguous_format)
            .reshape(-1)
            .view(torch.uint8)
            .numpy()
            .tobytes()
        )
        return "tensor", str(value.dtype), tuple(value.shape), str(value.device), raw
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.shape, value.flags.writeable, value.tobytes()
    if isinstance(value, tuple):
        return tuple(comparable(item) for item in value)
    if isinstance(value, dict) and not any(isinstance(item, torch.Tensor) for item in value.values()):
        return value  # metadata, which the reference orders by hash
    if isinstance(value, dict):
        return [(key, comparable(item)) for key, item in value.items()]
    if isinstance(value, (rustload.safe_open, REFERENCE)):
        return "handle"
    return value


def outcome_of(call: Callable[[], Any]) -> Any:
    """The result of a call, or the name and text of its error; the text of a missing file is Python's own."""
    try:
        return comparable(call())
    except FileNotFoundError as error:
        return "raises", type(error).__name__, None
    except BaseException as error:  # the reference panics on some
        return "raises", type(error).__name__, str(error)


def assert_same_outcome(ask: Callable[[Any], Any]) -> Any:
    """Asserts that both packages have the same outcome, and returns it."""
    expected = outcome_of(lambda: ask(REFERENCE))
    assert outcome_of(lambda: ask(rustload.safe_open)) == expected
    return expected


def header(text: str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


# Opening


@pytest.mark.parametrize("framework", ["pt", "torch", "pytorch", "np", "numpy"])
def test_a_framework_has_its_aliases(model, framework):
    assert assert_same_outcome(lambda safe_open: safe_open(model, framework).get_tensor("b"))[0] in (
        "tensor",
        "array",
    )


@pytest.mark.parametrize("framework", ["PT", "xx", "", "paddlepaddle", None, 3, b"pt"])
def test_an_unknown_framework_is_refused_in_the_same_words(model, framework):
    assert assert_same_outcome(lambda safe_open: safe_open(model, framework))[0] == "raises"


@pytest.mark.parametrize("framework", ["tf", "tensorflow", "mlx", "paddle"])
def test_an_unsupported_framework_is_named(model, framework):
    with pytest.raises(rustload.SafetensorError, match=f"framework {framework} is not supported"):
        rustload.safe_open(model, framework)


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        None,
        "",
        "xx",
        "CPU",
        "cpu:0",
        "meta",
        "cudax",
        "cuda:x",
        "cuda:",
        "cuda:-1",
        "cuda: 1",
        "cuda:+1",
    ]
    + ["cuda:01", f"cuda:{2**64}", f"cuda:{2**64 - 1}", "xpu:1:2", "mps", "mps:0", "mps:1", "mps:x", "mps:"]
    + ["cuda", "cuda:0", "npu:1", "xpu", "xla:2", "mlu", "musa", "hpu:3", 0, 1, True, -1, 2**70, 1.5, b"cpu"],
)
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_devices_are_parsed_and_refused_as_by_the_reference(model, framework, device):
    assert_same_outcome(lambda safe_open: safe_open(model, framework, device))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0, torch.device("cuda:0")])
def test_without_a_gpu_the_file_opens_and_a_tensor_is_a_device_error(model, device):
    with rustload.safe_open(model, "pt", device) as f:
        assert f.keys() == sorted(STATE)
        with pytest.raises(rustload.DeviceError, match="not available"):
            f.get_tensor("a")
        with pytest.raises(rustload.DeviceError, match="not available"):
            f.get_slice("a")[...]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("device", ["cuda", "cuda:0", 0])
def test_tensors_are_on_the_gpu(any_format, device, backend):
    with rustload.safe_open(any_format, "pt", device, backend=backend) as f:
        for name, tensor in f.get_tensors().items():
            assert tensor.device == torch.device("cuda", torch.cuda.current_device())
            assert comparable(tensor.cpu()) == comparable(STATE[name])
        part = f.get_slice("b")[1:3, ::2]
        assert part.is_cuda
        assert torch.equal(part.cpu(), STATE["b"][1:3, ::2])


@pytest.mark.parametrize("backend", ["mmap", "pread", "xx", "MMAP", "", None, 3])
def test_backends_are_those_of_the_reference(model, backend):
    assert_same_outcome(lambda safe_open: safe_open(model, "pt", backend=backend))


def test_the_backend_is_keyword_only(model):
    with pytest.raises(TypeError, match="positional argument"):
        rustload.safe_open(model, "pt", "cpu", "mmap")  # type: ignore[misc]


@pytest.mark.parametrize("path", [b"m", 3, None, ["m"], "missing", "", "m\0", "/missing/x"])
def test_a_wrong_or_missing_path_is_refused_in_the_same_words(path):
    assert assert_same_outcome(lambda safe_open: safe_open(path, "pt"))[0] == "raises"


def test_a_path_below_a_file_is_missing(model):
    assert assert_same_outcome(lambda safe_open: safe_open(model / "x", "pt"))[1] == "FileNotFoundError"


def test_a_directory_without_a_checkpoint_is_an_error(tmp_path):
    with pytest.raises((rustload.SafetensorError, OSError)):
        rustload.safe_open(tmp_path, "pt")


@pytest.mark.parametrize(
    "given",
    [("missing", "xx", "yy", "zz"), ("missing", "np", "cuda", "zz"), ("missing", "np", "cuda", "mmap")]
    + [
        ("missing", "pt", "yy", "mmap"),
        ("missing", "np", "yy", "zz"),
        (b"m", 3, b"d", 4),
        ("missing", 3, 1.5, 4),
    ],
)
def test_arguments_are_checked_in_the_same_order(given):
    path, framework, device, backend = given
    assert (
        assert_same_outcome(lambda safe_open: safe_open(path, framework, device, backend=backend))[0]
        == "raises"
    )


# The handle


@pytest.mark.parametrize("method", ["keys", "offset_keys", "metadata", "get_tensors"])
def test_a_method_without_arguments_returns_the_same(model, method):
    assert_same_outcome(lambda safe_open: getattr(safe_open(model, "pt"), method)())


def test_keys_is_a_sorted_list_and_offset_keys_the_files_order(model):
    f = rustload.safe_open(model, "pt")
    assert type(f.keys()) is type(f.offset_keys()) is list
    assert f.keys() == sorted(STATE) == sorted(f.offset_keys())


@pytest.mark.parametrize("text", ["{}", '{"__metadata__":null}', '{"__metadata__":{"a":"b"}}'])
def test_metadata_is_a_dict_or_none(tmp_path, text):
    (tmp_path / "m").write_bytes(header(text))
    assert_same_outcome(lambda safe_open: safe_open(tmp_path / "m", "pt").metadata())


@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("framework", ["pt", "np"])
@pytest.mark.parametrize("name", sorted(STATE))
def test_get_tensor_returns_the_same(model, framework, backend, name):
    if framework == "np" and name in ("e8", "h"):
        # The reference has no fp8 in NumPy, and bf16 only after ml_dtypes was imported.
        array = rustload.safe_open(model, framework, backend=backend).get_tensor(name)  # type: ignore[arg-type]
        assert array.tobytes() == bytes(STATE[name].view(torch.uint8).flatten().tolist())
        assert array.flags.writeable
        return
    assert_same_outcome(lambda safe_open: safe_open(model, framework, backend=backend).get_tensor(name))


def test_numpy_arrays_are_independent_and_do_not_own_their_memory(model):
    def edited(safe_open: Any) -> Any:
        f = safe_open(model, "np")
        first = f.get_tensor("b")
        first[:] = -1
        return first.flags.owndata, f.get_tensor("b"), f.get_slice("b")[1:]

    assert_same_outcome(edited)


@pytest.mark.parametrize("method", ["get_tensor", "get_slice"])
@pytest.mark.parametrize("name", ["zz", "", 3, b"b", None])
def test_an_unknown_name_is_refused_in_the_same_words(model, method, name):
    assert assert_same_outcome(lambda safe_open: getattr(safe_open(model, "pt"), method)(name))[0] == "raises"


def test_an_unknown_name_is_no_key_error_and_notes_near_names(model):
    with pytest.raises(rustload.SafetensorError, match="File does not contain tensor e9") as caught:
        rustload.safe_open(model, "pt").get_tensor("e9")
    assert not isinstance(caught.value, KeyError)
    assert "did you mean: e8" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("method", "given"),
    [("keys", ()), ("offset_keys", ()), ("metadata", ()), ("get_tensors", ()), ("get_tensor", ("a",))]
    + [("get_tensor", ("zz",)), ("get_slice", ("a",))],
)
def test_every_method_of_a_closed_file_is_refused(model, method, given):
    def closed(safe_open: Any) -> Any:
        with safe_open(model, "pt") as f:
            pass
        return getattr(f, method)(*given)

    assert assert_same_outcome(closed) == ("raises", "SafetensorError", "File is closed")


def test_closing_twice_and_entering_a_closed_file_are_no_errors(model):
    f = rustload.safe_open(model, "pt")
    assert f.__exit__(None, None, None) is None  # type: ignore[func-returns-value]
    f.__exit__(None, None, None)
    assert f.__enter__() is f


def test_tensors_and_slices_outlive_the_handle(any_format):
    for backend in ("mmap", "pread"):
        with rustload.safe_open(any_format, "pt", backend=backend) as f:  # type: ignore[arg-type]
            part, whole = f.get_slice("b"), f.get_tensor("b")
        del f
        assert torch.equal(whole, STATE["b"])
        assert torch.equal(part[1], STATE["b"][1])
        assert part.get_shape() == [4, 6]


def test_a_handle_is_hashable_and_no_container(model):
    f: Any = rustload.safe_open(model, "pt")
    assert len({f, f}) == 1
    assert f == f
    for wrong in (lambda: iter(f), lambda: "a" in f, lambda: len(f), lambda: f["a"]):
        with pytest.raises(TypeError):
            wrong()


def test_pickling_handles_and_slices_is_refused_in_the_same_words(model):
    for use in (pickle.dumps, copy.copy, copy.deepcopy):
        assert_same_outcome(lambda safe_open, use=use: use(safe_open(model, "pt")))
        assert_same_outcome(lambda safe_open, use=use: use(safe_open(model, "pt").get_slice("a")))


def test_slices_have_no_public_constructor():
    with pytest.raises(TypeError, match="cannot create"):
        rustload.PySafeSlice()


# Views


def test_torch_tensors_are_copy_on_write_views_of_one_memory(any_format):
    files = [any_format] if any_format.is_file() else list(any_format.iterdir())
    before = [file.read_bytes() for file in files]
    with rustload.safe_open(any_format, "pt") as f:
        first = f.get_tensor("b")
        first[0, 0] = 99
        assert f.get_tensor("b")[0, 0] == 99
        assert f.get_slice("b")[0, 0] == 99
        assert f.get_slice("b")[:2].untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
    assert [file.read_bytes() for file in files] == before
    assert rustload.safe_open(any_format, "pt").get_tensor("b")[0, 0] == 0


def test_pread_returns_owned_memory(any_format):
    with rustload.safe_open(any_format, "pt", backend="pread") as f:
        first = f.get_tensor("b")
        first[0, 0] = 99
        assert f.get_tensor("b")[0, 0] == 0
        assert f.get_slice("b")[0].untyped_storage().nbytes() == 24


def test_a_slice_reads_its_bytes_only(tmp_path):
    path = sparse(tmp_path / "big.safetensors", {"w": ("F32", [1 << 28, 4])})
    code = (
        "import pathlib, sys, rustload\n"
        "for framework, backend in (('np', 'mmap'), ('pt', 'pread'), ('pt', 'mmap')):\n"
        "    f = rustload.safe_open(sys.argv[1], framework, backend=backend)\n"
        "    assert f.get_slice('w')[-1:].shape == (1, 4) if framework == 'pt' else f.get_slice('w')[-1].shape == (4,)\n"
        "    assert tuple(f.get_slice('w')[::1 << 20, 1].shape) == (256,)\n"
        # Not ru_maxrss, which counts the parent's memory until exec.
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(status.split('VmHWM:')[1].split()[0])\n"
    )
    assert int(child(code, path).stdout) < 1 << 20  # KiB


def test_misaligned_tensors_are_read(tmp_path):
    entry = '"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}}'
    text = "{" + entry.format("a", "U8", 1, 0, 1) + "," + entry.format("b", "F32", 3, 1, 13) + "}"
    path = tmp_path / "odd.safetensors"
    path.write_bytes(header(text, b"\1" + np.arange(3, dtype="<f4").tobytes()))
    for name, key in (("b", ...), ("b", slice(1, None)), ("b", -1), ("b", None), ("b", [0, 2])):
        assert_same_outcome(lambda safe_open, name=name, key=key: safe_open(path, "pt").get_slice(name)[key])
    assert_same_outcome(lambda safe_open: safe_open(path, "np").get_tensor("b"))


# Slices


class Keys:
    def __getitem__(self, key: Any) -> Any:
        return key


k = Keys()
KEYS: list[Any] = [
    k[...], k[()], k[0], k[-1], k[-5], k[-7], k[99], k[1:3], k[1:99], k[::2], k[::-1], k[::0], k[:0], k[-2:], k[:-1],
    k[None], k[None, 0], k[0, 0], k[0, -1], k[0, -7], k[:, 0], k[:, -1], k[..., 0], k[..., 0:2], k[0, ...], k[0, ..., 0],
    k[..., ...], k[..., -7], k[..., None], k[0, 0, 0], k[0, 0, -1], k[99, 99], k[99, 0], k[[0, 1]], k[[]], k[[0, 1], 0],
    k[:, [0, 1]], k[:, []], k[True], k[False], k[1.5], k["a"], k[b"x"], k[{}], k[(1,), ], k[1, (0, 1)], k[2**31], k[-(2**31) - 1],
    k[4:], k[4:4], k[5:], k[3:4], k[3:3], k[0:0], k[6:2], k[4:2], k[0:4:9], k[1:4:2], k[::2, ::3], k[1:2, 1:2], k[0:1], k[:, :],
    k[0.5:2], k["a":], k[:: 1.5], k[: 2**63], k[: 2**64], k[:: 2**40], k[:: 2**70], k[-1:1:0], k[1:-1:-1], k[True:3],
    k[1:3:True], k[0, 1:99], k[..., 99], k[np.int64(1)], k[np.int64(-1)], k[np.int8(2)], k[np.True_], k[np.float32(1)],
    k[np.array(1)], k[np.array([0, 1])], k[torch.tensor(1)], k[torch.tensor([1])], k[torch.tensor(True)], k[range(2)],
    k[np.int64(1) : np.int64(3)], k[0:0, 3:3], k[:, 3:], k[..., 3], k[:], k[1:0, 0:1],
]  # fmt: skip


@pytest.mark.parametrize("name", ["b", "a", "s", "z", "t"])
@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_torch_indexes_as_the_reference_does(model, any_format, name):
    for key in [key for key in KEYS if repr(key) != repr(k[:: 2**70])]:
        expected = outcome_of(lambda key=key: REFERENCE(model, "pt").get_slice(name)[key])
        for backend in ("mmap", "pread"):
            f = rustload.safe_open(any_format, "pt", backend=backend)  # type: ignore[arg-type]
            found = outcome_of(lambda f=f, key=key: f.get_slice(name)[key])
            torchs_own_words = expected[0] == "raises" and "C++" in expected[2]
            assert found[:2] == expected[:2] if torchs_own_words else found == expected, key


@pytest.mark.parametrize("name", ["b", "a", "s", "z", "t"])
def test_numpy_indexes_as_the_reference_does(model, any_format, name):
    for key in KEYS:
        expected = outcome_of(lambda key=key: REFERENCE(model, "np").get_slice(name)[key])
        found = outcome_of(lambda key=key: rustload.safe_open(any_format, "np").get_slice(name)[key])
        reversed_range = expected[1] in ("SystemError", "PanicException")
        empty = name == "z" and expected[0] == "raises" and "of size 0" in expected[2]
        if found[0] != "raises" and (reversed_range or empty):
            # The reference fails on a range that ends before it begins and on dimensions of size 0; rustload returns
            # NumPy's result.
            assert found == comparable(STATE[name].numpy()[key]), key
        else:
            assert found == expected, key


@pytest.mark.parametrize("key", [k[...], k[()], k[:], k[:, :], k[0:0], k[:, 1], k[..., 0:2], k[[]]], ids=repr)
@pytest.mark.parametrize("backend", ["mmap", "pread"])
@pytest.mark.parametrize("framework", ["pt", "np"])
def test_empty_tensors_are_sliced(model, framework, backend, key):
    found = rustload.safe_open(model, framework, backend=backend).get_slice("z")[key]
    assert tuple(found.shape) == STATE["z"].numpy()[key].shape


def test_a_slice_has_the_shape_and_dtype_code_of_the_reference(model):
    for name in STATE:
        shape, code = assert_same_outcome(
            lambda safe_open, s=name: (lambda f: (f.get_shape(), f.get_dtype()))(
                safe_open(model, "pt").get_slice(s)
            )
        )
        assert type(shape) is list
        assert type(code) is str


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
def test_dtypes_that_the_format_lacks_have_codes_of_the_same_pattern(tmp_path):
    torch.save(
        {"c": torch.ones(2, dtype=torch.complex128), "h": torch.ones(2, dtype=torch.complex32)},
        tmp_path / "c.pt",
    )
    f = rustload.safe_open(tmp_path / "c.pt", "pt")
    assert [f.get_slice(name).get_dtype() for name in sorted(f.keys())] == ["C128", "C32"]


def test_every_dtype_of_the_format_has_its_code(tmp_path):
    codes = {
        4: "F4",
        8: "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
        16: "I16 U16 F16 BF16",
        32: "I32 U32 F32",
        64: "C64 F64 I64 U64",
    }
    for code, width in [(code, bits) for bits, names in codes.items() for code in names.split()]:
        text = '{"a":{"dtype":"%s","shape":[2,4],"data_offsets":[0,%d]}}' % (code, width)
        (tmp_path / "m").write_bytes(header(text, bytes(width)))
        assert_same_outcome(
            lambda safe_open: (lambda s: (s.get_shape(), s.get_dtype()))(
                safe_open(tmp_path / "m", "pt").get_slice("a")
            )
        )
        assert_same_outcome(lambda safe_open: safe_open(tmp_path / "m", "pt").get_tensor("a"))
        assert rustload.safe_open(tmp_path / "m", "pt").get_tensor_meta("a") == (code, [2, 4], (0, width))


def test_f4_has_half_as_many_columns_in_torch_and_can_be_sliced(tmp_path):
    (tmp_path / "m").write_bytes(
        header('{"a":{"dtype":"F4","shape":[2,4],"data_offsets":[0,4]}}', b"\x12\x34\x56\x78")
    )
    for backend in ("mmap", "pread"):
        part = rustload.safe_open(tmp_path / "m", "pt", backend=backend).get_slice("a")[1, :1]  # type: ignore[arg-type]
        assert part.view(torch.uint8).tolist() == [0x56]


def test_tensor_meta_has_dtype_shape_and_data_offsets(model, pickled):
    f, data = rustload.safe_open(model, "pt"), model.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    described = json.loads(data[8:start])
    for name in STATE:
        meta = f.get_tensor_meta(name)
        assert [meta.dtype, meta.shape, list(meta.data_offsets or ())] == [
            described[name]["dtype"],
            described[name]["shape"],
            described[name]["data_offsets"],
        ]
    assert rustload.safe_open(pickled, "pt").get_tensor_meta("h") == ("BF16", [2, 3], None)
    with pytest.raises(rustload.SafetensorError, match="does not contain tensor zz"):
        f.get_tensor_meta("zz")


def test_data_offsets_of_shards_have_the_size_of_the_tensor(any_format):
    f = rustload.safe_open(any_format, "pt")
    for name in f.keys():  # noqa: SIM118 - a handle is not a mapping
        offsets = f.get_tensor_meta(name).data_offsets
        assert offsets is None or offsets[1] - offsets[0] == STATE[name].nbytes


# Other formats


def test_every_format_has_the_same_tensors(any_format):
    for framework in ("pt", "np"):
        with rustload.safe_open(any_format, framework) as f:
            assert f.keys() == sorted(STATE)
            assert (f.metadata() or {})["format"] == "pt"
            for name, tensor in f.get_tensors().items():
                raw = STATE[name].reshape(-1).view(torch.uint8).numpy().tobytes()
                got = tensor.reshape(-1).view(torch.uint8).numpy() if framework == "pt" else tensor
                assert got.tobytes() == raw
                assert f.get_slice(name).get_shape() == list(STATE[name].shape)


def test_strided_and_tied_tensors_of_a_pickle_are_sliced(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    torch.save({"w": base.T, "tied": base, "p": torch.nn.Parameter(base[1])}, tmp_path / "m.pt")
    f = rustload.safe_open(tmp_path / "m.pt", "pt")
    assert f.get_tensor("w").untyped_storage().data_ptr() == f.get_tensor("tied").untyped_storage().data_ptr()
    for key in (k[...], k[1], k[::2, -1], k[None, 1:99], k[[0, 2]]):
        assert torch.equal(f.get_slice("w")[key], base.T[key])
        owned = rustload.safe_open(tmp_path / "m.pt", "pt", backend="pread").get_slice("w")[key]
        assert torch.equal(owned, base.T[key])
    assert np.array_equal(
        rustload.safe_open(tmp_path / "m.pt", "np").get_slice("w")[1:, 0], base.T.numpy()[1:, 0]
    )
    assert not f.get_tensor("p").requires_grad


# Errors


TENSOR = '{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'
FIELDS = '{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'


def with_fields(**fields: str) -> str:
    every = {"dtype": '"F32"', "shape": "[2]", "data_offsets": "[0,8]"} | fields
    return '{"a":{' + ",".join(f'"{name}":{value}' for name, value in every.items() if value) + "}}"


def two_tensors(first: str, second: str) -> str:
    return f'{{"a":{{"dtype":"F32",{first}}},"b":{{"dtype":"F32",{second}}}}}'


BROKEN = {
    "no bytes": b"",
    "seven bytes": b"1234567",
    "length zero": b"\0" * 8,
    "length past the end": header("{}", length=99),
    "length just past the end": header("{}", length=3),
    "length at the most": header("{}", length=100_000_000),
    "length too large": header("{}", length=100_000_001),
    "length all ones": header("{}", length=2**64 - 1),
    "a web page": b"<!DOCTYPE html><html></html>",
    "a pointer file": b"version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 3\n",
    "zeros": bytes(4096),
    "not UTF-8": header(b"\xff{}"),
    "not UTF-8 in a name": header(b'{"a\xff":1}'),
    "UTF-8 cut short": header(b'{"a":"\xe2\x82'),
    "a surrogate in UTF-8": header(b'{"\xed\xa0\x80":1}'),
    "a byte order mark": header(b"\xef\xbb\xbf{}"),
    "trailing bytes": header(FIELDS, bytes(9)),
    "truncated": header(FIELDS, bytes(7)),
    "no data": header(FIELDS),
    "data without tensors": header("{}", b"x"),
    "hole": header(two_tensors('"shape":[1],"data_offsets":[0,4]', '"shape":[1],"data_offsets":[8,12]'), bytes(12)),
    "overlap": header(two_tensors('"shape":[2],"data_offsets":[0,8]', '"shape":[2],"data_offsets":[4,12]'), bytes(12)),
    "first not at zero": header(with_fields(shape="[1]", data_offsets="[4,8]"), bytes(8)),
    "end before begin": header(with_fields(data_offsets="[8,0]"), bytes(8)),
    "size": header(with_fields(shape="[3]"), bytes(8)),
    "size before a hole": header(two_tensors('"shape":[9],"data_offsets":[0,4]', '"shape":[1],"data_offsets":[8,12]'), bytes(12)),
    "size and trailing bytes": header(with_fields(shape="[3]"), bytes(16)),
    "offsets past 64 bits of file": header(with_fields(data_offsets="[0,18446744073709551615]"), bytes(8)),
    "overflow": header(with_fields(shape="[18446744073709551615,2]"), bytes(8)),
    "overflow in bytes": header(with_fields(shape="[9223372036854775807]"), bytes(8)),
    "half a byte": header(with_fields(dtype='"F4"', shape="[3]", data_offsets="[0,2]"), bytes(2)),
}  # fmt: skip
JSON = [
    "{", "{]", "xx", "[]", "3", "-3", "1.5", "true", '"a"', "null", "   ", "{} x", "{}}", "{}\0\0", '{"a":', '{"a"', '{"a":"x',
    '{"a":01}', '{"a":1.}', '{"a":tru}', '{"a":NaN}', "{'a':1}", "{/**/}", '{"\\x":1}', '{"a\n":1}', '{"é":x}', '{"éé\\x":1}',
    '{"\\ud800":%s}' % TENSOR, '{"a":%s,}' % TENSOR, '{"a":99999999999999999999}',
    with_fields(dtype='"F33"'), with_fields(dtype='"f32"'), with_fields(dtype='"C128"'), with_fields(dtype="3"),
    with_fields(dtype="null"), with_fields(dtype="1.5"), with_fields(dtype="[]"), with_fields(dtype=""),
    with_fields(shape="[-2]"), with_fields(shape="[2.0]"), with_fields(shape='["2"]'),
    with_fields(shape="[18446744073709551616]"),
    with_fields(shape="[2e0]"), with_fields(shape="[null]"), with_fields(shape='"2"'), with_fields(shape="{}"),
    with_fields(shape="[true]"), with_fields(shape="[[1]]"), with_fields(shape=""), with_fields(data_offsets="[-1,8]"),
    with_fields(data_offsets="[0]"), with_fields(data_offsets="[]"), with_fields(data_offsets="[0,8,9]"),
    with_fields(data_offsets=""), with_fields(data_offsets="3"), with_fields(data_offsets='["x",8]'),
    '{"a":null}', '{"a":"x"}', '{"a":true}', '{"a":1.5}', '{"a":{},"b":3}', '{"b":3,"__metadata__":{"a":1}}',
    '{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', '{"__metadata__":{"a":1}}',
    '{"__metadata__":{"a":null}}', '{"__metadata__":{"a":{"b":"c"}}}', '{"__metadata__":{"a":[]}}', '{"__metadata__":[]}',
    '{"__metadata__":"x"}', '{"__metadata__":1.5}', '{"__metadata__":{"a":"1"},"__metadata__":{"b":"2"}}',
]  # fmt: skip
BROKEN |= {text: header(text, bytes(8)) for text in JSON}


CODES = {
    "header too small": {"UnknownFormat"},
    "header too large": {"StHeader", "UnknownFormat"},
    "invalid header length": {"StHeader"},
    "invalid UTF-8": {"StHeader", "UnknownFormat"},
    "incomplete metadata": {"StOffsets"},
    "invalid offset": {"StOffsets"},
    "invalid shape": {"StOffsets"},
    "overflow": {"TensorShape"},
    "The slice is slicing for subbytes": {"StDtype"},
    "invalid JSON in header: unknown variant": {"StDtype"},
    "invalid JSON in header: duplicate field": {"StDuplicateKey"},
    "invalid JSON": {"StHeader", "StOffsets", "TensorShape", "UnknownFormat"},
}
"""The fault in the reference's words, and rustload's codes for it."""


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("suffix", [".safetensors", ""])
def test_a_broken_header_is_refused_with_the_same_class(tmp_path, what, suffix):
    path = tmp_path / f"m{suffix}"
    path.write_bytes(BROKEN[what])
    with pytest.raises(safetensors.SafetensorError) as theirs:
        REFERENCE(path, "pt")
    with pytest.raises(safetensors.SafetensorError) as ours:
        rustload.safe_open(path, "pt")
    with pytest.raises(rustload.RustloadError) as opened:
        rustload.open(path, compat=True)
    error, fault = ours.value, str(theirs.value).removeprefix("Error while deserializing header: ")
    assert error.code in next(codes for words, codes in CODES.items() if fault.startswith(words))
    assert isinstance(error, (rustload.FormatError, rustload.UnsupportedError))
    assert (str(error), error.__notes__) == (str(opened.value), opened.value.__notes__)
    assert (error.path, error.offset) == (str(path), opened.value.offset)


def test_an_error_of_the_file_is_a_rustload_error_as_well(tmp_path):
    (tmp_path / "m").write_bytes(BROKEN["truncated"])
    with pytest.raises(safetensors.SafetensorError) as caught:
        rustload.safe_open(tmp_path / "m", "pt")
    error = caught.value
    assert isinstance(error, rustload.SafetensorError)
    assert isinstance(error, rustload.FormatError)
    assert error.code == "StOffsets"
    assert "the file is truncated" in str(error)
    unpickled = pickle.loads(pickle.dumps(error))
    assert str(unpickled) == str(error)
    assert isinstance(unpickled, safetensors.SafetensorError)


def test_errors_do_not_import_safetensors(tmp_path):
    code = (
        "import sys, rustload\n"
        "try: rustload.safe_open(sys.argv[1], 'xx')\n"
        "except rustload.SafetensorError as error: assert type(error).__bases__ == (rustload.RustloadError,)\n"
        "assert not {'safetensors', 'torch', 'numpy'} & set(sys.modules)\n"
        "import safetensors\n"
        "try: rustload.safe_open(sys.argv[1], 'xx')\n"
        "except safetensors.SafetensorError as error: assert isinstance(error, rustload.SafetensorError)\n"
    )
    child(code, tmp_path)


def test_a_broken_pickle_is_a_safetensor_error_as_well(pickled, tmp_path):
    for name, data in (("m.bin", pickled.read_bytes()[:-9]), ("n.bin", BROKEN["a web page"])):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(rustload.SafetensorError) as caught:
            rustload.safe_open(tmp_path / name, "pt")
        assert isinstance(caught.value, rustload.FormatError)


@pytest.mark.parametrize(
    "text",
    ["{}", "{}      ", FIELDS, '{"a":%s,"a":%s}' % (TENSOR, TENSOR), '{"__metadata__":{"a":"1","a":"2"}}']
    + ['{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":%s}' % TENSOR]
    + [
        with_fields(x='{"y":[1,null]}'),
        '{"":%s}' % TENSOR,
        '{"\\u00e9\\n":%s}' % TENSOR,
        '{"\\u0000":%s}' % TENSOR,
    ],
)
def test_headers_that_the_reference_accepts_are_accepted(tmp_path, text):
    (tmp_path / "m").write_bytes(header(text, bytes(8) if "F32" in text else b""))
    names, _, _ = assert_same_outcome(
        lambda safe_open: (lambda f: (f.keys(), f.metadata(), comparable(f.get_tensors())))(
            safe_open(tmp_path / "m", "pt")
        )
    )
    assert names != "raises"


@pytest.mark.parametrize(
    ("text", "data"),
    [(" {}", b""), ("\n{}", b""), ("{}\t\n", b""), ('{"a":["F32",[2],[0,8]]}', bytes(8))]
    + [(with_fields(dtype='"F6_E2M3"', shape="[4]", data_offsets="[0,3]"), bytes(3))]
    + [(with_fields(dtype='"F4"', shape="[2,3]", data_offsets="[0,3]"), bytes(3))]
    + [(with_fields(shape=f"[{','.join('1' * 70)}]", data_offsets="[0,4]"), bytes(4))],
)
def test_headers_that_only_rustload_refuses_are_a_safetensor_error(tmp_path, text, data):
    (tmp_path / "m").write_bytes(header(text, data))
    REFERENCE(tmp_path / "m", "pt")
    with pytest.raises(rustload.SafetensorError):
        rustload.safe_open(tmp_path / "m", "pt")


# As other libraries use it


def test_transformers_slices_from_four_threads(any_format):
    with rustload.safe_open(any_format, framework="pt", device="cpu") as f:
        names = f.keys()
        parts = {name: f.get_slice(name) for name in names}
        with ThreadPoolExecutor(4) as pool:
            for _ in range(20):
                got = dict(zip(names, pool.map(lambda name: parts[name][...], names), strict=True))
                for name in names:
                    assert comparable(got[name]) == comparable(STATE[name])


def test_a_handle_is_used_by_threads_while_it_is_closed(model):
    for _ in range(20):
        f, failed = rustload.safe_open(model, "pt"), []

        def use(f: Any = f, failed: list[Any] = failed) -> None:
            for _ in range(50):
                try:
                    assert torch.equal(f.get_tensor("b"), STATE["b"])
                except rustload.SafetensorError as error:
                    assert str(error) == "File is closed"
                except Exception as error:
                    failed.append(error)

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        f.__exit__(None, None, None)
        for thread in threads:
            thread.join()
        assert not failed


def test_accelerate_lists_keys_and_checks_the_metadata(any_format):
    weights = rustload.safe_open(any_format, framework="pt")
    names = weights.keys()
    metadata = weights.metadata()
    assert metadata is None or metadata.get("format") in ("pt", "tf", "flax", "mlx")
    assert {name: list(weights.get_tensor(name).shape) for name in names} == {
        n: list(STATE[n].shape) for n in names
    }


def test_quantizers_check_whether_a_code_is_a_float(any_format):
    f = rustload.safe_open(any_format, framework="pt")
    floats = [name for name in f.keys() if f.get_slice(name).get_dtype().startswith(("F", "BF"))]  # noqa: SIM118
    assert floats == sorted(name for name, tensor in STATE.items() if tensor.is_floating_point())


def test_distributed_checkpoints_slice_with_tuples(any_format):
    source = rustload.safe_open(any_format, framework="pt").get_slice("b")
    slices = tuple(slice(0, size // 2) for size in source.get_shape())
    assert torch.equal(source[slices], STATE["b"][slices])


def test_load_file_of_safetensors_works_with_rustloads_safe_open(model, monkeypatch):
    monkeypatch.setattr(safetensors.torch, "safe_open", rustload.safe_open)
    loaded = safetensors.torch.load_file(model)
    assert {name: comparable(tensor) for name, tensor in loaded.items()} == {
        n: comparable(t) for n, t in STATE.items()
    }


def test_any_path_like_object_is_accepted(model):
    class Custom:
        def __fspath__(self) -> str:
            return str(model)

    assert rustload.safe_open(Custom(), "pt").keys() == sorted(STATE)
    wrong = SimpleNamespace(__fspath__=lambda: str(model))
    with pytest.raises(TypeError, match="argument 'filename'"):
        rustload.safe_open(wrong, "pt")  # type: ignore[arg-type]
