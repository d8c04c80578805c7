"""Plain pickles of torch tensors: each storage is a legacy stream in a bytes object, as untrusted as any file."""

import contextlib
import io
import pickle
import struct
import time
import warnings
from collections import OrderedDict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support import DTYPES, Reduced, assert_same_bits, patterns, saved

import rustload
import rustload.torch

PROTOCOLS = range(6)
# torch 2.13 writes these on an UntypedStorage, which its own `_load_from_bytes` does not take.
UNTYPED = frozenset(name for name in DTYPES if name.startswith(("uint16", "uint32", "uint64", "float8")))


def test_a_structured_or_subarray_dtype_is_not_read_as_a_plain_one():
    """With a subarray, or names and fields, the elements are not those that the dtype's name states."""
    array = np.arange(4, dtype="f4")
    data = pickle.dumps({"w": array}, 2)
    assert rustload.open(data, framework="numpy")["w"].materialize().tolist() == array.tolist()
    state = b"NNNJ\xff\xff\xff\xff"
    assert data.count(state) == 1
    for parts in (b"K\x02NN", b"NK\x02N", b"NNK\x02"):
        changed = data.replace(state, parts + state[3:])
        assert list(rustload.open(changed)) == []


def tensor_on(storage: Any, count: int = 3) -> Reduced:
    """A tensor on a storage, as torch writes it."""
    return Reduced(torch._utils._rebuild_tensor_v2, (storage, 0, (count,), (1,), False, OrderedDict()))


def load_from(stream: bytes) -> Reduced:
    return Reduced(torch.storage._load_from_bytes, (stream,))


def storage_stream(tensor: torch.Tensor) -> bytes:
    """The bytes that torch passes to `_load_from_bytes`."""
    _, (stream,) = tensor._typed_storage().__reduce__()
    assert isinstance(stream, bytes)
    return stream


def stream_of(
    key: str = "7",
    numel: int = 3,
    *,
    magic: int = 0x1950A86A20F9469CFC6C,
    protocol: bytes = b"\x80\x02M\xe9\x03.",
    system: bytes = b"\x80\x02}.",
    before: bytes = b"",
    storage: bytes | None = None,
    keys: tuple[str, ...] = ("7",),
    view: bytes = b"N",
    location: str = "cpu",
    data: bytes = struct.pack("<q3f", 3, 1, 2, 3),
) -> bytes:
    """A stream with a FloatStorage, each part as given; `before` are the first opcodes of the object's pickle."""
    if storage is None:
        count = b"\x8a\x09" + numel.to_bytes(9, "little", signed=True)
        named = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text(location)
        storage = named + count + view + b"tQ"
    obj = b"\x80\x02" + before + storage + b"."
    return pickle.dumps(magic, 2) + protocol + system + obj + pickle.dumps(list(keys), 2) + data


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def refused(obj: Any, **options: Any) -> rustload.RustloadError:
    with pytest.raises(rustload.RustloadError) as caught:
        rustload.open(pickle.dumps(obj, 4), **options)
    return caught.value


# What torch writes


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_of_every_dtype_equal_torchs(tmp_path, dtype, protocol):
    base = patterns(dtype, (4, 6))
    state = {"w": base, "t": base.t(), "part": base[1:3, ::2], "empty": base[:0], "scalar": base[1, 1]}
    path = tmp_path / "w.pkl"
    path.write_bytes(pickle.dumps({"epoch": 3, "state": state}, protocol))
    with rustload.open(path) as ckpt:
        assert ckpt.format == "pickle"
        assert list(ckpt) == [f"state.{name}" for name in state]
        assert ckpt.objects["epoch"] == 3
        assert ckpt.opaque == []
        found = {name: ckpt[f"state.{name}"].materialize() for name in state}
    loaded = rustload.torch.load(path)["state"]
    theirs = state if dtype in UNTYPED else pickle.loads(path.read_bytes())["state"]
    for name, want in theirs.items():
        assert_same_bits(found[name], want)
        assert_same_bits(loaded[name], want)
        assert loaded[name].stride() == want.stride()
        assert loaded[name].storage_offset() == want.storage_offset()
        assert loaded[name].untyped_storage().nbytes() == want.untyped_storage().nbytes()
    assert rustload.scan(path).verdict == "inert"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_models_parameters_and_composite_tensors_open(protocol):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that these tensors are deprecated or in beta
        values: dict[str, Any] = {
            "parameter": torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
            "conj": torch.tensor([1 + 2j]).conj(),
            "quantized": torch.quantize_per_tensor(torch.ones(3), 0.5, 1, torch.qint8),
            "channels": torch.quantize_per_channel(
                torch.ones(2, 3), torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.quint8
            ),
            "coo": torch.eye(3).to_sparse(),
            "csr": torch.eye(3).to_sparse_csr(),
        }
        found = rustload.torch.load(pickle.dumps(values, protocol))
    assert type(found["parameter"]) is torch.nn.Parameter
    assert not found["parameter"].requires_grad
    assert found["conj"].is_conj()
    for name, want in values.items():
        assert found[name].dtype == want.dtype
        if want.is_quantized:
            assert torch.equal(found[name].int_repr(), want.int_repr())
            assert torch.equal(found[name].dequantize(), want.dequantize())
        else:
            assert torch.equal(found[name].to_dense(), want.to_dense())
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    ckpt = rustload.open(pickle.dumps(model, protocol))
    assert list(ckpt) == list(model.state_dict())
    assert isinstance(ckpt.objects, rustload.Opaque)
    for name, want in model.state_dict().items():
        assert_same_bits(ckpt[name].materialize(), want)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_bare_storage_is_a_tensor_for_open_and_a_storage_for_torch_load(protocol):
    storage = torch.arange(3.0)._typed_storage()
    # Short bytes that are plain text could be a path.
    data = bytearray(pickle.dumps([storage, torch.arange(4, dtype=torch.uint8).untyped_storage()], protocol))
    ckpt = rustload.open(data)
    assert [ckpt[name].materialize().tolist() for name in ckpt] == [[0, 1, 2], [0, 1, 2, 3]]
    found, untyped = rustload.torch.load(data)
    assert (type(found), found.dtype) == (type(storage), torch.float32)
    assert torch.tensor([]).set_(found).tolist() == [0, 1, 2]
    assert torch.tensor([], dtype=torch.uint8).set_(untyped).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_tensors_that_share_a_storage_object_are_tied(protocol):
    storage = torch.arange(3.0)._typed_storage()
    same = torch.ones(2)
    tensors = {"a": tensor_on(storage), "b": tensor_on(storage, 2), "c": same, "d": same, "e": same[:]}
    data = pickle.dumps(tensors, protocol)
    assert rustload.open(bytearray(data)).tied == [["a", "b"], ["c", "d"]]
    ours, theirs = rustload.torch.load(data), pickle.loads(data)
    for found in (ours, theirs):
        found["a"].zero_()
        found["c"].zero_()
        assert found["b"].tolist() == [0, 0]
        assert found["e"].tolist() == [1, 1]
        assert found["c"] is found["d"]


def test_two_calls_with_one_bytes_object_create_two_storages():
    stream = storage_stream(torch.arange(3.0))
    data = pickle.dumps([tensor_on(load_from(stream)), tensor_on(load_from(stream))], 4)
    assert data.count(b"FloatStorage") == 1
    assert rustload.open(data).tied == []
    ours, theirs = rustload.torch.load(data), pickle.loads(data)
    for first, second in (ours, theirs):
        first.zero_()
        assert second.tolist() == [0, 1, 2]


def test_map_location_gets_the_location_in_the_stream(tmp_path):
    path = tmp_path / "cuda.pkl"
    path.write_bytes(pickle.dumps(tensor_on(load_from(stream_of(location="cuda:1"))), 4))
    locations = []

    def location(storage: torch.UntypedStorage, saved_at: str) -> torch.UntypedStorage:
        locations.append(saved_at)
        return storage

    assert rustload.torch.load(path, map_location=location).tolist() == [1, 2, 3]
    assert locations == ["cuda:1"]
    assert rustload.torch.load(path, map_location="meta").device.type == "meta"


def test_torch_archives_may_contain_such_storages():
    ckpt = rustload.open(saved({"w": tensor_on(load_from(storage_stream(torch.ones(3))))}))
    assert ckpt["w"].materialize().tolist() == [1, 1, 1]


def test_torch_load_with_unknown_error_raises_torchs_error():
    data = pickle.dumps({"w": torch.ones(1)}, 2)
    for load in (partial(torch.load, io.BytesIO(data)), partial(rustload.torch.load, data, unknown="error")):
        with pytest.raises(pickle.UnpicklingError, match="Unsupported global"):
            load()
    assert rustload.open(data, unknown="error")["w"].materialize().tolist() == [1]


# Errors


@pytest.mark.parametrize(
    ("stream", "code", "words"),
    [
        (stream_of(protocol=b"\x80\x02M\xea\x03."), "LegacyVersion", "1002"),
        (stream_of(keys=()), "LegacyKeys", "storage 7"),
        (stream_of(keys=("8",)), "LegacyKeys", "storage 7"),
        (stream_of(keys=("7", "8")), "LegacyKeys", "storage 8"),
        (stream_of(keys=("7", "7")), "LegacyKeys", "twice"),
        (stream_of(key="x", keys=("x",)), "StorageKey", "decimal"),
        (stream_of(numel=4), "StorageBounds", "3 element(s), the pickle states 4"),
        (stream_of(numel=-1), "StorageBounds", "-1"),
        (stream_of(numel=1 << 61, data=struct.pack("<q", 1 << 61)), "Truncated", "cut short"),
        (stream_of(numel=1 << 62), "StorageBounds", "described with"),
        (stream_of() + b"\0", "TrailingData", "1 byte(s)"),
        (stream_of() + stream_of(), "TrailingData", "after the last storage"),
        (stream_of(view=b"(" + text("9") + b"K\x00K\x02t"), "PickleType", "not a single storage"),
        (stream_of(view=b"(" + text("9") + b"K\x01K\x02t"), "PickleType", "not a single storage"),
        (stream_of(before=b"ctorch\nfloat32\n0"), "PickleType", "not a single storage"),
        (saved(torch.ones(3), _use_new_zipfile_serialization=False), "PickleType", "not a single storage"),
        (saved({}, _use_new_zipfile_serialization=False), "PickleType", "not a single storage"),
        (stream_of(before=b"cposix\nsystem\n" + text("x") + b"\x85R0"), "PickleType", "not a single storage"),
        (stream_of(before=b"ctorch\nFloatStorage\nK\x05\x85R0"), "PickleType", "not a single storage"),
        (stream_of(system=b"\x80\x02cposix\nsystem\n."), "DisallowedGlobal", "posix.system"),
    ],
)  # fmt: skip
def test_an_invalid_stream_is_an_error_at_the_call(stream, code, words):
    for obj in (
        tensor_on(load_from(stream)),
        load_from(stream),
        {"w": torch.ones(1), "x": [load_from(stream)]},
    ):
        for options in ({}, {"trailing": "ignore"}):
            error = refused(obj, **options)
            assert error.code == code
            assert words in str(error)
            assert "in the bytes for torch.storage._load_from_bytes" in str(error)
            assert "one storage" in error.__notes__[0]
            # The offset is that of the call, where its argument ends.
            data = pickle.dumps(obj, 4)
            assert error.offset is not None
            assert data[error.offset : error.offset + 1] == b"R"


def test_a_stream_truncated_at_any_byte_is_an_error():
    whole = storage_stream(torch.ones(3))
    for length in range(len(whole)):
        error = refused(tensor_on(load_from(whole[:length])))
        assert isinstance(error, rustload.FormatError), length
        # The magic number decides whether this is a stream at all.
        assert (error.code == "PersistentId") == (length < 15), (length, error)
    for length in range(15, len(whole)):
        data = pickle.dumps(load_from(whole[:length]), 4)
        with pytest.raises(rustload.FormatError):
            rustload.open(data)


def test_a_stream_inside_a_stream_is_refused():
    given = b"c_codecs\nencode\n" + text(stream_of().decode("latin-1")) + text("latin1") + b"\x86R"
    call = b"ctorch.storage\n_load_from_bytes\n" + given + b"\x85R"
    for nested in (stream_of(before=call + b"0"), stream_of(storage=call, keys=(), data=b"")):
        error = refused(load_from(nested))
        assert error.code == "PickleType"
        assert "not a single storage" in str(error)


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"abc",
        stream_of(magic=0x1950A86A20F9469CFC6D),
        saved(torch.ones(3)),
        pickle.dumps(torch.ones(3)),
        7,
        "text",
        None,
    ],
)
def test_bytes_that_are_no_legacy_stream_are_kept_without_a_tensor(given):
    data = pickle.dumps({"x": load_from(given)}, 4)
    assert rustload.open(data).objects["x"].class_name == "torch.storage._load_from_bytes"
    assert refused({"x": load_from(given)}, unknown="error").code == "DisallowedCall"
    error = refused({"w": tensor_on(load_from(given))})
    assert error.code == "PersistentId"
    assert "not a legacy stream of torch" in str(error)


def test_a_call_with_other_arguments_is_kept():
    stream = storage_stream(torch.ones(3))

    for reduced in (((),), ((stream, stream),), ((stream,), {"a": 1})):
        call = Reduced(torch.storage._load_from_bytes, *reduced)
        ckpt = rustload.open(pickle.dumps({"x": call}, 4))
        assert len(ckpt) == 0
        assert ckpt.objects["x"].class_name == "torch.storage._load_from_bytes"


def test_a_tensor_outside_its_storage_is_refused():
    stream = storage_stream(torch.ones(3))
    assert refused(tensor_on(load_from(stream), 4)).code == "TensorBounds"
    # Bytes of the stream before and after the storage are not part of it.
    for offset, count in ((1, 3), (-1, 3)):
        args = (load_from(stream), offset, (count,), (1,), False, OrderedDict())
        assert refused(Reduced(torch._utils._rebuild_tensor_v2, args)).code == "TensorBounds"


def test_items_and_a_parameter_on_a_storage_are_refused():
    stream = storage_stream(torch.ones(3))

    items = Reduced(torch.storage._load_from_bytes, (stream,), None, None, iter([("a", 1)]))
    assert refused(items).code == "PickleType"
    # A storage is not a tensor.
    rebuilt = Reduced(torch._utils._rebuild_parameter, (load_from(stream), False, OrderedDict()))
    assert isinstance(rustload.open(pickle.dumps(rebuilt, 4)).objects, rustload.Opaque)


def test_limits_apply_to_nested_streams():
    stream = stream_of(before=b"]0" * 2000)
    data = pickle.dumps(tensor_on(load_from(stream)), 4)
    assert rustload.open(data)["tensor"].materialize().tolist() == [1, 2, 3]
    for limits in (rustload.Limits(nodes=1000), rustload.Limits(stack=2), rustload.Limits(line=4)):
        with pytest.raises(rustload.LimitError):
            rustload.open(data, limits=limits)
    two = pickle.dumps([tensor_on(load_from(storage_stream(torch.ones(count)))) for count in (3, 4)], 4)
    for limits in ({"tensors": 3}, {"entries": 1}):
        with pytest.raises(rustload.LimitError) as caught:
            rustload.open(two, limits=rustload.Limits(**limits))
        assert [caught.value.name] == list(limits)


@pytest.mark.parametrize("protocol", [2, 4])
def test_shared_bytes_are_read_once_for_all_calls(protocol):
    count = 20_000
    stream = storage_stream(torch.zeros(1 << 20, dtype=torch.uint8))
    calls = b"h\x01h\x00\x85R0" * count
    function = b"\x80\x04ctorch.storage\n_load_from_bytes\nq\x010"
    if protocol == 4:
        given = b"B" + struct.pack("<I", len(stream)) + stream + b"q\x000"
    else:
        given = (
            text(stream.decode("latin-1")) + b"q\x020c_codecs\nencode\nq\x030" + text("latin1") + b"q\x040"
        )
        calls = b"h\x01h\x03h\x02h\x04\x86R\x85R0" * count
    started = time.perf_counter()
    ckpt = rustload.open(function + given + calls + b"N.")
    assert len(ckpt) == 0
    assert time.perf_counter() - started < 5  # 20 GB of copies would take longer


# Scans


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_scan_of_a_plain_pickle_is_inert(protocol):
    model = {"epoch": 3, "state": torch.nn.Linear(2, 2).state_dict(), "p": torch.nn.Parameter(torch.ones(2))}
    report = rustload.scan(pickle.dumps(model, protocol))
    assert (report.verdict, report.complete) == ("inert", True)
    assert {finding.code for finding in report.findings} == {"NestedLoad"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("part", ["before", "system", "protocol"])
def test_a_scan_finds_calls_in_a_stream(part, protocol):
    call = b"cposix\nsystem\n" + text("x") + b"\x85R0"
    changes = {
        "before": {"before": call},
        "system": {"system": b"\x80\x02" + call + b"}."},
        "protocol": {"protocol": b"\x80\x02" + call + b"M\xe9\x03."},
    }[part]
    for obj in (tensor_on(load_from(stream_of(**changes))), load_from(stream_of(**changes))):
        report = rustload.scan(pickle.dumps(obj, protocol))
        assert report.verdict == "would execute"
        assert any(finding.name == "system" for finding in report.findings)


def test_a_scan_of_unknown_bytes_is_not_inert():
    for given in (b"abcdefgh", b"GGUF\0\0\0\0", 7):
        assert rustload.scan(pickle.dumps(tensor_on(load_from(given)), 4)).verdict != "inert"
    partial = b"\x80\x02cfunctools\npartial\nctorch.storage\n_load_from_bytes\nU\x03abc\x86R)R."
    assert rustload.scan(partial).verdict == "would execute"


def test_opening_executes_nothing_of_a_stream(tmp_path):
    canary = tmp_path / "canary"
    call = b"cposix\nsystem\n" + text(f"touch {canary}") + b"\x85R0"
    for stream in (stream_of(before=call), stream_of(protocol=b"\x80\x02" + call + b"M\xe9\x03.")):
        data = pickle.dumps(tensor_on(load_from(stream)), 4)
        with contextlib.suppress(rustload.RustloadError):
            rustload.open(data)
        rustload.scan(data)
    assert not canary.exists()
