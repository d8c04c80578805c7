"""Bare pickles and NumPy's objects inside any pickle: arrays are lazy tensors, scalars are numbers, nothing is built."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch

import rustload

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
PROTOCOLS = [0, 1, 2, 3, 4, 5]


def load(obj: Any, protocol: int = 2) -> rustload.Checkpoint:
    return rustload.open(bytearray(pickle.dumps(obj, protocol=protocol)), framework="numpy")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_equal_what_was_pickled(dtype, protocol):
    base = (np.arange(24) % 5).reshape(4, 6).astype(dtype)
    arrays = {
        "c": base,
        "fortran": np.asfortranarray(base),
        "scalar": np.array(base[1, 2]),
        "empty": np.empty((0, 3), dtype),
        "big": base.astype(np.dtype(dtype).newbyteorder(">")),
    }
    ckpt = load(arrays, protocol)
    assert ckpt.format == "pickle"
    assert list(ckpt) == list(arrays)
    assert ckpt.opaque == []
    for name, want in arrays.items():
        found = ckpt[name].materialize()
        assert found.dtype == want.dtype.newbyteorder("="), name
        assert np.array_equal(found, want), name
    assert ckpt["fortran"].strides == (1, 4)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_scalars_are_python_numbers(dtype, protocol):
    value = np.dtype(dtype).type(3)
    found = load({"x": value}, protocol).objects["x"]
    assert found == value.item()
    assert type(found) is type(value.item())


def test_the_largest_unsigned_scalar_fits():
    assert load([np.uint64(2**64 - 1)]).objects == [2**64 - 1]


def test_arrays_of_objects_and_texts_are_opaque():
    ckpt = load({"o": np.array([1, "x", None], dtype=object), "s": np.array(["a", "b"]), "w": np.ones(2)}, 4)
    assert list(ckpt) == ["w"]
    assert {found.class_name for found in ckpt.opaque} >= {"numpy._core.multiarray._reconstruct"}


def test_arrays_in_a_torch_file_are_tensors(tmp_path):
    path = tmp_path / "m.pt"
    state = {"w": torch.ones(2), "rng": np.arange(5, dtype=np.uint32), "best": np.float64(0.5)}
    for new_format in (True, False):
        torch.save(state, path, _use_new_zipfile_serialization=new_format)
        with rustload.open(path, framework="torch") as ckpt:
            assert list(ckpt) == ["w", "rng"]
            assert ckpt["rng"].materialize().tolist() == [0, 1, 2, 3, 4]
            assert ckpt["rng"].materialize(dtype="float32").tolist() == [0, 1, 2, 3, 4]
            assert ckpt.objects["best"] == 0.5


def test_a_bare_array_is_named_tensor():
    assert list(load(np.ones(3))) == ["tensor"]


def test_an_array_of_a_negative_size_is_refused():
    data = pickle.dumps(np.zeros(2, "f4"), 2)
    assert data.count(b"K\x02\x85") == 1
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(data.replace(b"K\x02\x85", b"J\xfe\xff\xff\xff\x85"))
    assert caught.value.code == "NdarrayBounds"
