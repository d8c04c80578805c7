"""Every kind of object that people save is what `torch.load(weights_only=True)` makes of it, or refused as torch refuses it."""

from __future__ import annotations

import io
import pickle

import make_kinds
import pytest
import torch
from torch_graph import assert_same_graph

import rustload.torch

# Nested tensors are data in rustload, and off torch's own list from 2.15 on.
NESTED = {"nested_tensor", "jagged_tensor"}


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", [name for name in make_kinds.KINDS if name not in NESTED])
@pytest.mark.filterwarnings("ignore")
def test_a_kind_is_what_torch_makes_of_it_or_refused_as_torch_refuses_it(name: str, zip_format: bool) -> None:
    data = make_kinds.saved(name, zip_format=zip_format, protocol=2)
    try:
        expected = torch.load(io.BytesIO(data), weights_only=True)
    except pickle.UnpicklingError:
        with pytest.raises(pickle.UnpicklingError, match=r"^Weights only load failed\."):
            rustload.torch.load(data, unknown="error")
        assert rustload.torch.load(data) is not None
    except AttributeError:
        rustload.torch.load(data)  # a legacy file of an untyped storage, which torch writes and cannot read
    else:
        for unknown in ("error", "keep"):
            assert_same_graph(rustload.torch.load(data, unknown=unknown), expected)


@pytest.mark.parametrize("name", sorted(NESTED))
@pytest.mark.filterwarnings("ignore")
def test_a_nested_tensor_stays_data(name: str) -> None:
    data = make_kinds.saved(name, zip_format=True, protocol=2)
    assert isinstance(rustload.torch.load(data), rustload.Opaque)
    with pytest.raises(pickle.UnpicklingError, match=r"^Weights only load failed\."):
        rustload.torch.load(data, unknown="error")


def test_most_kinds_are_compared_as_graphs() -> None:
    assert len(make_kinds.KINDS) >= 63
