"""Every kind of object that people save equals what `torch.load(weights_only=True)` loads, or is refused as by torch."""

import io
import pickle

import make_kinds
import pytest
import torch
from torch_graph import assert_same_graph

import rustload.torch

# Nested tensors are opaque in rustload; torch removes them from its list of allowed names in 2.15.
NESTED = {"nested_tensor", "jagged_tensor"}


@pytest.mark.parametrize("zip_format", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", [name for name in make_kinds.KINDS if name not in NESTED])
@pytest.mark.filterwarnings("ignore")
def test_a_kind_equals_torchs_or_is_refused_as_by_torch(name, zip_format):
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
def test_a_nested_tensor_is_opaque(name):
    data = make_kinds.saved(name, zip_format=True, protocol=2)
    assert isinstance(rustload.torch.load(data), rustload.Opaque)
    with pytest.raises(pickle.UnpicklingError, match=r"^Weights only load failed\."):
        rustload.torch.load(data, unknown="error")
