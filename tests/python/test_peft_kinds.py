"""`rustload.peft.load_adapter` on every kind of adapter of PEFT that a tiny model can have, against PEFT's own loader."""

from typing import Any

import pytest
import torch

import rustload

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

TARGETS: dict[str, Any] = {"target_modules": ["q_proj", "v_proj"]}
PROMPTS: dict[str, Any] = {"num_virtual_tokens": 3}
OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CARTRIDGE"), PROMPTS),
    "MULTITASK_PROMPT_TUNING": {**PROMPTS, "num_tasks": 2},
    "ADAPTION_PROMPT": {"adapter_len": 3, "adapter_layers": 1},
    "CPT": {"cpt_token_ids": [1, 2], "cpt_mask": [1, 1], "cpt_tokens_type_mask": [1, 2]},
    "TRAINABLE_TOKENS": {"token_indices": [1, 2], "target_modules": ["embed_tokens"]},
    "LN_TUNING": {"target_modules": ["input_layernorm"]},
    "IA3": {**TARGETS, "feedforward_modules": []},
    "BOFT": {**TARGETS, "boft_block_size": 4},
    "OFT": {**TARGETS, "oft_block_size": 4},
    "ADALORA": {**TARGETS, "total_step": 10},
    "FOURIERFT": {**TARGETS, "n_frequency": 5},
    "WAVEFT": {**TARGETS, "n_frequency": 5},
    "VBLORA": {**TARGETS, "vector_length": 4, "num_vectors": 8, "topk": 2},
    "ROAD": {**TARGETS, "group_size": 8},
    "C3A": {**TARGETS, "block_size": 8},
    "RANDLORA": {**TARGETS, "r": 4},
    "SHIRA": {**TARGETS, "r": 2},
    "MISS": {**TARGETS, "r": 4},
}


def base() -> Any:
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=32,
        )
    )  # fmt: skip


def same_state(found: Any, expected: Any) -> None:
    ours, theirs = found.state_dict(), expected.state_dict()
    assert list(ours) == list(theirs)
    assert [name for name, tensor in theirs.items() if not torch.equal(ours[name], tensor)] == []


@pytest.mark.parametrize("is_safetensors", [True, False], ids=["safetensors", "bin"])
@pytest.mark.parametrize("kind", [kind.value for kind in peft.PeftType])
def test_an_adapter_of_each_kind_is_that_of_peft(kind, is_safetensors, tmp_path):
    from rustload.peft import load_adapter

    if kind == "XLORA":
        pytest.skip("its adapters are several LoRA adapters")
    try:
        config = peft.PEFT_TYPE_TO_CONFIG_MAPPING[kind](task_type="CAUSAL_LM", **OPTIONS.get(kind, TARGETS))
        model = peft.get_peft_model(base(), config)
    except ImportError as error:
        pytest.skip(str(error))
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path, safe_serialization=is_safetensors)
    expected = peft.PeftModel.from_pretrained(base(), tmp_path)
    found = load_adapter(base(), tmp_path)
    same_state(found, expected)
    if config.is_prompt_learning:
        with pytest.raises(ValueError, match="is_trainable"):
            load_adapter(base(), tmp_path, is_trainable=True)
        return
    for one in (expected, found):
        for parameter in one.parameters():  # shows what a load changes beside the new adapter
            torch.nn.init.zeros_(parameter)
    is_trainable = kind != "ADAPTION_PROMPT"  # PEFT fails
    expected.load_adapter(tmp_path, "second", is_trainable=is_trainable)
    load_adapter(found, tmp_path, adapter_name="second", is_trainable=is_trainable)
    for name in ("second", "default"):
        same_state(found, expected)
        trained = [[one.requires_grad for one in model.parameters()] for model in (found, expected)]
        assert trained[0] == trained[1]
        for one in (expected, found):
            one.set_adapter(name)
    same_state(found, expected)


@pytest.mark.parametrize("config", [peft.VeraConfig, peft.PveraConfig])
@pytest.mark.parametrize("saved", [True, False])
def test_projections_of_vera_are_loaded_as_by_peft(config, saved, tmp_path):
    from rustload.peft import load_adapter

    def net() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))

    made = config(
        target_modules=["0", "1"], r=4, save_projection=saved, modules_to_save=["1"] if saved else None
    )
    if saved:
        made.target_modules = {"0"}
    peft.get_peft_model(net(), made).save_pretrained(tmp_path)
    same_state(load_adapter(net(), tmp_path), peft.PeftModel.from_pretrained(net(), tmp_path))


def test_names_that_peft_reports_of_its_own_adapter_are_not_unexpected(monkeypatch, tmp_path):
    """As some versions of PEFT do for VeRA's projections, which are in the file and in the model."""
    from rustload.peft import load_adapter

    net = torch.nn.Sequential(torch.nn.Linear(8, 8))
    peft.get_peft_model(net, peft.LoraConfig(target_modules=["0"], r=2)).save_pretrained(tmp_path)
    stock = peft.set_peft_model_state_dict

    def reporting(model: Any, state: Any, **options: Any) -> Any:
        loaded = stock(model, state, **options)
        loaded.unexpected_keys.append("base_model.vera_A.default")
        return loaded

    monkeypatch.setattr(peft, "set_peft_model_state_dict", reporting)
    load_adapter(torch.nn.Sequential(torch.nn.Linear(8, 8)), tmp_path)


def test_the_error_says_what_was_loaded(tmp_path):
    from rustload.peft import load_adapter

    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))

    peft.get_peft_model(net(), peft.LoraConfig(target_modules=["0", "1"], r=2)).save_pretrained(tmp_path)
    fewer = peft.LoraConfig(target_modules=["0"], r=2)
    with pytest.raises(rustload.ModelMismatchError, match="2 unexpected; the adapter is in the model"):
        load_adapter(net(), tmp_path, config=fewer)
    model = load_adapter(net(), tmp_path)
    with pytest.raises(rustload.ModelMismatchError, match="2 unexpected; nothing was loaded"):
        load_adapter(model, tmp_path, adapter_name="second", config=fewer)
    with pytest.raises(rustload.ModelMismatchError, match="2 missing; nothing was loaded"):
        load_adapter(net(), tmp_path, rename={"base_model.model.0": "base_model.model.5"})
