"""Files of old writers, compared with `torch.load` to the bit."""

import io
import struct
from typing import Any

import make_old
import pytest
import torch
from support import assert_same_bits, bits

import rustload.torch

pytestmark = pytest.mark.filterwarnings("ignore")


def load(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=False)


@pytest.mark.parametrize("in_memory", [True, False], ids=["bytes", "file"])
@pytest.mark.parametrize("name", make_old.OLD)
def test_every_tensor_equals_torchs(name, in_memory, tmp_path):
    data = make_old.OLD[name]()
    path = tmp_path / "m.pt"
    path.write_bytes(data)
    want = {key: value for key, value in load(data).items() if isinstance(value, torch.Tensor)}
    ckpt = rustload.open(data if in_memory else path, framework="torch")
    assert [key for key in ckpt if "." not in key] == list(want)
    found = {key: ckpt[key].materialize() for key in want}
    for key, tensor in want.items():
        assert_same_bits(found[key], tensor)
        assert_same_bits(ckpt[key].materialize(copy=True), tensor)
        assert ckpt[key].strides == tensor.stride()
        assert ckpt[key].requires_grad == tensor.requires_grad
        assert ckpt[key].is_parameter == isinstance(tensor, torch.nn.Parameter)
    assert sorted(map(sorted, ckpt.tied)) == ties(want)


def ties(tensors: dict[str, torch.Tensor]) -> list[list[str]]:
    """The names whose storages share memory: a view of torch before 0.4 is a storage inside another."""
    groups: list[tuple[int, int, list[str]]] = []
    for key, tensor in sorted(tensors.items(), key=lambda item: item[1].untyped_storage().data_ptr()):
        start = tensor.untyped_storage().data_ptr()
        end = start + tensor.untyped_storage().nbytes()
        if groups and start < groups[-1][1]:
            first, last, names = groups.pop()
            groups.append((first, max(last, end), [*names, key]))
        else:
            groups.append((start, end, [key]))
    return sorted(sorted(names) for _, _, names in groups if len(names) > 1)


@pytest.mark.parametrize("bits", range(13))
def test_a_view_is_possible_if_the_alignment_allows_it(bits, tmp_path):
    path = tmp_path / "m.pt"
    path.write_bytes(make_old.OLD[f"alignment {1 << bits}"]())
    ckpt = rustload.open(path, framework="numpy")
    assert ckpt["d"].materialize().tolist() == [0.5, -0.5]
    if 1 << bits >= 8:
        assert ckpt["d"].materialize(copy=False).tolist() == [0.5, -0.5]
        assert ckpt["w"].materialize(copy=False).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_note_reports_missing_checksums():
    assert rustload.open(make_old.OLD["plain"]()).notes == []
    (note,) = rustload.open(make_old.OLD["no checksums"]()).notes
    assert "no checksums" in note


def swapped(data: bytes, unit: int) -> bytes:
    return b"".join(data[at : at + unit][::-1] for at in range(0, len(data), unit))


TYPED = [
    "Double",
    "Float",
    "Half",
    "BFloat16",
    "Long",
    "Int",
    "Short",
    "Char",
    "Byte",
    "Bool",
    "ComplexFloat",
    "ComplexDouble",
]


@pytest.mark.parametrize("name", TYPED)
def test_t27_big_endian_tensors_have_torchs_bits_strides_and_ties(name):
    dtype = getattr(torch, f"{name}Storage").dtype
    want = torch.arange(6).to(dtype).reshape(2, 3)
    unit = dtype.itemsize // (2 if dtype.is_complex else 1)
    storage = make_old.storage(name, "0", 6)
    alone = make_old.tensor(make_old.storage(name, "1", 6), 3, 2, stride=(1, 3))
    obj = {
        "w": make_old.tensor(storage, 2, 3),
        "t": make_old.tensor(storage, 3, 2, stride=(1, 3)),
        "alone": alone,
    }
    raw = swapped(bits(want), unit)
    members = {"data.pkl": make_old.pickled(obj), "byteorder": b"big", "version": b"3\n", "data/0": raw}
    data = make_old.archive({**members, "data/1": raw})
    expected = load(data)
    assert_same_bits(expected["w"], want)
    ckpt = rustload.open(data, framework="torch")
    for found in (
        {key: t.materialize() for key, t in ckpt.items()},
        dict(ckpt.stream()),
        rustload.torch.load(io.BytesIO(data)),
    ):
        for key, tensor in expected.items():
            assert_same_bits(found[key], tensor)
            if dtype != torch.bool:
                assert found[key].stride() == tensor.stride()
        if dtype != torch.bool:
            assert found["w"].data_ptr() == found["t"].data_ptr() != found["alone"].data_ptr()
    assert ckpt["w"].materialize(dtype="float32", allow_lossy=True).tolist() == want.real.float().tolist()
    part = ckpt["w"][1:].materialize()
    assert_same_bits(part, expected["w"][1:])
    assert bits(ckpt["t"].materialize(copy=True)) == bits(expected["t"])


UNTYPED = {
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "complex32": 2,
    "bits16": 2,
    "float8_e5m2": 1,
    "float4_e2m1fn_x2": 1,
}


@pytest.mark.parametrize("name", UNTYPED)
def test_wide_big_endian_numbers_on_an_untyped_storage_are_refused(name):
    """torch reads such a storage as bytes and swaps nothing; what a big-endian machine wrote is something else."""
    dtype = getattr(torch, name)
    raw = bytes(range(6 * dtype.itemsize))
    storage = make_old.Storage("storage", torch.UntypedStorage, "0", "cpu", len(raw))
    call = make_old.Call(torch._utils._rebuild_tensor_v3, (storage, 0, (6,), (1,), False, {}, dtype))
    members = {"data.pkl": make_old.pickled(call), "byteorder": b"big", "version": b"3\n", "data/0": raw}
    data = make_old.archive(members)
    if UNTYPED[name] == 1:
        assert_same_bits(rustload.torch.load(data), load(data))
        return
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(data)
    assert caught.value.code == "ByteOrder"
    assert caught.value.offset is not None


def test_big_endian_integers_of_a_quantized_tensor_are_swapped():
    ints, params = struct.pack(">3i", 1, -2, 300), (torch.per_tensor_affine, 0.5, 0)
    args = (make_old.storage("QInt32", "0", 3), 0, (3,), (1,), params, False, {})
    call = make_old.Call(torch._utils._rebuild_qtensor, args)
    members = {"data.pkl": make_old.pickled(call), "byteorder": b"big", "version": b"3\n", "data/0": ints}
    t = rustload.open(make_old.archive(members))["tensor"]
    assert t.materialize().tolist() == [1, -2, 300]
    assert t.materialize(dequantize=True).tolist() == [0.5, -1, 150]


def test_names_and_strings_of_python_2_are_those_of_python_3():
    for name in ("Python 2", "Python 2, protocol 1"):
        data = make_old.OLD[name]()
        assert b"__builtin__" in data
        ckpt = rustload.open(data)
        config = ckpt.objects["config"]
        assert config["kinds"] == {1, 2}
        assert config["note"] == "text"
        assert config["range"].class_name == "builtins.range"
        assert config["args"].state == {"lr": 0.5}
        assert "builtins.set" in ckpt.globals
