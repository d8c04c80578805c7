"""Quantized model folders, converted: transformers loads them without a quantizer, as the weights that the codes mean."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from quantized_case import Case
from quantized_codes import four_bits, gptq
from quantized_floats import fp8, gpt_oss, nvfp4
from quantized_ints import pack_quantized
from safetensors.torch import load_file, save_file

import rustload

transformers = pytest.importorskip("transformers")

SCHEMES: dict[str, Callable[[tuple[int, int]], Case]] = {
    "fp8": lambda shape: fp8("", shape, (-(-shape[0] // 128), -(-shape[1] // 128)), block=(128, 128)),
    "int4": lambda shape: pack_quantized("", shape, 4, 32),
    "nvfp4": lambda shape: nvfp4("", shape, 3584.0, (1,), divides=True),
    "gptq": lambda shape: gptq("", shape, 4, 32),
    "nf4": lambda shape: four_bits("", shape),
}


def settings(**more: object) -> dict[str, object]:
    return {
        "vocab_size": 32,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": False,
        "max_position_embeddings": 64,
        **more,
    }


def packed(
    state: dict[str, torch.Tensor], make: Callable[[tuple[int, int]], Case]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], Case]:
    """The state with codes in place of the matrices of its layers, the state that they mean, and the last case."""
    stored, meant, case = {}, {}, None
    for name, one in state.items():
        if one.ndim != 2 or ".layers." not in name:
            stored[name] = meant[name] = one.clone()
            continue
        case = make((one.shape[0], one.shape[1]))
        (own,) = case.weights
        meant[name] = case.weights[own]
        prefix = own.rpartition(".")[0]
        module = name.rpartition(".")[0]
        for key in (*case.codes.values(), *case.companions[own]):
            stored[module + key.removeprefix(prefix)] = case.tensors[key]
    assert case is not None
    return stored, meant, case


def check(source: Path, target: Path, meant: dict[str, torch.Tensor]) -> None:
    rustload.convert(source, target, dtype="bfloat16", dequantize=True, copy_others=True)
    assert "quantization_config" not in json.loads((target / "config.json").read_text())
    written = load_file(target / "model.safetensors")
    assert written.keys() == meant.keys()
    for name, one in meant.items():
        assert torch.equal(written[name].nan_to_num(), one.to(torch.bfloat16).nan_to_num()), name
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        target, dtype="auto", output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert getattr(loaded, "hf_quantizer", None) is None
    for name, one in loaded.state_dict().items():
        assert torch.equal(one.nan_to_num(), meant[name].to(torch.bfloat16).nan_to_num()), name


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_converted_llama_is_the_model_of_its_codes(scheme, tmp_path):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings())).to(torch.bfloat16).eval()
    source = tmp_path / "in"
    model.save_pretrained(source)
    stored, meant, case = packed(model.state_dict(), SCHEMES[scheme])
    save_file({name: one.contiguous() for name, one in stored.items()}, source / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | case.config))
    check(source, tmp_path / "out", meant)


def test_a_converted_gpt_oss_is_the_model_of_its_blocks(tmp_path):
    torch.manual_seed(0)
    shape = settings(num_local_experts=4, num_experts_per_tok=2, head_dim=32, intermediate_size=64)
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**shape)).to(torch.bfloat16).eval()
    source = tmp_path / "in"
    model.save_pretrained(source)
    stored = {name: one.clone() for name, one in model.state_dict().items()}
    meant = dict(stored)
    config: dict[str, object] = {}
    for name in list(stored):
        projection = name.rpartition(".")[2]
        if projection not in ("gate_up_proj", "down_proj"):
            continue
        experts, columns, rows = stored.pop(name).shape
        case = gpt_oss("", (experts, rows, columns), projection)
        (own,) = case.weights
        meant[name] = case.weights[own]
        assert meant[name].shape == (experts, columns, rows)
        for key in (case.codes[own], *case.companions[own]):
            stored[name + key.removeprefix(own)] = case.tensors[key]
        config = case.config
    save_file({name: one.contiguous() for name, one in stored.items()}, source / "model.safetensors")
    saved = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(saved | config))
    check(source, tmp_path / "out", meant)
