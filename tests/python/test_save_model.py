"""`rustload.torch.save_model` and `ties="auto"`: what transformers, diffusers and safetensors read of it."""

import json
import warnings
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

import rustload
import rustload.torch

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}


def llama(*, tied: bool) -> transformers.PreTrainedModel:
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, tie_word_embeddings=tied))


def t5() -> transformers.PreTrainedModel:
    torch.manual_seed(2)
    sizes = {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))


def bert() -> transformers.PreTrainedModel:
    torch.manual_seed(3)
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, max_position_embeddings=32))


def assert_equal_models(one: torch.nn.Module, two: torch.nn.Module) -> None:
    state, other = one.state_dict(), two.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(state[name], other[name]) for name in state)


@pytest.mark.parametrize("make", [lambda: llama(tied=True), lambda: llama(tied=False), t5, bert])
@pytest.mark.parametrize("size", [None, "20KB"])
def test_from_pretrained_reads_a_saved_model(make, size, tmp_path):
    model = make()
    report = rustload.torch.save_model(model, tmp_path / "m", max_shard_size=size)
    with warnings.catch_warnings():
        warnings.simplefilter("error", rustload.RustloadWarning)
        found, info = type(model).from_pretrained(tmp_path / "m", output_loading_info=True)
    assert_equal_models(model, found)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert len(report.files) == (
        1 if size is None else len(list((tmp_path / "m").glob("*.safetensors"))) + 1
    ) + len([name for name in report.files if name in ("config.json", "generation_config.json")])
    # The names are those that transformers writes.
    model.save_pretrained(tmp_path / "reference")
    reference = set(rustload.open(tmp_path / "reference"))
    assert set(rustload.open(tmp_path / "m")) == reference
    assert set(report.dropped) == set(model.state_dict()) - reference
    for file in ("config.json", "generation_config.json"):
        if (tmp_path / "reference" / file).exists():
            assert (tmp_path / "m" / file).read_text() == (tmp_path / "reference" / file).read_text()


def test_diffusers_reads_a_saved_model(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(4)
    model = diffusers.AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=2)
    rustload.torch.save_model(model, tmp_path / "vae", dtype="float16")
    assert sorted(path.name for path in (tmp_path / "vae").iterdir()) == [
        "config.json",
        "diffusion_pytorch_model.safetensors",
    ]
    found = diffusers.AutoencoderKL.from_pretrained(tmp_path / "vae", torch_dtype=torch.float16)
    assert_equal_models(model.half(), found)


def test_safetensors_reads_a_saved_module(tmp_path):
    torch.manual_seed(5)

    def make() -> torch.nn.Module:
        module = torch.nn.ModuleDict(
            {"b": torch.nn.Linear(3, 3), "a": torch.nn.Linear(3, 3), "n": torch.nn.BatchNorm1d(3)}
        )
        module["a"].weight = module["b"].weight
        return module

    module, other = make(), make()
    report = rustload.torch.save_model(
        module, tmp_path / "m.safetensors", metadata={"format": "pt", "step": "1"}
    )
    assert report.dropped == {"a.weight": "b.weight"}
    assert safetensors.torch.load_model(other, tmp_path / "m.safetensors") == (set(), [])
    assert_equal_models(module, other)
    assert rustload.torch.load_into(make(), tmp_path / "m.safetensors", strict=False).unexpected == []
    with pytest.raises(TypeError, match="OrderedDict"):
        rustload.torch.save_model(module.state_dict(), tmp_path / "x.safetensors")  # type: ignore[arg-type]
    with pytest.raises(rustload.UnsupportedError):
        rustload.torch.save_model(torch.nn.Linear(2, 2, device="meta"), tmp_path / "x.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors"]


def test_derived_names_are_no_patterns(tmp_path):
    module = torch.nn.ModuleDict({"{a": torch.nn.Linear(3, 3), "[b]*": torch.nn.Linear(3, 3)})
    module["[b]*"].weight = module["{a"].weight
    module._tied_weights_keys = [r"^\{a\.weight"]  # type: ignore[assignment]
    report = rustload.torch.save_model(module, tmp_path / "m.safetensors")
    assert report.dropped == {"{a.weight": "[b]*.weight"}


def test_an_existing_folder_is_not_replaced(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        rustload.torch.save_model(llama(tied=True), tmp_path / "m")
    assert [path.name for path in (tmp_path / "m").iterdir()] == ["notes.txt"]
    rustload.torch.save_model(llama(tied=True), tmp_path / "m", overwrite=True)
    assert (tmp_path / "m" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("tied", [True, False])
def test_auto_leaves_out_the_head_that_the_configuration_ties(tied, tmp_path):
    model = llama(tied=tied)
    folder = tmp_path / "bin"
    folder.mkdir()
    state = dict(model.state_dict())
    state["model.embed_tokens.weight"] = state["lm_head.weight"]  # tied in the file in both cases
    state["other.weight"] = state["model.norm.weight"]
    torch.save(state, folder / "pytorch_model.bin")
    model.config.save_pretrained(folder)
    report = rustload.convert(folder, tmp_path / "out", copy_others=True)
    assert report.dropped == ({"lm_head.weight": "model.embed_tokens.weight"} if tied else {})
    found = rustload.open(tmp_path / "out")
    assert ("lm_head.weight" in found) is not tied
    assert "other.weight" in found
    assert rustload.diff(folder, tmp_path / "out", data=True).same
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "out")
    assert torch.equal(loaded.state_dict()["lm_head.weight"], state["lm_head.weight"])
    for ties, gone in (
        ("copy", set()),
        ("drop", {"model.embed_tokens.weight", "lm_head.weight", "other.weight", "model.norm.weight"}),
    ):
        report = rustload.convert(folder, tmp_path / ties, ties=ties)  # type: ignore[arg-type]
        assert set(report.dropped) <= gone
        assert len(report.dropped) == (2 if gone else 0)


def test_a_damaged_configuration_ties_nothing(tmp_path):
    embedding = torch.randn(4, 4)
    torch.save({"embed.weight": embedding, "lm_head.weight": embedding}, tmp_path / "pytorch_model.bin")
    for text in ("{", "[" * 100_000, "[1]", '{"tie_word_embeddings": "true"}', '{"text_config": 3}', "\xff"):
        (tmp_path / "config.json").write_text(text, "latin-1")
        assert (
            rustload.convert(
                tmp_path / "pytorch_model.bin", tmp_path / "o.safetensors", overwrite=True
            ).dropped
            == {}
        )
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"tie_word_embeddings": True}}))
    report = rustload.convert(tmp_path / "pytorch_model.bin", tmp_path / "o.safetensors", overwrite=True)
    assert report.dropped == {"lm_head.weight": "embed.weight"}


def test_keep_and_discard_choose_which_tied_names_are_written(tmp_path):
    one = torch.randn(3)
    tensors = {"b": one, "a": one, "c": one, "other": torch.ones(1)}
    path = tmp_path / "m.safetensors"
    for options, kept in (
        ({}, "b"),
        ({"keep": "a"}, "a"),
        ({"discard": "b"}, "a"),
        ({"discard": ["a", "b"]}, "c"),
        ({"discard": ["[abc]"]}, "b"),
        ({"keep": ["c"], "discard": ["c"]}, "c"),
    ):
        report = rustload.save(tensors, path, ties="drop", **options)  # type: ignore[arg-type]
        assert report.dropped == dict.fromkeys({"a", "b", "c"} - {kept}, kept)
        assert rustload.save(tensors, path, **options).dropped == (report.dropped if options else {})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="ties= is 'copy', and only 'drop' goes with names to keep"):
        rustload.save(tensors, path, ties="copy", keep=["a"])
    with pytest.raises(ValueError, match="ties="):
        rustload.save(tensors, path, ties="all")  # type: ignore[arg-type]
