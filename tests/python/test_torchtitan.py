"""`examples/torchtitan_reader.py` with torchtitan if it is installed, or with a stand-in for the base class of its adapters."""

import types
from pathlib import Path

import pytest
import safetensors.torch
import torch
from support import host
from torch import nn
from torch.distributed.checkpoint import HuggingFaceStorageReader

from rustload.torch.distributed import Reader

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch.distributed and torchtitan


@pytest.fixture(scope="module")
def torchtitan():
    with host("torchtitan") as is_real:
        yield is_real


@pytest.fixture(autouse=True)
def _examples_on_sys_path(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2])


@pytest.fixture
def adapter(torchtitan):  # noqa: ARG001 - made importable first
    from torchtitan.protocols.state_dict_adapter import StateDictAdapter

    from examples.torchtitan_reader import reads_any_format

    class Prefixed(StateDictAdapter):
        def to_hf(self, state_dict):
            return {f"model.{name}": tensor for name, tensor in state_dict.items()}

        def from_hf(self, hf_state_dict):
            return {name.removeprefix("model."): tensor for name, tensor in hf_state_dict.items()}

    return reads_any_format(Prefixed)(None, None)


def save(state, folder, form):
    if form == "safetensors":
        safetensors.torch.save_file(state, folder / "model.safetensors")
    elif form == "shards":
        for number, (name, tensor) in enumerate(state.items()):
            torch.save({name: tensor}, folder / f"pytorch_model-{number + 1:05}-of-{len(state):05}.bin")
    else:
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=form != "legacy")


@pytest.mark.parametrize("form", ["zip", "legacy", "shards", "safetensors"])
def test_an_adapter_reads_every_format(adapter, tmp_path, form):
    from examples.torchtitan_reader import load

    source, model = (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)) for _ in range(2))
    save(adapter.to_hf(source.state_dict()), tmp_path, form)
    load(model, adapter, str(tmp_path))
    assert all(
        torch.equal(one, other) for one, other in zip(model.parameters(), source.parameters(), strict=True)
    )


def test_weights_that_torchtitan_dequantizes_are_read_by_its_own_reader(adapter, tmp_path):
    assert type(adapter.get_hf_storage_reader(str(tmp_path))) is Reader
    assert type(adapter.get_hf_storage_reader(str(tmp_path), True)) is HuggingFaceStorageReader


def test_the_example_and_torchtitans_checkpointer(torchtitan, adapter, tmp_path, capsys):
    if not torchtitan:
        pytest.skip("torchtitan is not installed")
    from torchtitan.components.checkpointer import dcp

    from examples import torchtitan_reader

    assert torchtitan_reader.main()
    assert "parameters, equal: True" in capsys.readouterr().out
    source, model = nn.Linear(4, 3), nn.Linear(4, 3)
    save(adapter.to_hf(source.state_dict()), tmp_path, "legacy")
    checkpointer = types.SimpleNamespace(sd_adapter=adapter, states={dcp.MODEL: model})
    classes = [one for one in vars(dcp).values() if isinstance(one, type) and "dcp_load" in vars(one)]
    classes[0].dcp_load(checkpointer, model.state_dict(), str(tmp_path), from_hf=True, from_quantized=False)
    assert torch.equal(model.weight, source.weight)
