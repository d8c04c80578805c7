"""The recipes of docs/guides/libraries.md for libraries that a test machine lacks: with the library, else with a stand-in.

The code is that of the page. torchtune and mergekit have no stand-in, as their recipe is `rustload convert`.
"""

import argparse
import importlib
from pathlib import Path

import pytest
import torch
from support import host
from test_pages import ROOT, fences

import rustload
import rustload.torch

pytestmark = pytest.mark.filterwarnings("ignore")  # of other libraries


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(library):
    """Runs the block of the page that needs the library, and returns its names."""
    page = ROOT / "docs" / "guides" / "libraries.md"
    (block,) = [
        one["code"] for one in fences(page) if one["note"].strip() == f"compile-only: needs {library}"
    ]
    names = {"__name__": "__page__", "rustload": rustload}
    exec(compile(block, str(page), "exec"), names)
    return names


def save(value, path):
    torch.save(value, path, _use_new_zipfile_serialization=False)


def trained(state, key):
    """A training script's checkpoint: torch and timm refuse its path with `weights_only=True`."""
    return {key: state, "args": argparse.Namespace(output=Path("run"))}


def test_timm_loads_a_training_checkpoint():
    with host("timm"):
        timm = importlib.import_module("timm")
        source = timm.create_model("resnet18").eval()
        save(trained(source.state_dict(), "state_dict"), "model_best.pth.tar")
        model = run("timm")["model"].eval()
        image = torch.rand(1, 3, 64, 64)
        assert torch.equal(model(image), source(image))


def test_spandrel_finds_the_architecture_of_a_lazy_state_dict():
    with host("spandrel") as is_real:
        source = upscaler() if is_real else torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
        save(trained(source.state_dict(), "params_ema"), "upscaler.bin")
        model = run("spandrel")["model"].model.eval()
        image = torch.rand(1, 3, 16, 16)
        assert torch.equal(model(image), source.eval()(image))


def upscaler():
    arch = importlib.import_module("spandrel.architectures.ESRGAN.__arch.RRDB")
    return arch.RRDBNet(num_blocks=1)


@pytest.mark.parametrize("key", [None, "state_dict"])
def test_a_node_of_comfyui_loads_a_checkpoint(key):
    state = {
        f"{name}.weight": torch.rand(4, 4)
        for name in ("model.diffusion_model.out", "first_stage_model.conv", "cond_stage_model.embed")
    }
    save(trained(state, key) if key else state, "model.ckpt")
    with host("comfy") as is_real:
        if is_real:
            pytest.skip("ComfyUI itself needs a whole model")
        found = run("ComfyUI")
        (model, parameters), clip, vae = found["model"], found["clip"], found["vae"]
        assert parameters == 48
        assert {**model, **clip, **vae}.keys() == state.keys()
        assert all(torch.equal({**model, **clip, **vae}[name], state[name]) for name in state)


@pytest.mark.parametrize("shards", [1, 2])
def test_the_weight_loader_of_tensorrt_llm_gives_tensors_by_name(shards):
    state = {f"model.layers.{number}.weight": torch.rand(4, 8) for number in range(4)}
    Path("model").mkdir()
    for number in range(shards):
        name = f"pytorch_model-{number + 1:05}-of-{shards:05}.bin" if shards > 1 else "pytorch_model.bin"
        torch.save(dict(list(state.items())[number::shards]), Path("model") / name)
    with host("tensorrt_llm"):
        found = run("TensorRT-LLM")["loader"].load_weights("model", mapping=None)
        assert type(found) is dict
        assert found.keys() == state.keys()
        for name, tensor in found.items():
            assert type(tensor) is torch.Tensor
            assert torch.equal(tensor, state[name])


@pytest.fixture
def converted():
    """A folder with a legacy `.bin`, and what `rustload convert --copy-others` makes of it."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    model.config.save_pretrained("llama")
    save(model.state_dict(), "llama/pytorch_model.bin")
    rustload.convert("llama", "llama-st", copy_others=True)
    return model


def test_torchtune_reads_what_was_converted(converted):
    pytest.importorskip("torchtune", reason="torchtune is not installed", exc_type=ImportError)
    from torchtune.models import convert_weights
    from torchtune.training import FullModelHFCheckpointer

    with pytest.raises(ValueError, match="Unable to load checkpoint"):
        FullModelHFCheckpointer("llama", ["pytorch_model.bin"], "LLAMA3", "out").load_checkpoint()
    checkpointer = FullModelHFCheckpointer("llama-st", ["model.safetensors"], "LLAMA3", "out")
    found = checkpointer.load_checkpoint()["model"]
    expected = convert_weights.hf_to_tune(converted.state_dict(), num_heads=2, num_kv_heads=2, dim=16)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_mergekit_reads_what_was_converted(converted):
    pytest.importorskip("mergekit", reason="mergekit is not installed")
    from mergekit.io.lazy_tensor_loader import LazyTensorLoader, ShardedTensorIndex

    loader = LazyTensorLoader(ShardedTensorIndex.from_disk("llama-st"))
    state = converted.state_dict()
    assert set(loader.index.tensor_paths) == set(state)
    assert all(torch.equal(loader.get_tensor(name), state[name]) for name in state)
