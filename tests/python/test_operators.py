"""Operators of lazy tensors: refused with what to do, unless NumPy computes; compared with NumPy and torch."""

import operator
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rustload

VALUES = torch.tensor([3, 1, 2, 5])
BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, divmod, operator.pow,
    operator.matmul, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift,
    operator.lt, operator.le, operator.gt, operator.ge,
]  # fmt: skip
INPLACE = [operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.imatmul, operator.ior]


@pytest.fixture
def lazy(save: Callable[..., Path]) -> rustload.LazyTensor:
    return rustload.open(save({"w": VALUES}))["w"]


def check_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match=r"LazyTensor|JoinedTensor") as caught:
        call()
    assert any(".materialize()" in note and ".numpy()" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("apply", [*BINARY, *INPLACE], ids=lambda apply: apply.__name__)
def test_operators_of_numbers_tensors_and_lazy_tensors_say_what_to_do(lazy, apply):
    joined = rustload.concat([lazy, lazy])
    for other in (1, 1.5, True, lazy, joined, lazy[:2], VALUES, None, object(), {"a": 1}):
        check_refused(lambda other=other: apply(lazy, other))  # type: ignore[misc]
        check_refused(lambda other=other: apply(joined, other))  # type: ignore[misc]
        if apply in BINARY:
            check_refused(lambda other=other: apply(other, lazy))  # type: ignore[misc]


@pytest.mark.parametrize("apply", [operator.neg, operator.pos, operator.invert, abs, round])
def test_unary_operators_say_what_to_do(lazy, apply):
    check_refused(lambda: apply(lazy))
    check_refused(lambda: apply(rustload.concat([lazy, lazy])))


def test_functions_that_use_operators_say_what_to_do(lazy):
    check_refused(lambda: sum([lazy, lazy]))  # type: ignore[list-item]
    check_refused(lambda: sorted([lazy, lazy]))  # type: ignore[type-var]
    check_refused(lambda: max(lazy, lazy))  # type: ignore[type-var]
    check_refused(lambda: round(lazy, 2))  # type: ignore[call-overload]
    check_refused(lambda: pow(lazy, 2, 3))  # type: ignore[call-overload]


@pytest.mark.parametrize("apply", BINARY, ids=lambda apply: apply.__name__)
@pytest.mark.parametrize("other", [np.array([1, 2, 1, 2]), np.int64(2)], ids=["array", "scalar"])
def test_numpy_computes_with_lazy_tensors(lazy, apply, other):
    if apply is operator.matmul and other.ndim == 0:
        check_refused(lambda: apply(lazy, other))
        check_refused(lambda: apply(other, lazy))
        return
    np.testing.assert_array_equal(apply(lazy, other), apply(VALUES.numpy(), other))
    np.testing.assert_array_equal(apply(other, lazy), apply(other, VALUES.numpy()))


def test_functions_of_numpy_and_torch_are_as_before(lazy):
    np.testing.assert_array_equal(np.add(lazy, 1), VALUES.numpy() + 1)
    np.testing.assert_array_equal(np.asarray(lazy) < 2, VALUES.numpy() < 2)
    array = np.ones(4, np.int64)
    array += lazy  # type: ignore[arg-type]
    np.testing.assert_array_equal(array, VALUES.numpy() + 1)
    assert torch.equal(torch.as_tensor(lazy), VALUES)
    assert torch.equal(torch.from_dlpack(lazy) + 1, VALUES + 1)
    # torch takes tensors only; its own error says so.
    with pytest.raises(TypeError, match="must be Tensor, not LazyTensor"):
        torch.add(lazy, 1)  # type: ignore[call-overload]


def test_lazy_tensors_are_equal_if_they_are_one_part_of_one_file(save, tmp_path):
    w = torch.arange(12.0).view(3, 4)
    path = save({"w": w, "tied": w, "copy": w.clone(), "view": w.view(4, 3), "row": w[1]}, "a.bin")
    ckpt, again = rustload.open(path), rustload.open(path)
    lazy = ckpt["w"]
    joined = rustload.concat([lazy, ckpt["copy"]])
    for one, two in (
        (lazy, ckpt["w"]),
        (lazy, lazy[:]),
        (lazy, ckpt["tied"]),
        (lazy, again["w"]),
        (lazy, pickle.loads(pickle.dumps(lazy))),
        (lazy[1], ckpt["row"]),
        (lazy.T.T, lazy),
        (lazy.reshape(4, 3), ckpt["view"]),
        (joined, rustload.concat([again["tied"], again["copy"]])),
        (joined[:, 1], rustload.concat([lazy[:, 1], ckpt["copy"][:, 1]])),
    ):
        assert one == two
        assert (one != two) is False
        assert hash(one) == hash(two)
        assert len({one, two}) == 1
        assert one in [None, two]
    shutil.copy(path, tmp_path / "copy.bin")
    other = rustload.open(tmp_path / "copy.bin")
    data = path.read_bytes()
    for one, two in (
        (lazy, ckpt["copy"]),
        (lazy, ckpt["view"]),
        (lazy, lazy[1:]),
        (lazy, lazy.T),
        (lazy, other["w"]),
        (rustload.open(data)["w"], rustload.open(data)["w"]),
        (joined, lazy),
        (joined, rustload.concat([ckpt["copy"], lazy])),
        (rustload.stack([lazy, lazy]), rustload.concat([lazy, lazy])),
    ):
        assert one != two
        assert (one == two) is False
        assert len({one, two}) == 2
    assert ckpt == dict(again)
    os.utime(path, (1, 1))
    assert rustload.open(path)["w"] != lazy


def test_a_dequantized_weight_is_not_its_codes(save):
    codes, scale = torch.ones(128, 128).to(torch.float8_e4m3fn), torch.ones(1, 1)
    path = save({"w.weight": codes, "w.weight_scale_inv": scale})
    plain, numbers = rustload.open(path), rustload.open(path, dequantize=True)
    assert plain["w.weight"] != numbers["w.weight"]
    assert numbers["w.weight"] == rustload.open(path, dequantize=True)["w.weight"]


@pytest.mark.parametrize("apply", [operator.eq, operator.ne], ids=lambda apply: apply.__name__)
def test_comparing_with_elements_says_what_to_do(lazy, apply):
    joined = rustload.concat([lazy, lazy])
    for other in (1, 1.5, True, 1j, VALUES):
        for one in (lazy, joined):
            check_refused(lambda one=one, other=other: apply(one, other))  # type: ignore[misc]
            check_refused(lambda one=one, other=other: apply(other, one))  # type: ignore[misc]
    check_refused(lambda: VALUES in [lazy])
    for nothing in (None, "w", object(), [3, 1, 2, 5], {"a": 1}):
        assert apply(lazy, nothing) is (apply is operator.ne)
        assert apply(nothing, lazy) is (apply is operator.ne)
    expected = apply(np.array([3, 1, 2, 5]), np.array([3, 0, 2, 0]))
    np.testing.assert_array_equal(apply(lazy, np.array([3, 0, 2, 0])), expected)
    np.testing.assert_array_equal(apply(np.array([3, 0, 2, 0]), lazy), expected)


def test_formatting_is_that_of_objects(lazy):
    assert {lazy: 1}[lazy] == 1
    assert "%s" % lazy == repr(lazy)  # noqa: UP031
