"""`dtype=` and `transpose=` for many tensors: plain values, patterns, callables."""

import numpy as np
import pytest
import torch
from support import DTYPES, dtype_of

import rustload
from rustload._common.rules import Rules


@pytest.fixture
def ckpt(save):
    state = {name: torch.zeros(2, 2).to(dtype_of(name)) for name in DTYPES if name != "float8_e8m0fnu"}
    return rustload.open(save(state))


def test_a_plain_dtype_applies_to_floats_of_16_bits_or_more(ckpt):
    rules = Rules(dtype=torch.bfloat16)
    changed = {name for name, tensor in ckpt.items() if rules.dtype(tensor) is not None}
    assert changed == {"float64", "float32", "float16", "bfloat16"}
    assert {rules.dtype(ckpt[name]) for name in changed} == {"bfloat16"}


@pytest.mark.parametrize("dtype", ["bf16", "BF16", "bfloat16", torch.bfloat16])
def test_a_dtype_may_have_any_of_its_names(ckpt, dtype):
    assert Rules(dtype=dtype).dtype(ckpt["float32"]) == "bfloat16"
    assert Rules(dtype={"*": dtype}).dtype(ckpt["int8"]) == "bfloat16"
    assert Rules(dtype=lambda _: dtype).dtype(ckpt["int8"]) == "bfloat16"


def test_a_numpy_scalar_type_is_a_value_not_a_callable(ckpt):
    rules = Rules(dtype=np.float16)
    assert rules.dtype(ckpt["float32"]) == "float16"
    assert rules.dtype(ckpt["int8"]) is None


def test_the_first_matching_pattern_decides(ckpt):
    rules = Rules(dtype={"float8*": "float32", "float*": None, "*": "int64"}, transpose={"int?": (1, 0)})
    assert rules.dtype(ckpt["float8_e5m2"]) == "float32"
    assert rules.dtype(ckpt["float64"]) is None
    assert rules.dtype(ckpt["bool"]) == "int64"
    assert rules.transpose(ckpt["int8"]) == [1, 0]
    assert rules.transpose(ckpt["int16"]) is None


@pytest.mark.parametrize("argument", ["dtype", "transpose"])
def test_a_pattern_that_is_no_text_is_a_type_error(ckpt, argument):
    with pytest.raises(TypeError, match="a pattern is a str, not 5"):
        ckpt["float32"].materialize(**{argument: {5: None}})
    with pytest.raises(TypeError, match=f"{argument}= has a int where"):
        ckpt.materialize(**{argument: {5: None}})


def test_patterns_are_case_sensitive(ckpt):
    assert Rules(dtype={"FLOAT32": "bfloat16"}).dtype(ckpt["float32"]) is None


def test_a_callable_gets_the_handle(ckpt):
    rules = Rules(
        dtype=lambda t: "float16" if t.dtype == "int8" else None, transpose=lambda t: t.dtype == "int8"
    )
    assert (rules.dtype(ckpt["int8"]), rules.transpose(ckpt["int8"])) == ("float16", True)
    assert (rules.dtype(ckpt["float32"]), rules.transpose(ckpt["float32"])) == (None, None)


def test_an_exception_of_a_callable_has_a_note_with_the_tensor(ckpt):
    def wrong(_):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        Rules(dtype=wrong).dtype(ckpt["int8"])
    assert caught.value.__notes__ == ["for tensor 'int8'"]


@pytest.mark.parametrize("value", [True, (1, 0), [1, 0]])
def test_a_plain_transpose_is_refused(value):
    with pytest.raises(ValueError, match="for all tensors at once") as caught:
        Rules(transpose=value)
    assert caught.value.code == "Value"
    assert "pattern" in caught.value.__notes__[0] or "such as" in caught.value.__notes__[0]


@pytest.mark.parametrize("value", [None, False, {}, lambda _: None])
def test_an_empty_transpose_has_no_effect(ckpt, value):
    assert Rules(transpose=value).transpose(ckpt["int8"]) is None


def test_wrong_values_are_errors_before_a_tensor_is_read(ckpt):
    with pytest.raises(ValueError, match="dtype"):
        Rules(dtype={"nothing": "float31"})
    with pytest.raises(TypeError, match="transpose="):
        Rules(transpose={"nothing": "yes"})
    with pytest.raises(TypeError, match="is not a dtype"):
        Rules(dtype=float)
    with pytest.raises(TypeError, match="transpose="):
        Rules(transpose=lambda _: "yes").transpose(ckpt["int8"])
