"""Casts and permutations: bit-equal to torch's `.to()` for every pair of dtypes and any layout."""

import itertools

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    DTYPES,
    FLOATS,
    FP8,
    INTS,
    REAL,
    assert_same_bits,
    assert_same_values,
    bits,
    dtype_of,
    patterns,
    saved,
)

import rustload

SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, 127.5, 128.0, 255.0, 256.0, 447.0, 448.0, 449.0, 463.9, 464.0, 464.1, 479.0,
    480.0, 57344.0, 61439.0, 61440.0, 65504.0, 65519.9, 65520.0, 2.0**31 - 1, -(2.0**31), 2.0**53 + 2, 3.4e38, 1e300,
    2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-17, 2.0**-24, 2.0**-25, 2.0**-127, 2.0**-149, 5e-324, 1.00390625,
    float("inf"), float("-inf"), float("nan"), 240.0, 247.9, 248.1,
]  # fmt: skip


def source(name: str) -> torch.Tensor:
    """Values of one dtype: special ones, moderate ones and random bit patterns; the count is not a multiple of a vector."""
    dtype = dtype_of(name)
    if dtype.itemsize == 1 and dtype != torch.bool:
        return torch.arange(256).to(torch.uint8).view(dtype).repeat(3)[:-1]
    parts = [patterns(name, (777,), seed=11)]
    if dtype.is_floating_point:
        generator = torch.Generator().manual_seed(12)
        parts.append(torch.tensor(SPECIAL, dtype=torch.float64).to(dtype))
        parts.append((torch.randn(200, dtype=torch.float64, generator=generator) * 100).to(dtype))
    elif dtype != torch.bool:
        parts.append(torch.arange(0, 500).to(dtype))
    return torch.cat(parts)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    path = tmp_path_factory.mktemp("cast") / "all.bin"
    tensors = {name: source(name) for name in DTYPES}
    torch.save(tensors, path)
    return rustload.open(path, framework="torch"), tensors


def fits(values: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    """Which floats an integer dtype holds after truncation."""
    wide = values.to(torch.float64).trunc()
    limits = torch.iinfo(to)
    # Of 64-bit dtypes the largest value is not a double: the comparison must not round it up.
    return wide.ge(float(limits.min)) & (
        wide.lt(2.0**limits.bits) if limits.min == 0 else wide.lt(2.0 ** (limits.bits - 1))
    )


def in_fp8_range(values: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    """Which values torch rounds without overflow, in every version, and NaN."""
    wide = values.to(torch.float64)
    return (wide.abs() <= torch.finfo(to).max) | wide.isnan()


@pytest.mark.parametrize(("src", "dst"), list(itertools.product(REAL, REAL)))
def test_a_cast_equals_torchs_to(sources, src, dst):
    ckpt, tensors = sources
    values, to = tensors[src], dtype_of(dst)
    found = ckpt[src].materialize(dtype=dst, allow_lossy=True)
    expected = values.to(to)
    assert found.dtype == to
    if values.dtype.is_floating_point and dst in INTS:
        keep = fits(values, to)
    elif dst in FP8 and src != dst:
        keep = in_fp8_range(values, to)
    else:
        keep = torch.ones(len(values), dtype=torch.bool)
    if src == dst:
        assert_same_bits(found, expected)
    else:
        assert keep.sum() > 10 or src in FP8
        assert_same_values(found[keep] if to.itemsize > 1 else found.view(torch.uint8)[keep].view(to),
                           expected[keep] if to.itemsize > 1 else expected.view(torch.uint8)[keep].view(to))  # fmt: skip


@pytest.mark.parametrize("dst", [name for name in FP8 if name != "float8_e8m0fnu"])
@pytest.mark.parametrize("src", FLOATS)
def test_fp8_overflow_equals_ml_dtypes_by_default(sources, src, dst):
    ckpt, tensors = sources
    found = ckpt[src].materialize(framework="numpy", dtype=dst).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = tensors[src].to(torch.float32).numpy().astype(getattr(ml_dtypes, dst)).astype(np.float32)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dst", [name for name in FP8 if name != "float8_e8m0fnu"])
@pytest.mark.parametrize("src", FLOATS)
def test_fp8_overflow_saturates_on_request(sources, src, dst):
    ckpt, tensors = sources
    found = ckpt[src].materialize(framework="numpy", dtype=dst, overflow="saturate").astype(np.float32)
    target = getattr(ml_dtypes, dst)
    most = float(ml_dtypes.finfo(target).max)
    with np.errstate(over="ignore", invalid="ignore"):
        clipped = np.clip(tensors[src].to(torch.float32).numpy(), -most, most)
        expected = clipped.astype(target).astype(np.float32)
    np.testing.assert_array_equal(found, expected)


def test_float_to_int_saturates_and_casts_nan_to_zero(save):
    values = torch.tensor(
        [float("nan"), float("inf"), float("-inf"), 1e30, -1e30, 300.0, -300.0, 2.0**63, 2.0**64]
    )
    lazy = rustload.open(save({"x": values}), framework="torch")["x"]
    for name in INTS:
        limits = torch.iinfo(dtype_of(name))
        exact = [0, limits.max, limits.min]
        exact += [min(max(int(value), limits.min), limits.max) for value in values[3:].tolist()]
        found = lazy.materialize(dtype=name, allow_lossy=True)
        assert found.tolist() == exact, name


@pytest.mark.filterwarnings(
    "ignore:Casting complex values to real discards"
)  # torch's, and only the first time
@pytest.mark.parametrize(("src", "dst"), [
    *itertools.product(["complex64", "complex128"], ["complex64", "complex128", "float32", "float16", "int64", "bool"]),
    *itertools.product(["bool", "int16", "bfloat16", "float32", "float64"], ["complex64", "complex128"]),
])  # fmt: skip
def test_complex_casts_equal_torchs_to(save, src, dst):
    if src.startswith("complex"):
        generator = torch.Generator().manual_seed(5)
        values = (torch.randn(63, dtype=torch.complex128, generator=generator) * 50).to(dtype_of(src))
        values[3] = 0
        values[4] = 1j
    else:
        values = patterns(src, (63,), seed=6)
    found = rustload.open(save({"x": values}), framework="torch")["x"].materialize(
        dtype=dst, allow_lossy=True
    )
    expected = values.to(dtype_of(dst))
    if expected.is_complex():
        assert_same_values(torch.view_as_real(found), torch.view_as_real(expected))
    else:
        assert_same_values(found, expected)


@pytest.mark.parametrize(("src", "dst"), [
    ("complex64", "float32"), ("complex64", "int64"), ("float32", "int32"), ("bfloat16", "uint8"),
    ("float8_e5m2", "int8"), ("int64", "bool"), ("float32", "bool"), ("complex64", "bool"),
])  # fmt: skip
def test_a_cast_to_a_lower_kind_of_number_needs_allow_lossy(sources, src, dst):
    lazy = sources[0][src]
    with pytest.raises(ValueError, match="lossy") as caught:
        lazy.materialize(dtype=dst)
    assert caught.value.code == "LossyCast"
    assert "allow_lossy=True" in caught.value.__notes__[0]
    assert lazy.materialize(dtype=dst, allow_lossy=True).dtype == dtype_of(dst)


@pytest.mark.parametrize("spelling", [
    "bfloat16", "bf16", "BF16", "torch.bfloat16", torch.bfloat16, ml_dtypes.bfloat16, np.dtype(ml_dtypes.bfloat16),
])  # fmt: skip
def test_a_dtype_may_have_its_torch_safetensors_or_numpy_name(simple, spelling):
    assert rustload.open(simple, framework="torch")["w"].materialize(dtype=spelling).dtype == torch.bfloat16


@pytest.mark.parametrize("spelling", [np.float16, np.dtype("float16"), np.dtype("<f2"), "half", torch.half])
def test_a_numpy_scalar_type_is_a_dtype(simple, spelling):
    assert rustload.open(simple, framework="numpy")["w"].materialize(dtype=spelling).dtype == np.float16


@pytest.mark.parametrize("wrong", ["floaty", "", "f", 5, object(), float, int, ["float32"]])
def test_an_invalid_dtype_is_refused(simple, wrong):
    with pytest.raises((TypeError, ValueError)):
        rustload.open(simple, framework="torch")["w"].materialize(dtype=wrong)


def test_a_mapping_of_globs_or_a_callable_chooses_per_tensor(simple):
    ckpt = rustload.open(simple, framework="torch")
    by_name = {"w*": "float16", "*": "int32"}
    assert [t.materialize(dtype=by_name).dtype for t in ckpt.values()] == [torch.float16, torch.int32]
    assert [t.materialize(dtype={"b": "int8"}).dtype for t in ckpt.values()] == [torch.float32, torch.int8]

    def wanted(tensor):
        return "float64" if tensor.ndim == 2 else None

    assert [t.materialize(dtype=wanted).dtype for t in ckpt.values()] == [torch.float64, torch.int64]
    flip = {"w": True}
    assert [tuple(t.materialize(transpose=flip).shape) for t in ckpt.values()] == [(6, 4), (3,)]
    assert tuple(ckpt["w"].materialize(transpose=lambda t: (1, 0) if t.ndim == 2 else None).shape) == (6, 4)


def test_transpose_true_swaps_the_last_two_dimensions_into_owned_contiguous_memory(save):
    value = patterns("int32", (2, 3, 4, 5))
    found = rustload.open(save({"x": value}), framework="torch")["x"].materialize(transpose=True)
    assert_same_bits(found, value.transpose(-1, -2))
    assert found.is_contiguous()


@pytest.mark.parametrize(
    "order", [*list(itertools.permutations(range(4)))[::3], (-1, 0, -2, 1), (3, 2, 1, 0)]
)
def test_transpose_with_a_tuple_is_a_permutation(save, order):
    value = patterns("bfloat16", (2, 3, 4, 5))
    lazy = rustload.open(save({"x": value}), framework="torch")["x"]
    for found in (lazy.materialize(transpose=order), lazy.materialize(transpose=list(order))):
        assert_same_bits(found, value.permute(order))
        assert found.is_contiguous()


@pytest.mark.parametrize("order", [(0,), (0, 0), (0, 1, 2), (0, 2), (-3, 0), ()])
def test_a_wrong_permutation_is_a_value_error(simple, order):
    with pytest.raises(ValueError, match="permutation"):
        rustload.open(simple)["w"].materialize(transpose=order)


def test_transpose_true_of_a_vector_is_a_value_error(simple):
    with pytest.raises(ValueError, match="2 dimensions"):
        rustload.open(simple)["b"].materialize(transpose=True)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "permuted", "strided"])
def test_the_number_of_threads_changes_no_bit(threads, layout):
    """Large enough (12 MB) to be split, with sides that divide nothing."""
    base = torch.arange(3 * 1021 * 1031, dtype=torch.float32).reshape(3, 1021, 1031)
    part = {
        "contiguous": base,
        "transposed": base.transpose(1, 2),
        "permuted": base.permute(2, 0, 1),
        "strided": base[:, ::2, 1::3],
    }[layout]
    lazy = rustload.open(saved({"x": part}), framework="torch")["x"]
    assert_same_bits(lazy.materialize(copy=True, threads=threads), part)
    assert_same_bits(
        lazy.materialize(dtype="bfloat16", transpose=True, threads=threads), part.bfloat16().transpose(1, 2)
    )


# Property tests.

# Without NaN payloads to lose and without values that an int cannot hold.
SAFE_PAIRS = [
    (src, dst)
    for src in REAL
    for dst in REAL
    if not (src in (*FLOATS, *FP8) and dst in INTS) and dst not in FP8
]


@st.composite
def strided(draw, name: str) -> torch.Tensor:
    """A tensor whose strides come from slices, a permutation, an expansion and a new axis."""
    shape = draw(st.lists(st.integers(0, 7) | st.integers(1, 40), min_size=0, max_size=4))
    while np.prod(shape, dtype=np.int64) > 20_000:
        shape.pop()
    tensor = patterns(name, tuple(shape), seed=draw(st.integers(0, 3)))
    for dim, size in enumerate(shape):
        start = draw(st.integers(0, size))
        stop = draw(st.integers(start, size))
        step = draw(st.integers(1, 3))
        tensor = tensor[(slice(None),) * dim + (slice(start, stop, step),)]
    tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
    if draw(st.booleans()):
        tensor = tensor.unsqueeze(0).expand(draw(st.integers(0, 3)), *tensor.shape)
    return tensor


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), pair=st.sampled_from(SAFE_PAIRS))
def test_any_strided_tensor_casts_and_permutes_as_in_torch(data, pair):
    src, dst = pair
    tensor = data.draw(strided(src))
    order = tuple(data.draw(st.permutations(range(tensor.ndim))))
    lazy = rustload.open(saved([tensor]), framework="torch")["0"]
    assert lazy.strides == tensor.stride()
    assert_same_bits(lazy.materialize(), tensor)
    expected = tensor.permute(order).to(dtype_of(dst))
    found = lazy.materialize(dtype=dst, transpose=order, allow_lossy=True)
    assert_same_values(found, expected)
    assert found.is_contiguous()
    assert_same_values(lazy.permute(order).materialize(dtype=dst, allow_lossy=True), expected)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), name=st.sampled_from(DTYPES))
def test_any_strided_tensor_of_a_file_reads_as_in_torch(data, name, tmp_path_factory):
    tensor = data.draw(strided(name))
    path = tmp_path_factory.getbasetemp() / "strided.bin"
    torch.save({"x": tensor}, path)
    expected = torch.load(path, weights_only=True)["x"]
    lazy = rustload.open(path, framework="torch")["x"]
    view = lazy.materialize()
    assert view.stride() == expected.stride()
    assert_same_bits(view, expected)
    assert_same_bits(lazy.materialize(copy=True), expected)
    assert lazy.numpy().tobytes() == bits(expected)
    assert_same_bits(lazy.T.materialize(), expected.permute(tuple(reversed(range(expected.ndim)))))
