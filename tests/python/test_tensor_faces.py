"""What users of torch and NumPy expect of a lazy tensor: dtypes that compare, `.mT`, `.numel()`, `.size()`, `.item()`."""

import copy
import io
import json
import math
import pickle

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from support import DTYPES, assert_same_bits, child, dtype_of, saved

import rustload
from rustload import DType


@pytest.fixture(scope="module")
def every(tmp_path_factory):
    path = tmp_path_factory.mktemp("faces") / "every.pt"
    torch.save({name: torch.zeros(2, 3).to(dtype_of(name)) for name in DTYPES}, path)
    return rustload.open(path)


NUMPY = {
    name: np.dtype(getattr(ml_dtypes, name, None) or getattr(np, name.replace("bool", "bool_")))
    for name in DTYPES
}


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_is_equal_to_those_of_frameworks_and_to_no_other(every, name):
    found = every[name].dtype
    for other in DTYPES:
        same = name == other
        for theirs in (dtype_of(other), NUMPY[other], NUMPY[other].type, other):
            assert (found == theirs) is same, (name, theirs)
            assert (found != theirs) is not same
            assert (theirs == found) is same, (theirs, name)
        scalar = getattr(jnp, other.replace("bool", "bool_"), None)
        if scalar is not None:
            assert (found == scalar) is same


def test_a_dtype_is_a_str_with_the_hash_of_the_text(every):
    found = every["bfloat16"].dtype
    assert isinstance(found, str)
    assert isinstance(found, DType)
    assert (hash(found), str(found), repr(found), f"{found:>9}") == (
        hash("bfloat16"),
        "bfloat16",
        "'bfloat16'",
        " bfloat16",
    )
    assert {"bfloat16": 1}[found] == 1
    assert {found: 1}["bfloat16"] == 1
    assert json.dumps({found: found}) == '{"bfloat16": "bfloat16"}'
    assert getattr(torch, found) is torch.bfloat16
    assert torch.zeros(2, dtype=getattr(torch, found)).dtype == found
    assert np.zeros(2, every["float32"].dtype).dtype == np.float32
    assert sorted([found, "a", "z"]) == ["a", "bfloat16", "z"]
    # Documented as not working: a dict finds keys by their hash.
    assert torch.bfloat16 not in {found}
    match found:
        case "bfloat16":
            pass
        case _:
            pytest.fail("a pattern does not match it")


def test_a_dtype_is_pickled_as_a_plain_str(every):
    found = every["float16"].dtype
    for made in (pickle.loads(pickle.dumps(found)), pickle.loads(pickle.dumps(found, 0))):
        assert (made, type(made)) == ("float16", str)
    assert copy.copy(found) is copy.deepcopy(found) is found
    file = io.BytesIO(saved({"dtype": str(found)}))
    assert torch.load(file, weights_only=True) == {"dtype": "float16"}


@pytest.mark.parametrize(
    "other", [None, 3, float, int, object(), "float", "torch.float32", np.dtype(">f4"), np.dtype("U3"), torch.strided,
    torch.qint8, np.float64, np.array(1.0), torch.tensor(1), type, np.ndarray, [], np.dtype([("a", "f4")])],
)  # fmt: skip
def test_a_dtype_is_not_equal_to_other_objects(every, other):
    assert (every["float32"].dtype == other) is False
    assert (every["float32"].dtype != other) is True


def test_aliases_of_numpy_are_equal(every):
    assert every["int64"].dtype == np.longlong
    assert every["int64"].dtype == np.dtype("longlong")
    assert every["bool"].dtype == np.bool_
    assert every["int8"].dtype == np.byte


def test_a_comparison_imports_nothing():
    child("""
    import sys, rustload
    from rustload import DType
    class Fake:
        pass
    Fake.__module__ = "torch"
    found = DType("float32")
    assert not found == Fake() and not found == Fake and found == "float32" and found != 3
    assert not {"torch", "numpy", "jax"} & set(sys.modules)
    """)


def test_mt_swaps_the_last_two_dimensions(save):
    tensor = torch.arange(24.0).reshape(2, 3, 4)
    lazy = rustload.open(save({"t": tensor, "v": torch.zeros(3)}))
    assert_same_bits(lazy["t"].mT.torch(), tensor.mT)
    assert_same_bits(lazy["t"][0].mT.torch(), tensor[0].mT)
    joined = rustload.stack([lazy["t"], lazy["t"]])
    assert_same_bits(joined.mT.torch(), torch.stack([tensor, tensor]).mT)
    with pytest.raises(ValueError, match=r"needs two dimensions, and the shape is \[3\]"):
        lazy["v"].mT  # noqa: B018 - the property must raise


@pytest.mark.parametrize("shape", [(), (1,), (4, 6), (0, 3), (2, 3, 4)])
def test_sizes_are_those_of_torch_and_of_numpy(save, shape):
    tensor = torch.zeros(shape)
    lazy = rustload.open(save({"t": tensor}))["t"]
    for one in (lazy, rustload.stack([lazy])[0]):
        assert (one.numel(), one.dim(), one.ndim) == (tensor.numel(), tensor.dim(), tensor.ndim)
        assert one.size() == tensor.size()
        assert [one.size(dim) for dim in range(-one.ndim, one.ndim)] == [
            tensor.size(dim) for dim in range(-one.ndim, one.ndim)
        ]
        assert one.size == tensor.numpy().size
        assert (isinstance(one.size, int), json.dumps(one.size), one.size * 2) == (
            True,
            str(tensor.numel()),
            2 * tensor.numel(),
        )
        assert type(pickle.loads(pickle.dumps(one.size))) is int
        with pytest.raises(IndexError):
            one.size(len(shape))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (1, 1)])
def test_the_number_of_one_element_is_that_of_torch(tmp_path, name, shape):
    numbers = [0, 1, 2, 100]
    if name.startswith("float8_e8m0"):
        numbers = [1, 2, 64]
    elif dtype_of(name).is_floating_point and not name.startswith("float8"):
        numbers += [-0.1, math.inf, 3.75]
    elif name.startswith("int"):
        numbers += [-100, torch.iinfo(dtype_of(name)).max, torch.iinfo(dtype_of(name)).min]
    elif name.startswith("complex"):
        numbers += [1 - 2j]
    tensors = {
        str(at): torch.tensor(number).to(dtype_of(name)).reshape(shape) for at, number in enumerate(numbers)
    }
    if name == "int64":
        tensors["large"] = torch.tensor(2**63 - 1).reshape(shape)
    torch.save(tensors, tmp_path / "numbers.pt")
    for key, lazy in rustload.open(tmp_path / "numbers.pt").items():
        expected = tensors[key].item()
        found = lazy.item()
        assert (found, type(found)) == (expected, type(expected))
        assert bool(lazy) is bool(expected)
        assert complex(lazy) == complex(expected)
        if isinstance(expected, complex):
            with pytest.raises(TypeError):
                float(lazy)
        else:
            assert float(lazy) == float(expected)
            if math.isfinite(expected):
                assert int(lazy) == int(expected)
            else:
                with pytest.raises(OverflowError):
                    int(lazy)


def test_uint64_and_nan_are_exact(tmp_path):
    np.savez(tmp_path / "x.npz", big=np.uint64(2**64 - 1), nan=np.float32(math.nan))
    ckpt = rustload.open(tmp_path / "x.npz")
    assert ckpt["big"].item() == int(ckpt["big"]) == 2**64 - 1
    assert math.isnan(ckpt["nan"].item())
    with pytest.raises(ValueError, match="NaN"):
        int(ckpt["nan"])


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_the_number_of_a_part_a_joined_and_a_quantized_tensor(save):
    quantized = torch.quantize_per_tensor(torch.tensor([0.5]), 0.1, 3, torch.qint8)
    ckpt = rustload.open(save({"t": torch.arange(6.0).reshape(2, 3), "q": quantized}))
    assert ckpt["t"][1, 2].item() == 5.0
    assert rustload.concat([ckpt["t"][0], ckpt["t"][1]])[4].item() == 4.0
    assert ckpt["q"].item() == pytest.approx(quantized.item(), rel=1e-7)


def test_several_elements_are_no_number(save):
    ckpt = rustload.open(save({"t": torch.zeros(2), "none": torch.zeros(0)}))
    for lazy in ckpt.values():
        with pytest.raises(ValueError, match=r"item\(\) of a tensor with [02] elements"):
            lazy.item()
        for convert in (float, int, complex):
            with pytest.raises(TypeError, match="only one can be converted"):
                convert(lazy)
        with pytest.raises(TypeError, match="no truth value"):
            bool(lazy)


@pytest.mark.parametrize("step", [slice(None, None, -1), (0, slice(3, 0, -2)), (..., slice(None, None, -1))])
def test_a_negative_step_says_how_to_reverse(save, step):
    lazy = rustload.open(save({"t": torch.arange(12).reshape(3, 4)}))["t"]
    with pytest.raises(ValueError, match="slice steps must be positive") as caught:
        lazy[step]
    assert any(
        ".materialize().flip(0)" in note and ".numpy()[::-1]" in note for note in caught.value.__notes__
    )
    assert_same_bits(lazy.materialize().flip(0), torch.arange(12).reshape(3, 4).flip(0))
    np.testing.assert_array_equal(lazy.numpy()[::-1], np.arange(12).reshape(3, 4)[::-1])


@pytest.mark.parametrize(
    "mask", [[True, False, True], [0, 2], np.array([True, False, True]), torch.tensor([True, False, True]), np.array([0, 2]),
    (slice(None), [0, 1]), True],
)  # fmt: skip
def test_a_mask_says_what_to_use(save, mask):
    tensor = torch.arange(12).reshape(3, 4)
    lazy = rustload.open(save({"t": tensor}))["t"]
    with pytest.raises(TypeError) as caught:
        lazy[mask]
    assert any(
        "t.materialize()[mask]" in note and "rustload.stack" in note for note in caught.value.__notes__
    )
    # What the note says works.
    assert_same_bits(rustload.stack([lazy[row] for row in (0, 2)]).torch(), tensor[[0, 2]])
    assert_same_bits(
        rustload.concat([lazy[0:1], lazy[2:3]]).torch(), tensor[torch.tensor([True, False, True])]
    )
