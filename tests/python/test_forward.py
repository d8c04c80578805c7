"""A model that is built on the meta device and loaded by `load_into` computes what transformers' own loader gives."""

import pytest
import torch
from test_distributed import launch

import rustload.torch

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own warnings

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "pad_token_id": 0,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2, "max_position_embeddings": 32}
LONG = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
CAUSAL = {
    "llama": (transformers.LlamaConfig, GROUPED),
    "llama, longer": (
        transformers.LlamaConfig,
        GROUPED | {"rope_parameters": LONG | {"original_max_position_embeddings": 16}},
    ),
    "mistral": (transformers.MistralConfig, GROUPED),
    "qwen 2": (transformers.Qwen2Config, GROUPED),
    "qwen 3": (transformers.Qwen3Config, GROUPED | {"head_dim": 8}),
    "phi 3": (transformers.Phi3Config, GROUPED | {"bos_token_id": 1, "eos_token_id": 2}),
    "gemma 2": (transformers.Gemma2Config, GROUPED | {"head_dim": 8}),
    "gemma 3": (transformers.Gemma3TextConfig, GROUPED | {"head_dim": 8}),
    "gpt-oss": (
        transformers.GptOssConfig,
        GROUPED | {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "gpt 2": (
        transformers.GPT2Config,
        {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 64, "n_positions": 16},
    ),
    "gpt-j": (
        transformers.GPTJConfig,
        {"n_layer": 2, "n_head": 4, "n_embd": 32, "vocab_size": 64, "rotary_dim": 8},
    ),
    "falcon": (transformers.FalconConfig, SIZES),
    "mamba": (transformers.MambaConfig, SIZES),
}
MASKED = {
    "bert": (transformers.BertConfig, SIZES),
    "roberta": (transformers.RobertaConfig, SIZES),
    "modernbert": (transformers.ModernBertConfig, SIZES),
}
FAMILIES = {
    **{name: (transformers.AutoModelForCausalLM, *one) for name, one in CAUSAL.items()},
    **{name: (transformers.AutoModelForMaskedLM, *one) for name, one in MASKED.items()},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_built_on_meta_computes_what_the_stock_loader_gives(tmp_path, family, dtype):
    auto, config, sizes = FAMILIES[family]
    torch.manual_seed(0)
    source = auto.from_config(config(**sizes))
    for weight in source.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    source.save_pretrained(tmp_path)
    expected = auto.from_pretrained(tmp_path, dtype=dtype)

    before = torch.get_rng_state()
    with torch.device("meta"):
        model = auto.from_config(expected.config, dtype=dtype).eval()
    report = rustload.torch.load_into(model, tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    assert report.on_meta == []
    assert report.missing == []
    buffers = dict(expected.named_buffers())
    assert {name: one.dtype for name, one in model.named_buffers()} == {
        name: one.dtype for name, one in buffers.items()
    }
    for name, one in model.named_buffers():
        assert torch.equal(one, buffers[name]), name
    tokens = torch.arange(6)[None]
    with torch.no_grad():
        assert torch.equal(model(tokens).logits, expected(tokens).logits)


@pytest.mark.parametrize("inner", [False, True])
def test_a_weight_that_the_file_lacks_stays_missing_and_on_meta(tmp_path, inner):
    config = transformers.LlamaConfig(**GROUPED)
    state = transformers.LlamaForCausalLM(config).state_dict()
    torch.save({name: one for name, one in state.items() if name != "lm_head.weight"}, tmp_path / "model.bin")
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
        whole = torch.nn.Sequential(model) if inner else model
    lead = "0." if inner else ""
    report = rustload.torch.load_into(
        whole, tmp_path / "model.bin", strict=False, rename=lambda name: lead + name
    )
    assert report.missing == report.on_meta == [f"{lead}lm_head.weight"]
    assert torch.equal(model.model.norm.weight, state["model.norm.weight"])
    assert "to be made" not in str(report)


def test_a_model_whose_weights_transformers_renames_says_who_does(tmp_path):
    config = transformers.MixtralConfig(**GROUPED, num_local_experts=4)
    transformers.MixtralForCausalLM(config).save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.MixtralForCausalLM(config)
    with pytest.raises(rustload.ModelMismatchError) as caught:
        rustload.torch.load_into(model, tmp_path)
    assert any("rustload.transformers.from_pretrained" in note for note in caught.value.__notes__)


class Rotary(torch.nn.Module):
    """A module with a buffer that no file has, and a weight; `reset_parameters` makes both, as torch's convention says."""

    def __init__(self, fails=False, writes=True):
        super().__init__()
        self.fails, self.writes = fails, writes
        self.weight = torch.nn.Parameter(torch.empty(4))
        self.register_buffer("running", torch.zeros(4))
        self.register_buffer("angles", torch.empty(4), persistent=False)
        self.reset_parameters()

    def reset_parameters(self):
        self.weight.data.normal_()
        self.running.zero_()
        torch.rand(3)
        if self.writes:
            self.angles.copy_(torch.arange(4.0) / 4)
        if self.fails and not self.angles.is_meta:
            raise ZeroDivisionError("mine")


@pytest.fixture
def rotary(tmp_path):
    def load(**how):
        torch.save({"0.weight": torch.ones(4), "0.running": torch.full((4,), 2.0)}, tmp_path / "rotary.pt")
        with torch.device("meta"):
            model = torch.nn.Sequential(Rotary(**how))
        return model, rustload.torch.load_into(model, tmp_path / "rotary.pt")

    return load


def test_reset_parameters_makes_buffers_and_reaches_no_loaded_tensor(rotary):
    before = torch.get_rng_state()
    model, report = rotary()
    assert torch.equal(model[0].angles, torch.arange(4.0) / 4)
    assert torch.equal(model[0].weight, torch.ones(4))
    assert torch.equal(model[0].running, torch.full((4,), 2.0))
    assert torch.equal(before, torch.get_rng_state())
    assert report.on_meta == report.notes == []


@pytest.mark.parametrize("how", [{"fails": True}, {"writes": False}])
def test_a_buffer_that_the_model_does_not_make_is_named_with_the_recipe(rotary, how):
    model, report = rotary(**how)
    assert report.on_meta == ["0.angles"]
    assert torch.equal(model[0].weight, torch.ones(4))
    assert ("ZeroDivisionError('mine')" in " ".join(report.notes)) == ("fails" in how)
    line, advice = str(report).splitlines()
    assert "1 on meta" in line
    assert advice.startswith("to be made before the model runs: 0.angles (")
    assert "include_buffers=False" in advice
    model.get_submodule("0").register_buffer("angles", torch.ones(4), persistent=False)
    assert not any(one.is_meta for one in model.buffers())


def test_models_of_two_ranks_compute_what_the_whole_computes(tmp_path):
    for found in launch("forward_child.py", 2, tmp_path):
        assert set(found) == {f"{how} {kind}" for how in ("fsdp", "tp") for kind in ("bin", "safetensors")}
        for name, one in found.items():
            assert one["equal"], name
            assert one["on_meta"] == [], name
            assert one["held"] < 0.6, name
