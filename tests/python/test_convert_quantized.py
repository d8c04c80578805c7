"""`convert(copy_others=True, dequantize=True)`: what the other files say of the quantization is taken out of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_block_scales import scaled

import rustload

if TYPE_CHECKING:
    from pathlib import Path

QUANTIZATION = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}


def folder(path: Path, config: Any, **sidecars: Any) -> Path:
    """A folder with one fp8 weight."""
    path.mkdir()
    weight, scale = scaled((130, 140))
    save_file({"w": weight, "w_scale_inv": scale, "n": torch.ones(2)}, path / "model.safetensors")
    text = config if isinstance(config, str) else json.dumps(config)
    (path / "config.json").write_text(text)
    for name, content in sidecars.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_the_new_configuration_is_not_of_a_quantized_model(tmp_path: Path) -> None:
    config = {
        "model_type": "x",
        "torch_dtype": "float16",
        "quantization_config": QUANTIZATION,
        "compression_config": {},
        "expert_dtype": "fp4",
        "text_config": {"dtype": "float32", "quantization_config": QUANTIZATION, "hidden_size": 3},
        "vision_config": {"dtype": "auto"},
        "name": "\u00e9",
    }
    source = folder(tmp_path / "in", config, hf_quant_config={}, quantize_config={}, tokenizer={"a": 1})
    report = rustload.convert(source, tmp_path / "out", dtype="bfloat16", dequantize=True, copy_others=True)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {
        "model_type": "x",
        "torch_dtype": "bfloat16",
        "text_config": {"dtype": "bfloat16", "hidden_size": 3},
        "vision_config": {"dtype": "auto"},
        "name": "\u00e9",
    }
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert sorted(report.changed) == [
        "config.json without compression_config, expert_dtype, quantization_config and with bfloat16",
        "hf_quant_config.json left out",
        "quantize_config.json left out",
    ]
    assert all(change in str(report) for change in report.changed)
    assert report._asdict()["changed"] == report.changed
    # float32, the dtype without `dtype=`, is not what the configuration says.
    rustload.convert(source, tmp_path / "full", dequantize=True, copy_others=True)
    assert json.loads((tmp_path / "full" / "config.json").read_text())["torch_dtype"] == "float32"


def test_files_that_say_nothing_of_a_quantization_are_copied(tmp_path: Path) -> None:
    for number, text in enumerate(['{"a": 1,  "torch_dtype": "bfloat16"}', "[1]", "{broken", "[" * 100_000]):
        source = folder(tmp_path / f"in{number}", text)
        out = tmp_path / f"out{number}"
        report = rustload.convert(source, out, dtype="bfloat16", dequantize=True, copy_others=True)
        assert (out / "config.json").read_text() == text
        assert report.changed == ()
    # Weights that stay quantized keep their configuration.
    source = folder(tmp_path / "in", {"quantization_config": QUANTIZATION}, hf_quant_config={})
    report = rustload.convert(source, tmp_path / "same", dtype="bfloat16", copy_others=True)
    assert json.loads((tmp_path / "same" / "config.json").read_text()) == {
        "quantization_config": QUANTIZATION
    }
    assert (tmp_path / "same" / "hf_quant_config.json").exists()
    assert (report.changed, report.kept) == ((), ("w_scale_inv",))


def quantized(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The state dict with the matrices of layers in fp8, with scales by block."""
    found = {}
    for name, one in model.state_dict().items():
        if one.ndim != 2 or ".layers." not in name:
            found[name] = one.clone()
            continue
        rows, columns = one.shape
        padded = torch.zeros(-(-rows // 128) * 128, -(-columns // 128) * 128)
        padded[:rows, :columns] = one.float()
        grid = padded.reshape(-(-rows // 128), 128, -(-columns // 128), 128)
        scale = grid.abs().amax((1, 3)) / 448
        codes = (grid / scale[:, None, :, None]).reshape(padded.shape)[:rows, :columns]
        found[name] = codes.to(torch.float8_e4m3fn).contiguous()
        found[f"{name}_scale_inv"] = scale
    return found


def test_transformers_loads_the_new_folder_without_a_quantizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=144,
        intermediate_size=160,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    source = tmp_path / "fp8"
    model.save_pretrained(source)
    state = quantized(model)
    save_file(state, source / "model.safetensors", {"format": "pt"})
    saved = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(saved | {"quantization_config": QUANTIZATION}))
    for dtype in ("bfloat16", None):
        target = tmp_path / f"{dtype}"
        rustload.convert(source, target, dtype=dtype, dequantize=True, copy_others=True)
        loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
            target, dtype="auto", output_loading_info=True
        )
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        assert getattr(loaded, "hf_quantizer", None) is None
        assert loaded.dtype == getattr(torch, dtype or "float32")
        written = load_file(target / "model.safetensors")
        for name, one in loaded.state_dict().items():
            assert torch.equal(one, written[name].to(one.dtype)), name
            assert torch.allclose(one.float(), model.state_dict()[name].float(), atol=0.01), name


def test_a_scale_that_the_model_has_as_a_parameter_is_written(tmp_path: Path) -> None:
    source = folder(tmp_path / "in", {"quantization_config": QUANTIZATION})
    weight, scale = scaled((130, 140))
    ones = {name: torch.ones(()) for name in ("logit_scale", "attn.k_scale", "attn.v_scale")}
    save_file({"w": weight, "w_scale_inv": scale, **ones}, source / "model.safetensors")
    rustload.convert(source, tmp_path / "out", dtype="bfloat16", dequantize=True)
    written = rustload.open(tmp_path / "out")
    # Those of a cache belong to the quantization.
    assert {name: one.dtype for name, one in written.items()} == {"w": "bfloat16", "logit_scale": "bfloat16"}
