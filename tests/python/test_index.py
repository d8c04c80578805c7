"""Basic indexing of a handle: lazy, and equal to NumPy's and torch's."""

import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_same_bits, patterns, saved

import rustload

BASE = torch.arange(4 * 5 * 6, dtype=torch.int32).reshape(4, 5, 6)


@pytest.fixture(scope="module")
def lazy(tmp_path_factory):
    path = tmp_path_factory.mktemp("index") / "x.bin"
    torch.save({"x": BASE, "turned": BASE.permute(2, 0, 1), "scalar": torch.tensor(7.5)}, path)
    return rustload.open(path, framework="torch")


KEYS = [
    0, -1, 3, slice(None), slice(1, 3), slice(-3, -1), slice(None, None, 2), slice(1, None, 3), slice(2, 2), slice(3, 1),
    slice(9, None), slice(-99, 99), slice(None, -99), ..., None, (), (0,), (0, 1, 2), (-4, -4, -4), (..., 0), (0, ...),
    (..., slice(1, 4), 2), (None, ...), (..., None), (0, None, slice(2), None, -1), (slice(None), 2), (slice(None), None),
    (slice(0), slice(None), slice(None, None, 5)), (1, ..., 2, 3), (0, 0, 0, ...), (..., 1, 1, 1), (None, None, None),
    np.int64(2), np.uint8(1), (np.int32(-1), slice(np.int64(1), np.int16(4))), torch.tensor(2),
    slice(None, sys.maxsize), slice(-sys.maxsize - 1, None), slice(None, None, sys.maxsize), slice(0, 2**70),
    slice(-(2**70), None), slice(None, None, 2**70),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=repr)
@pytest.mark.parametrize("name", ["x", "turned"])
def test_basic_indexing_equals_numpys(lazy, name, key):
    whole = {"x": BASE, "turned": BASE.permute(2, 0, 1)}[name].numpy()
    expected = whole[key]
    part = lazy[name][key]
    assert isinstance(part, rustload.LazyTensor)
    assert part.name == name
    assert (part.shape, part.dtype, part.size) == (expected.shape, "int32", expected.size)
    for found in (part.materialize(), part.materialize(copy=True)):
        np.testing.assert_array_equal(found.numpy(), expected)
    strides = [stride // 4 for size, stride in zip(expected.shape, expected.strides, strict=True) if size > 1]
    if expected.size:
        assert [stride for size, stride in zip(part.shape, part.strides, strict=True) if size > 1] == strides


@pytest.mark.parametrize("key", [4, -5, (0, 5), (0, 0, 6), (0, 0, 0, 0), (..., 6), (slice(None), -6), 2**31])
def test_an_index_out_of_bounds_is_an_index_error(lazy, key):
    with pytest.raises(IndexError):
        BASE.numpy()[key]
    with pytest.raises(IndexError):
        lazy["x"][key]


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1, 2**70, -(2**70)])
def test_an_index_beyond_64_bits_is_an_index_error(lazy, key):
    with pytest.raises(IndexError):
        list(BASE)[key]
    with pytest.raises(IndexError):
        lazy["x"][key]


def test_indexing_a_scalar_by_number_is_an_index_error(lazy):
    with pytest.raises(IndexError):
        lazy["scalar"][0]
    assert lazy["scalar"][()].materialize() == 7.5
    assert lazy["scalar"][...].shape == ()
    assert lazy["scalar"][None].shape == (1,)


@pytest.mark.parametrize("key", [
    True, False, np.bool_(True), [0, 1], (0, [1]), np.array([0, 1]), torch.tensor([0, 1]), torch.tensor([True] * 4),
    np.array(True), torch.tensor(True), BASE > 3, 1.0, "0", b"0", slice(0.0, 2), slice("a"), object(), {0}, (0, True),
], ids=lambda key: type(key).__name__)  # fmt: skip
def test_masks_lists_and_other_keys_are_type_errors(lazy, key):
    with pytest.raises(TypeError):
        lazy["x"][key]


@pytest.mark.parametrize("step", [0, -1, -3, -(2**70)])
def test_a_step_that_is_not_positive_is_a_value_error(lazy, step):
    with pytest.raises(ValueError, match="step"):
        lazy["x"][::step]


def test_two_ellipses_are_refused(lazy):
    with pytest.raises((IndexError, ValueError), match="ellips"):
        lazy["x"][..., 0, ...]


def test_iteration_yields_the_parts_along_the_first_dimension(lazy):
    parts = list(lazy["x"])
    assert len(parts) == len(lazy["x"]) == 4
    for found, expected in zip(parts, BASE, strict=True):
        assert_same_bits(found.materialize(), expected)


def test_a_scalar_has_no_length_and_no_parts(lazy):
    with pytest.raises(TypeError):
        len(lazy["scalar"])
    with pytest.raises(TypeError):
        iter(lazy["scalar"])


def test_an_empty_handle_is_not_false(save):
    """`if handle:` must not silently mean `len(handle) > 0`."""
    ckpt = rustload.open(save({"empty": torch.empty(0, 3), "scalar": torch.tensor(1.0)}))
    for lazy in ckpt.values():
        try:
            truth = bool(lazy)
        except (TypeError, ValueError):
            continue
        assert truth


def test_the_in_operator_is_a_type_error(lazy):
    with pytest.raises(TypeError):
        3 in lazy["x"]  # noqa: B015 - the comparison must fail


def test_t_reverses_all_dimensions(lazy):
    part = lazy["x"].T
    assert (part.shape, part.strides) == ((6, 5, 4), (1, 6, 30))
    assert_same_bits(part.materialize(), BASE.permute(2, 1, 0))
    assert lazy["scalar"].T.shape == ()


@pytest.mark.parametrize("dims", [(2, 0, 1), (0, 1, 2), (-1, -2, -3), (1, -1, 0)])
def test_permute_accepts_numbers_a_tuple_or_a_list(lazy, dims):
    expected = BASE.permute(dims)
    for part in (lazy["x"].permute(*dims), lazy["x"].permute(dims), lazy["x"].permute(list(dims))):
        assert part.shape == tuple(expected.shape)
        assert part.strides == expected.stride()
        found = part.materialize()
        assert_same_bits(found, expected)
        assert found.stride() == expected.stride()


@pytest.mark.parametrize("dims", [(0, 1), (0, 0, 1), (0, 1, 3), (0, 1, 2, 3), (0, 1, -4), ()])
def test_a_wrong_permute_is_a_value_error(lazy, dims):
    with pytest.raises(ValueError, match="permutation"):
        lazy["x"].permute(*dims)


def test_chained_indexing_equals_torchs(lazy):
    part = lazy["x"][1:][:, ::2][..., -1].T[1:, None]
    expected = BASE[1:][:, ::2][..., -1].T[1:, None]
    assert part.shape == tuple(expected.shape)
    assert_same_bits(part.materialize(), expected)


def test_a_part_keeps_name_path_and_parameter_flags(save):
    value = torch.nn.Parameter(torch.ones(3, 4))
    part = rustload.open(save({"m": {"w": value}}))["m.w"][1:, 2]
    assert (part.name, part.path, part.is_parameter, part.requires_grad) == ("m.w", ("m", "w"), True, True)


ITEMS = st.one_of(
    st.integers(-8, 8),
    st.builds(slice, *[st.none() | st.integers(-9, 9)] * 2, st.none() | st.integers(1, 4)),
    st.none(),
)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(0, 6), max_size=4),
    items=st.lists(ITEMS, max_size=5),
    ellipsis=st.none() | st.integers(0, 5),
    name=st.sampled_from(["uint8", "bfloat16", "float32", "complex128"]),
)
def test_any_basic_index_equals_numpys(shape, items, ellipsis, name):
    whole = patterns(name, tuple(shape))
    key = list(items)
    if ellipsis is not None:
        key.insert(ellipsis, ...)
    key = tuple(key)
    lazy = rustload.open(saved([whole]), framework="torch")["0"]
    positions = np.arange(whole.numel()).reshape(shape)
    try:
        expected = positions[key]
    except IndexError:
        with pytest.raises(IndexError):
            lazy[key]
        return
    part = lazy[key]
    assert part.shape == expected.shape
    assert_same_bits(part.materialize(), whole.reshape(-1)[torch.from_numpy(np.asarray(expected))])
