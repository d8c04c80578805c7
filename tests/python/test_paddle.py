"""Files of Paddle: plain pickles whose tensors are `tuple((name, array))`, or calls of `eval` for those of older programs.

Paddle is not installed here: its reducers (paddle/framework/io.py: `_pickle_save`) are repeated with a dispatch table.
"""

import io
import pickle
from typing import Any

import numpy as np
import pytest
from support import Reduced

import rustload
import rustload.torch

DTYPES = ("float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64")


class Tensor:
    """A tensor of Paddle."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self.name = name
        self.array = array


class LoDTensor(Tensor):
    """A tensor of Paddle's static graphs."""


class Pickler(pickle._Pickler):
    """Paddle's: it sets reducers for its classes."""

    dispatch_table = {  # noqa: RUF012 - the name is pickle's
        Tensor: lambda tensor: (tuple, ((tensor.name, tensor.array),)),
        LoDTensor: lambda tensor: (eval, ("data", {"data": tensor.array})),
    }


def saved(value: object, protocol: int = 4) -> bytes:
    """`paddle.save(value)`."""
    file = io.BytesIO()
    Pickler(file, protocol).dump(value)
    return file.getvalue()


def model() -> dict[str, Any]:
    """A state dict of every dtype, with the names of the parameters in the program, as `.pdparams` has it."""
    rng = np.random.default_rng(1)
    arrays = {f"layer.{dtype}": (rng.random((3, 5)) * 99).astype(dtype) for dtype in DTYPES}
    arrays["layer.scalar"] = np.array(2.5, "float32")
    arrays["layer.empty"] = np.zeros((0, 4), "float32")
    arrays["layer.transposed"] = np.asfortranarray(rng.random((4, 3)))
    tensors = {key: Tensor(f"linear_{at}.w_0", array) for at, (key, array) in enumerate(arrays.items())}
    return {**tensors, "StructuredToParameterName@@": {key: tensor.name for key, tensor in tensors.items()}}


@pytest.mark.parametrize("protocol", range(2, 5))
def test_a_tensor_has_the_name_of_its_key(protocol):
    state = model()
    ckpt = rustload.open(saved(state, protocol), framework="numpy")
    names = state.pop("StructuredToParameterName@@")
    assert list(ckpt) == list(state)
    for key, tensor in state.items():
        found = ckpt[key]
        assert found.path == (key,)
        array = found.materialize()
        assert array.dtype == tensor.array.dtype
        np.testing.assert_array_equal(array, tensor.array)
    assert ckpt.objects["StructuredToParameterName@@"] == names
    assert isinstance(ckpt.objects["layer.float32"], rustload.LazyTensor)
    assert ckpt.opaque == []
    assert rustload.scan(saved(state, protocol)).verdict == "inert"


def test_the_state_of_an_optimizer():
    """`.pdopt`: tensors beside numbers, and master weights in a dict of their own."""
    array = np.arange(6, dtype="f4").reshape(2, 3)
    state = {
        "linear_0.w_0_moment1_0": Tensor("linear_0.w_0_moment1_0", array),
        "master_weights": {"linear_0.w_0": Tensor("master", array * 2)},
        "LR_Scheduler": {"last_epoch": 3, "last_lr": 0.1},
    }
    ckpt = rustload.open(saved(state), framework="numpy")
    assert list(ckpt) == ["linear_0.w_0_moment1_0", "master_weights.linear_0.w_0"]
    np.testing.assert_array_equal(ckpt["master_weights.linear_0.w_0"][1].materialize(), array[1] * 2)
    assert ckpt.objects["LR_Scheduler"] == {"last_epoch": 3, "last_lr": 0.1}


def test_eval_stays_data_and_would_execute():
    array = np.arange(3, dtype="f4")
    data = saved({"w": LoDTensor("w", array), "b": Tensor("b", array)})
    ckpt = rustload.open(data, framework="numpy")
    assert [found.class_name for found in ckpt.opaque] == ["builtins.eval"]
    assert isinstance(ckpt.objects["w"], rustload.Opaque)
    # Its array is an argument of the call, and can be read as one.
    assert list(ckpt) == ["w.args.1.data", "b"]
    np.testing.assert_array_equal(ckpt["w.args.1.data"].materialize(), array)
    assert rustload.scan(data).verdict == "would execute"
    with pytest.raises(rustload.DisallowedError):
        rustload.open(data, unknown="error")


def test_bfloat16_is_not_told_from_uint16():
    """Paddle converts a bfloat16 tensor to an array of uint16."""
    ckpt = rustload.open(saved({"w": Tensor("w", np.array([0x3F80, 0x4000], "u2"))}), framework="numpy")
    assert ckpt["w"].dtype == "uint16"
    assert any("bfloat16" in note for note in ckpt.notes)
    assert not rustload.open(saved({"w": Tensor("w", np.ones(2, "f4"))})).notes


def test_tied_tensors_are_tied():
    array = np.arange(3, dtype="f4")
    ckpt = rustload.open(saved({"a": Tensor("a", array), "b": Tensor("b", array)}), framework="numpy")
    assert ckpt.tied == [["a", "b"]]


def test_other_calls_of_tuple_and_list_are_tuples_and_lists():
    array = np.arange(3, dtype="f4")
    value = {
        "of_list": Reduced(tuple, ([array, 1],)),
        "of_tuple": Reduced(tuple, ((array, "name", 2),)),
        "list": Reduced(list, ((array, 1),)),
        "empty": Reduced(tuple, ()),
        "number": Reduced(tuple, (("name", 5),)),
    }
    ckpt = rustload.open(pickle.dumps(value), framework="numpy")
    assert list(ckpt) == ["of_list.0", "of_tuple.0", "list.0"]
    objects = ckpt.objects
    assert objects["empty"] == ()
    assert objects["number"] == ("name", 5)
    assert [type(objects[key]) for key in ("of_list", "of_tuple", "list")] == [tuple, tuple, list]
    assert objects["of_tuple"][1:] == ("name", 2)
    assert pickle.loads(pickle.dumps(value))["number"] == ("name", 5)
    assert rustload.scan(pickle.dumps(value)).verdict == "inert"


@pytest.mark.parametrize("argument", ["text", b"bytes", 5, {"a": 1}, None])
def test_tuples_of_other_values_stay_data(argument):
    """Characters, bytes and keys are not followed, and a number is an error in Python."""
    ckpt = rustload.open(pickle.dumps({"x": Reduced(tuple, (argument,))}))
    assert isinstance(ckpt.objects["x"], rustload.Opaque)


def test_a_pair_that_is_no_call_is_a_tuple():
    """Python pickles a tuple without a call, so the pair of a program is none of Paddle's."""
    array = np.arange(3, dtype="f4")
    ckpt = rustload.open(pickle.dumps({"w": ("name", array)}), framework="numpy")
    assert list(ckpt) == ["w.1"]
