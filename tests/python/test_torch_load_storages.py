"""Storages that are values themselves: `rustload.torch.load` gives those of `torch.load`, parts of others too."""

import collections
import io
import itertools
import struct
from typing import Any

import make_old
import pytest
import tar_files
import torch
from make_old import FLOATS, Storage, archive, pickled, storage, stream, tensor
from torch_graph import assert_same_graph

import rustload.torch

pytestmark = pytest.mark.filterwarnings("ignore")

CLASSES = [
    *("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool"),
    *("ComplexFloat", "ComplexDouble", "QInt8", "QInt32", "QUInt8", "QUInt4x2", "QUInt2x4"),
]
VIEWS = [("11", 1, 1), ("12", 2, 1), ("13", 1, 3), ("14", 0, 6), ("15", 2, 0)]


def data_of(name: str) -> bytes:
    """Six elements of a class, each a small number."""
    width = getattr(torch, f"{name}Storage").dtype.itemsize
    return b"".join((number % 2).to_bytes(width, "little") for number in range(6))


def zipped(obj: Any, members: dict[str, bytes], byteorder: bytes = b"little") -> bytes:
    data = {f"data/{key}": value for key, value in members.items()}
    return archive({"data.pkl": pickled(obj), "byteorder": byteorder, "version": b"3\n", **data})


def both(data: bytes, **options: Any) -> tuple[Any, Any]:
    expected = torch.load(io.BytesIO(data), weights_only=True, **options)
    return rustload.torch.load(data, **options), expected


@pytest.mark.parametrize("name", CLASSES)
def test_parts_of_a_storage_equal_torchs(name):
    """Each part has its own offset and size; torch 0.3 wrote them."""
    parts = [storage(name, "10", 6, view) for view in (*VIEWS, None)]
    obj = {"parts": parts, "again": list(parts)}
    assert_same_parts(*both(stream(obj, {"10": (6, data_of(name))})))


def test_parts_beside_tensors_on_them_equal_torchs():
    view = storage("Float", "10", 6, VIEWS[2])
    obj = {
        "part": view,
        "tensor": tensor(view, 2, offset=1),
        "whole": tensor(storage("Float", "10", 6, None), 6),
    }
    found, expected = both(stream(obj, {"10": (6, FLOATS)}))
    assert_same_parts(*([value["part"]] for value in (found, expected)))
    for name in ("tensor", "whole"):
        assert torch.equal(found[name], expected[name])
    for loaded in (found, expected):
        assert loaded["part"].data_ptr() - loaded["whole"].data_ptr() == 4
        assert loaded["tensor"].data_ptr() - loaded["part"].data_ptr() == 4


def assert_same_parts(found: Any, expected: Any) -> None:
    """Whole storages are one to one in two graphs; parts overlap, so their addresses are compared."""
    if isinstance(expected, dict):
        for name in expected:
            assert_same_parts(found[name], expected[name])
        for one, other in zip(*loaded_parts(found), strict=True):
            assert one is other
        return
    base = [loaded[-1].data_ptr() for loaded in (found, expected)]
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.dtype, ours.nbytes()) == (theirs.dtype, theirs.nbytes())
        assert bytes(ours._untyped_storage) == bytes(theirs._untyped_storage)
        if theirs.nbytes():
            assert ours.data_ptr() - base[0] == theirs.data_ptr() - base[1]


def loaded_parts(loaded: Any) -> tuple[list[Any], list[Any]]:
    return loaded["parts"], loaded["again"]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("make", ["zip", "legacy"])
def test_a_storage_of_a_class_equals_torchs(name, make):
    raw = data_of(name)
    if make == "zip":
        one = storage(name, "0", 6)
        data = zipped([one, one, storage(name, "1", 6)], {"0": raw, "1": raw})
    else:
        one = storage(name, "0", 6, None)
        data = stream([one, one, storage(name, "1", 6, None)], {"0": (6, raw), "1": (6, raw)})
    assert_same_graph(*both(data))


@pytest.mark.parametrize("names", list(itertools.pairwise(CLASSES)))
@pytest.mark.parametrize("make", ["zip", "legacy"])
def test_empty_storages_of_one_key_have_the_dtype_of_their_class(names, make):
    if make == "zip":
        data = zipped([storage(name, "0", 0) for name in names], {"0": b""})
    else:
        data = stream([storage(name, "0", 0, None) for name in names], {"0": (0, b"")})
    found, expected = both(data)
    assert [(one.dtype, one.nbytes()) for one in found] == [(one.dtype, one.nbytes()) for one in expected]


def test_an_untyped_storage_is_one_of_bytes_as_in_torch():
    pid = ("storage", torch.UntypedStorage, "0", "cpu", 24)
    assert_same_graph(*both(zipped([Storage(*pid)], {"0": FLOATS})))
    # torch cannot read a legacy stream with one.
    (found,) = rustload.torch.load(stream([Storage(*pid, None)], {"0": (24, FLOATS)}))
    assert (found.dtype, bytes(found._untyped_storage)) == (torch.uint8, FLOATS)


@pytest.mark.parametrize("dtype", tar_files.CLASSES)
def test_a_storage_of_torch_0_1_equals_torchs(dtype, tmp_path):
    base = torch.arange(6).to(dtype)
    obj = {
        "t": base,
        "s": base.storage(),
        "part": tar_files.StoragePart(base[2:], 2, 4),
        "again": base.storage(),
    }
    path = tmp_path / "m.tar"
    path.write_bytes(tar_files.Torch01(obj).bytes())
    found, expected = rustload.torch.load(path), torch.load(path, weights_only=False)
    assert found["s"] is found["again"]
    assert found["s"].dtype == expected["s"].dtype
    assert bytes(found["s"]._untyped_storage) == bytes(expected["s"]._untyped_storage)
    assert torch.equal(found["part"], expected["part"])


def test_parts_on_meta_have_their_size():
    data = stream([storage("Float", "10", 6, view) for view in (*VIEWS, None)], {"10": (6, FLOATS)})
    found = rustload.torch.load(data, map_location="meta")
    assert [one.nbytes() for one in found] == [4, 4, 12, 24, 0, 24]
    assert {one.device.type for one in found} == {"meta"}


def test_a_storage_that_map_location_replaces_is_given_as_a_whole():
    other = torch.UntypedStorage(8)
    (found,) = rustload.torch.load(
        stream([storage("Float", "10", 6, None)], {"10": (6, FLOATS)}), map_location=lambda *_: other
    )
    assert found.data_ptr() == other.data_ptr()
    assert found.nbytes() == 8


# Keys: torch has one table for storages and views, and returns what a key referred to first.

WHOLE = storage("Float", "10", 6, None)
CONFLICTS: dict[str, list[Any]] = {
    "a view with the key of its root": [storage("Float", "10", 6, ("10", 2, 2))],
    "a view with the key of another storage": [
        storage("Float", "20", 6, None),
        storage("Float", "10", 6, ("20", 2, 2)),
    ],
    "a storage with the key of a view": [
        storage("Float", "10", 6, ("20", 2, 2)),
        storage("Float", "20", 2, None),
    ],
    "another class": [WHOLE, storage("Int", "10", 6, None)],
    "another quantized class": [storage("QInt8", "10", 24, None), storage("Char", "10", 24, None)],
    "another size": [WHOLE, storage("Float", "10", 5, None)],
    "another size of an empty storage": [storage("Float", "10", 0, None), storage("Int", "10", 6, None)],
}


@pytest.mark.parametrize("name", CONFLICTS)
@pytest.mark.parametrize("use", ["values", "tensors", "dropped"])
def test_a_key_that_is_described_in_two_ways_is_refused(name, use):
    ids = CONFLICTS[name]
    obj: Any = list(ids)
    if use == "tensors":
        obj = [tensor(one, 0) for one in ids]
    data = stream(obj, {"10": (6, FLOATS), "20": (6, FLOATS)})
    if use == "dropped":
        # The first ids are popped, and torch resolves them all the same.
        body = pickled(obj)
        last = pickled(tensor(ids[-1], 0))
        popped = b"".join(pickled(one)[2:-1] + b"0" for one in ids[:-1])
        data = data.replace(body, body[:2] + popped + last[2:])
    if len(ids) == 1 and use == "dropped":
        pytest.skip("one id")
    with pytest.raises(rustload.FormatError) as caught:
        rustload.torch.load(data)
    # A tensor without scales on a quantized storage is refused by itself.
    assert caught.value.code == (
        "PickleType" if (name, use) == ("another quantized class", "tensors") else "StorageConflict"
    )


def test_packed_integers_on_a_view_are_refused():
    params = (torch.per_channel_affine_float_qparams, [1.0, 1.0], [0.0, 0.0], 0)
    on = storage("QUInt4x2", "10", 8, ("20", 2, 4))
    call = make_old.Call(
        torch._utils._rebuild_qtensor, (on, 0, (2, 2), (2, 1), params, False, collections.OrderedDict())
    )
    with pytest.raises(rustload.FormatError) as caught:
        rustload.torch.load(stream([call], {"10": (8, bytes(8))}))
    assert caught.value.code == "PersistentId"


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float64, torch.complex64, torch.int8])
@pytest.mark.parametrize("name", ["Untyped", "Float"])
def test_big_endian_numbers_of_another_width_than_their_storage_are_refused(name, dtype):
    """torch swaps a storage once, by its own class; the result are not the numbers that a big-endian machine wrote."""
    count = 24 if name == "Untyped" else 6
    on = Storage("storage", getattr(torch, f"{name}Storage"), "0", "cpu", count)
    args = (on, 0, (1,), (1,), False, collections.OrderedDict(), dtype)
    call = make_old.Call(torch._utils._rebuild_tensor_v3, args)
    raw = struct.pack(">6f", 1, 2, 3, 4, 5, 6)
    data = zipped(call, {"0": raw}, b"big")
    try:
        found = rustload.torch.load(data)
    except rustload.FormatError as error:
        assert error.code == "ByteOrder"  # noqa: PT017 - the other outcome is equality
        width = dtype.itemsize // (2 if dtype.is_complex else 1)
        assert width != (1 if name == "Untyped" else 4)
    else:
        assert_same_graph(found, torch.load(io.BytesIO(data), weights_only=True))
    little = zipped(call, {"0": raw})
    assert_same_graph(*both(little))
