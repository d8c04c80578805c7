"""Bare pickles and NumPy's objects inside any pickle: arrays are lazy tensors, scalars are numbers, nothing is built."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import rustload

if TYPE_CHECKING:
    from pathlib import Path

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
PROTOCOLS = [0, 1, 2, 3, 4, 5]


def load(obj: Any, protocol: int = 2) -> rustload.Checkpoint:
    return rustload.open(bytearray(pickle.dumps(obj, protocol=protocol)), framework="numpy")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_equal_what_was_pickled(dtype: str, protocol: int) -> None:
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
def test_numpy_scalars_are_python_numbers(dtype: str, protocol: int) -> None:
    value = np.dtype(dtype).type(3)
    found = load({"x": value}, protocol).objects["x"]
    assert found == value.item()
    assert type(found) is type(value.item())


def test_the_largest_unsigned_scalar_fits() -> None:
    assert load([np.uint64(2**64 - 1)]).objects == [2**64 - 1]


def test_arrays_of_objects_and_texts_are_opaque() -> None:
    ckpt = load({"o": np.array([1, "x", None], dtype=object), "s": np.array(["a", "b"]), "w": np.ones(2)}, 4)
    assert list(ckpt) == ["w"]
    assert {found.class_name for found in ckpt.opaque} >= {"numpy._core.multiarray._reconstruct"}


def test_arrays_in_a_torch_file_are_tensors(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    state = {"w": torch.ones(2), "rng": np.arange(5, dtype=np.uint32), "best": np.float64(0.5)}
    for new_format in (True, False):
        torch.save(state, path, _use_new_zipfile_serialization=new_format)
        with rustload.open(path, framework="torch") as ckpt:
            assert list(ckpt) == ["w", "rng"]
            assert ckpt["rng"].materialize().tolist() == [0, 1, 2, 3, 4]
            assert ckpt["rng"].materialize(dtype="float32").tolist() == [0, 1, 2, 3, 4]
            assert ckpt.objects["best"] == 0.5


def test_a_bare_array_is_named_tensor() -> None:
    assert list(load(np.ones(3))) == ["tensor"]


class _Array:
    def __init__(self, shape: tuple[int, ...], data: bytes, dtype: Any) -> None:
        self.parts = (shape, data, dtype)

    def __reduce__(self) -> Any:
        shape, data, dtype = self.parts
        return (
            np._core.multiarray._reconstruct,
            (np.ndarray, (0,), b"b"),
            (1, shape, np.dtype(dtype), False, data),
        )


class _Scalar:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def __reduce__(self) -> Any:
        return np._core.multiarray.scalar, (np.dtype("f4"), self.data)


@pytest.mark.parametrize(
    "obj",
    [
        pytest.param(_Array((3,), b"\0" * 8, "f4"), id="T33 too few bytes"),
        pytest.param(_Array((2,), b"\0" * 12, "f4"), id="T33 too many bytes"),
        pytest.param(_Array((-2,), b"\0" * 8, "f4"), id="T33 negative size"),
        pytest.param(_Array((2**62, 8), b"", "f4"), id="T33 overflowing size"),
        pytest.param(_Scalar(b"\0" * 3), id="T36 scalar of the wrong length"),
    ],
)
def test_bytes_that_do_not_fit_the_shape_are_refused(obj: Any) -> None:
    with pytest.raises(rustload.FormatError) as caught:
        load({"x": obj}, 4)
    assert caught.value.code == "NdarrayBounds"


def test_a_bare_pickle_has_no_storages() -> None:
    class Pickler(pickle._Pickler):
        def persistent_id(self, obj: Any) -> Any:
            return ("storage", torch.FloatStorage, "0", "cpu", 1) if obj is marker else None

    import io

    marker = object()
    out = io.BytesIO()
    args = (marker, 0, (1,), (1,), False, {})

    class Tensor:
        def __reduce__(self) -> Any:
            return torch._utils._rebuild_tensor_v2, args

    Pickler(out, 2).dump(Tensor())
    with pytest.raises(rustload.FormatError) as caught:
        rustload.open(bytearray(out.getvalue()))
    assert caught.value.code == "PersistentId"
