"""Mistakes that people made with rustload at first sight: each is told as what it is."""

from __future__ import annotations

import io
import tarfile
import warnings

import numpy as np
import pytest
import torch
from support import assert_same_bits

import rustload
import rustload.torch


@pytest.fixture
def quantized(save):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will drop them; files keep them
        weight = torch.quantize_per_tensor(torch.tensor([[0.3, -0.6], [1.0, 0.4]]), 0.1, 0, torch.qint8)
    return save({"weight": weight, "bias": torch.zeros(2)})


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_integers_of_a_quantized_tensor_are_no_weights(quantized, device):
    model = torch.nn.Linear(2, 2, device=device)
    with pytest.raises(rustload.errors.ModelMismatchError, match=r"quantized \(qint8\)"):
        rustload.torch.load_into(model, quantized)


def test_a_lazy_state_dict_does_not_pass_them_on_either(quantized):
    state = rustload.torch.state_dict(quantized)
    with pytest.raises(RuntimeError, match="is quantized"):
        torch.nn.Linear(2, 2).load_state_dict(state)
    handle = state["weight"]
    assert (handle.is_quantized, handle.dtype, handle.itemsize) == (True, torch.qint8, 1)
    assert not state["bias"].is_quantized
    other = rustload.torch.state_dict(quantized, dtype={"weight": "F32"})["weight"]
    for use in (
        handle.tensor, handle.float, handle.T.clone, handle[0].sum, other.cpu, handle[0, 0].__float__,
        lambda: handle.to(torch.float32), lambda: handle + 1, lambda: torch.cat([handle, handle]),
        lambda: torch.zeros(2, 2, dtype=torch.int8).copy_(handle), lambda: np.asarray(handle),
    ):  # fmt: skip
        with pytest.raises(rustload.UnsupportedError, match="is quantized") as caught:
            use()
        assert ".dequantize()" in caught.value.__notes__[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = torch.load(quantized)["weight"]
    assert_same_bits(handle.dequantize(), expected.dequantize())
    assert_same_bits(handle[1:].T.dequantize(), expected[1:].T.dequantize())
    assert handle.int_repr().tolist() == [[3, -6], [10, 4]]
    assert_same_bits(state["bias"].dequantize(), torch.zeros(2))
    with pytest.raises(RuntimeError, match="is not quantized"):
        state["bias"].int_repr()


def test_a_dict_of_tensors_is_no_list_of_paths(save):
    path = save({"w": torch.ones(2)})
    for given in ({"w": torch.ones(2)}, rustload.open(path)):
        with pytest.raises(TypeError, match="path is a"):
            rustload.open(given)


def test_urls_are_shown_as_they_were_given():
    with pytest.raises(FileNotFoundError) as caught:
        rustload.open("https://example.org/x/y.bin")
    assert caught.value.filename == "https://example.org/x/y.bin"
    assert "nothing is downloaded" in caught.value.__notes__[0]


def test_limits_are_no_dict(save):
    with pytest.raises(TypeError, match=r"rustload\.Limits"):
        rustload.open(save({"w": torch.ones(2)}), limits={"tensors": 1})


def test_model_and_path_the_wrong_way_round(save):
    with pytest.raises(TypeError, match="the path comes second"):
        rustload.torch.load_into(save({"w": torch.ones(2)}), torch.nn.Linear(1, 1))


def test_a_mistyped_argument_of_load_is_no_pickle_argument(save):
    path = save({"w": torch.ones(2)})
    with pytest.raises(TypeError, match="map_loaction"):
        rustload.torch.load(path, map_loaction="meta")
    with pytest.warns(UserWarning, match="weights_only=False"):
        found = rustload.torch.load(path, encoding="latin1")
    assert_same_bits(found["w"], torch.ones(2))


def test_an_ordinary_tar_archive_is_to_be_unpacked():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("readme.txt"))
    with pytest.raises(rustload.UnsupportedError, match="tar archive") as caught:
        rustload.open(bytearray(out.getvalue()))
    assert "Unpack it" in caught.value.__notes__[0]


def test_a_missing_name_is_looked_up_as_safe_open_has_it(save):
    with (
        rustload.safe_open(save({"w": torch.ones(2)}), "pt") as file,
        pytest.raises(rustload.SafetensorError) as caught,
    ):
        file.get_tensor("entirely.different")
    assert not any("ckpt" in note for note in caught.value.__notes__)


@pytest.mark.parametrize(("found", "dtype", "advice"), [
    (torch.float32, torch.int8, "allow_lossy=True"), (torch.complex64, torch.float32, "allow_lossy=True"),
    (torch.qint8, torch.float32, "materialize(dequantize=True)"),
])  # fmt: skip
def test_a_kind_of_number_that_does_not_fit_says_what_to_do(save, found, dtype, advice):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value = (
            torch.quantize_per_tensor(torch.ones(2), 0.1, 0, found)
            if found is torch.qint8
            else torch.ones(2).to(found)
        )
    model = torch.nn.Module()
    model.register_buffer("w", torch.zeros(2, dtype=dtype))
    with pytest.raises(rustload.ModelMismatchError) as caught:
        rustload.torch.load_into(model, save({"w": value}))
    name = "quantized (qint8)" if found is torch.qint8 else str(found).removeprefix("torch.")
    assert f"w is {name} in the file and {str(dtype).removeprefix('torch.')} in the model" in str(
        caught.value
    )
    assert advice in caught.value.__notes__[0]
