"""Files from before torch's zip format: tensors equal torch's, and an inconsistent stream is refused."""

import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Reduced

import rustload

MAGIC = 0x1950A86A20F9469CFC6C
SYSTEM = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}


class Storage:
    """A placeholder for a storage in a hand-made stream: the pickler below writes its persistent id."""

    def __init__(self, *pid: Any) -> None:
        self.pid = pid


class _Pickler(pickle._Pickler):  # the Python implementation, which calls an overridden persistent_id
    def persistent_id(self, obj: Any) -> Any:
        return obj.pid if isinstance(obj, Storage) else None


def tensor(storage: Storage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]) -> Reduced:
    return Reduced(torch._utils._rebuild_tensor_v2, (storage, offset, size, stride, False, OrderedDict()))


def stream(
    obj: Any,
    keys: Any,
    storages: list[tuple[int, bytes]],
    *,
    protocol: int = 1001,
    system: Any = SYSTEM,
    tail: bytes = b"",
) -> bytes:
    """A legacy stream, each part as given."""
    import io

    out = io.BytesIO()
    for part in (MAGIC, protocol, system):
        pickle.dump(part, out, protocol=2)
    _Pickler(out, 2).dump(obj)
    pickle.dump(keys, out, protocol=2)
    for numel, data in storages:
        out.write(struct.pack("<q", numel) + data)
    return out.getvalue() + tail


HEAD = b"".join(pickle.dumps(part, 2) for part in (MAGIC, 1001, SYSTEM))


def long_text(size: int) -> bytes:
    return b"X" + struct.pack("<I", size) + b"x" * size


def limits(pickle_bytes: int) -> rustload.Limits:
    return rustload.Limits(pickle_bytes=pickle_bytes)


FLOATS = struct.pack("<4f", 1, 2, 3, 4)


def floats(key: str = "7", numel: int = 4, view: Any = None) -> Storage:
    return Storage("storage", torch.FloatStorage, key, "cpu", numel, view)


def save(path: Path, obj: Any) -> Path:
    torch.save(obj, path, _use_new_zipfile_serialization=False)
    return path


DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_strides_and_sharing_equal_torchs(tmp_path, dtype):
    base = (torch.arange(24) % 7).reshape(4, 6).to(dtype)
    state = {
        "whole": base,
        "transposed": base.t(),
        "part": base[1:3, ::2],
        "expanded": base[:1].expand(3, 6),
        "scalar": base[0, 1].clone(),
        "empty": torch.empty(0, 3, dtype=dtype),
    }
    path = save(tmp_path / "m.bin", state)
    expected = torch.load(path, weights_only=False)
    with rustload.open(path, framework="torch") as ckpt:
        assert ckpt.format == "torch-legacy"
        assert list(ckpt) == list(state)
        found = {name: t.materialize() for name, t in ckpt.items()}
        owned = {name: t.materialize(copy=True) for name, t in ckpt.items()}
        assert ["whole", "transposed", "part", "expanded"] in ckpt.tied
    for name, want in expected.items():
        assert found[name].dtype == want.dtype
        assert found[name].stride() == want.stride()
        assert torch.equal(found[name], want)
        assert torch.equal(owned[name], want)
    assert found["whole"].data_ptr() == found["transposed"].data_ptr()


def test_views_of_torch_before_0_4_are_read():
    obj = {
        "root": tensor(floats(), 0, (4,), (1,)),
        "view": tensor(floats(view=("9", 1, 2)), 0, (2,), (1,)),
    }
    ckpt = rustload.open(bytearray(stream(obj, ["7"], [(4, FLOATS)])), framework="torch")
    assert ckpt["root"].materialize().tolist() == [1, 2, 3, 4]
    assert ckpt["view"].materialize().tolist() == [2, 3]
    assert ckpt.tied == [["root", "view"]]


def test_a_pickle_larger_than_the_first_read_is_read_to_its_end():
    obj = {"filler": "x" * (3 << 20), "w": tensor(floats(), 0, (4,), (1,))}
    ckpt = rustload.open(bytearray(stream(obj, ["7"], [(4, FLOATS)])), framework="torch")
    assert ckpt["w"].materialize().tolist() == [1, 2, 3, 4]
    # In one frame, of which the first read has a part.
    body = long_text(3 << 20) + b"."
    framed = b"\x80\4\x95" + struct.pack("<Q", len(body)) + body
    assert rustload.open(bytearray(HEAD + framed + b"\x80\2].")).objects == "x" * (3 << 20)


def test_the_head_of_a_stream_is_bounded_as_a_whole():
    """The first read is 1 MiB. Each pickle is far below the limit; together they are over it, and the last one is needed."""
    text = b"\x80\2" + long_text(1 << 20)
    pickles = HEAD + text + b"." + text + b"0]."
    for after in (0, 8 << 20):
        data = bytearray(pickles + bytes(after))
        assert len(rustload.open(data, trailing="ignore", limits=limits(len(pickles)))) == 0
        for limit in (len(pickles) - 1, len(pickles) // 2 + (256 << 10)):
            with pytest.raises(rustload.LimitError):
                rustload.open(data, trailing="ignore", limits=limits(limit))


GOOD = {"w": tensor(floats(), 0, (4,), (1,))}


def test_c18_a_call_in_the_system_information_is_not_executed(tmp_path):
    canary = tmp_path / "canary"
    data = stream(GOOD, ["7"], [(4, FLOATS)], system=Reduced(Path.touch, (canary,)))
    assert "system information imports" in rustload.open(bytearray(data)).notes[0]
    with pytest.raises(rustload.DisallowedError):
        rustload.open(bytearray(data), unknown="error")
    assert not canary.exists()


def test_a_valid_stream_over_the_limit_is_a_limit_error_and_not_truncated(tmp_path):
    path = save(tmp_path / "model.pt", {"w": torch.ones(2), "text": "x" * (3 << 20)})
    for limit in (1000, 1 << 20, 2 << 20):
        with pytest.raises(rustload.LimitError) as caught:
            rustload.open(path, limits=rustload.Limits(pickle_bytes=limit))
        assert (caught.value.name, caught.value.limit) == ("pickle_bytes", limit)
        assert caught.value.found > limit
    assert list(rustload.open(path, limits=rustload.Limits(pickle_bytes=4 << 20))) == ["w"]


def test_a_damaged_opcode_of_a_stream_is_not_a_limit_error(tmp_path):
    """An error that more data would not resolve keeps its code, even if the file continues past the limit."""
    path = save(tmp_path / "model.pt", {"w": torch.ones(1 << 20)})
    data = bytearray(path.read_bytes())
    nested = b"\x80\x04\x95" + struct.pack("<Q", 40) + b"\x95" + struct.pack("<Q", 8)
    start = data.index(b"\x80\x02}", data.index(b"little_endian") + 20)
    data[start : start + len(nested)] = nested
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(data, limits=rustload.Limits(pickle_bytes=1 << 20))
    assert (caught.value.code, caught.value.member) == ("PickleFrame", "object")
