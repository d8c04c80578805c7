"""Folders of transformers after `convert`: it loads them in the dtype that was written, and without a quantizer."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import rustload

transformers = pytest.importorskip("transformers")

QUANTIZATION = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}

SMALL: dict[str, Any] = {"vocab_size": 32, "hidden_size": 144, "intermediate_size": 160}
LAYERS: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2}
DECODER = SMALL | LAYERS | {"num_key_value_heads": 1}

FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": DECODER | {"tie_word_embeddings": False},
    "Qwen2": DECODER | {"tie_word_embeddings": True},
    "Mixtral": DECODER | {"num_local_experts": 2, "num_experts_per_tok": 1},
    "Bert": SMALL | LAYERS | {"max_position_embeddings": 16},
    "GPT2": {"vocab_size": 32, "n_embd": 144, "n_layer": 1, "n_head": 2, "n_positions": 16},
    "T5": {"vocab_size": 32, "d_model": 144, "d_ff": 160, "d_kv": 72, "num_layers": 1, "num_heads": 2},
    "CLIP": {
        "text_config": SMALL | LAYERS,
        "vision_config": {**SMALL, **LAYERS, "image_size": 4, "patch_size": 2},
        "projection_dim": 8,
    },
}


def codes(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix in fp8, and its scales by block."""
    rows, columns = weight.shape
    padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 128) * 128)
    padded[:rows, :columns] = weight
    grid = padded.reshape(-(-rows // 128), 128, -(-columns // 128), 128)
    scale = grid.abs().amax((1, 3)) / 448
    found = (grid / scale[:, None, :, None]).reshape(padded.shape)[:rows, :columns]
    return found.to(torch.float8_e4m3fn).contiguous(), scale


def saved(family: str, folder: Path) -> torch.nn.Module:
    """A small model of a family with weights in float32, saved in a folder."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    model: Any = getattr(transformers, f"{family}Model")(config)
    model.save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "float32"
    return model


def loaded(family: str, folder: Path) -> torch.nn.Module:
    """The model as transformers loads it, without an argument."""
    model, info = getattr(transformers, f"{family}Model").from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert getattr(model, "hf_quantizer", None) is None
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_loads_in_the_dtype_that_was_written(family, tmp_path):
    model = saved(family, tmp_path / "in")
    rustload.convert(tmp_path / "in", tmp_path / "out", dtype="bfloat16", copy_others=True)
    found = loaded(family, tmp_path / "out")
    assert {one.dtype for one in found.parameters()} == {torch.bfloat16}
    expected = model.to(torch.bfloat16).state_dict()
    assert found.state_dict().keys() == expected.keys()
    for name, one in found.state_dict().items():
        assert torch.equal(one, expected[name]), name


@pytest.mark.parametrize("family", FAMILIES)
def test_a_dequantized_folder_loads_without_a_quantizer(family, tmp_path):
    source = tmp_path / "in"
    saved(family, source)
    stored = load_file(source / "model.safetensors")
    weights = dict(stored)
    for name, one in weights.items():
        if one.ndim == 2 and "emb" not in name:
            stored[name], stored[f"{name}_scale_inv"] = codes(one)
    assert len(stored) > len(weights)
    save_file(stored, source / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": QUANTIZATION}))
    for dtype in ("bfloat16", None):
        target = tmp_path / f"{dtype}"
        rustload.convert(source, target, dtype=dtype, dequantize=True, copy_others=True)
        written = load_file(target / "model.safetensors")
        assert written.keys() == weights.keys()
        for name, one in weights.items():
            assert torch.allclose(written[name].float(), one.float(), atol=0.01, rtol=0.1), name
        found = loaded(family, target)
        assert {one.dtype for one in found.parameters()} == {getattr(torch, dtype or "float32")}
        state = found.state_dict()
        for name in written.keys() & state.keys():
            assert torch.equal(state[name], written[name]), name
