"""`rustload.transformers.from_pretrained`, compared with the stock one."""

import json
import logging
import shutil

import pytest
import torch
from support import assert_same_bits, write_shards

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # transformers' own warnings
    pytest.mark.usefixtures("no_torch_load"),
]

transformers = pytest.importorskip("transformers")
transformers.utils.logging.disable_progress_bar()

import rustload.transformers  # noqa: E402 - it needs transformers
from rustload.transformers import from_pretrained  # noqa: E402

KINDS = ("single", "sharded", "legacy", "safetensors")


def config(**options):
    return transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, **options,
    )  # fmt: skip


@pytest.fixture(scope="session")
def repositories(tmp_path_factory):
    """One model as a folder of each kind."""
    return write_folders(tmp_path_factory.mktemp("llama"), config())


@pytest.fixture(scope="session")
def tied(tmp_path_factory):
    return write_folders(tmp_path_factory.mktemp("tied"), config(tie_word_embeddings=True))


def write_folders(folder, settings):
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(settings)
    model.generation_config = transformers.GenerationConfig(
        max_new_tokens=7, do_sample=True, temperature=0.25
    )
    model.save_pretrained(folder / "safetensors")
    state = dict(model.state_dict())
    for kind in KINDS[:3]:
        (folder / kind).mkdir()
        for name in ("config.json", "generation_config.json"):
            shutil.copy(folder / "safetensors" / name, folder / kind)
    torch.save(state, folder / "single" / "pytorch_model.bin")
    torch.save(state, folder / "legacy" / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    names = list(state)
    parts = [{name: state[name] for name in part} for part in (names[:9], names[9:])]
    write_shards(folder / "sharded", parts, "bin")
    return folder


def assert_equal(found, expected):
    state, wanted = found.state_dict(), expected.state_dict()
    assert list(state) == list(wanted)
    for name, tensor in wanted.items():
        assert_same_bits(state[name], tensor)
    buffers = dict(expected.named_buffers())
    for name, buffer in found.named_buffers():
        assert_same_bits(buffer, buffers[name])
    assert not found.training


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, "float16", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_equals_the_stock_loaders(repositories, monkeypatch, kind, dtype):
    found = from_pretrained(transformers.LlamaForCausalLM, repositories / kind, dtype=dtype)
    monkeypatch.undo()
    expected = transformers.LlamaForCausalLM.from_pretrained(repositories / kind, dtype=dtype)
    assert_equal(found, expected)
    assert found.dtype == expected.dtype
    assert found.generation_config.to_dict() == expected.generation_config.to_dict()
    assert found.generation_config.max_new_tokens == 7
    assert found.config.name_or_path == found.name_or_path == str(repositories / kind)
    tokens = torch.arange(6)[None]
    assert torch.equal(found(tokens).logits, expected(tokens).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_tied_weights_stay_tied(tied, kind):
    model = from_pretrained(transformers.LlamaForCausalLM, tied / kind, dtype="bf16")
    assert model.lm_head.weight is model.model.embed_tokens.weight


def test_auto_without_a_dtype_in_the_config_is_the_files_dtype(repositories, tmp_path):
    folder = shutil.copytree(repositories / "single", tmp_path / "model")
    settings = json.loads((folder / "config.json").read_text())
    settings.pop("dtype", None)
    settings.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").unlink()
    model = from_pretrained(transformers.LlamaForCausalLM, folder)
    assert model.dtype == torch.float32
    assert model.generation_config.max_new_tokens != 7


def test_an_auto_class_finds_the_model_class(repositories):
    model = from_pretrained(transformers.AutoModelForCausalLM, repositories / "legacy", dtype="bf16")
    assert type(model) is transformers.LlamaForCausalLM
    base = from_pretrained(transformers.AutoModel, repositories / "single")
    assert type(base) is transformers.LlamaModel
    assert_same_bits(base.norm.weight.detach().bfloat16(), model.model.norm.weight.detach())


@pytest.mark.parametrize(
    "options",
    [{"num_labels": 5}, {"num_hidden_layers": 1, "pad_token_id": 0}, {"attn_implementation": "eager", "local_files_only": True}],
)  # fmt: skip
def test_keywords_change_the_config_as_in_transformers(repositories, options):
    cls, folder = transformers.AutoModelForSequenceClassification, repositories / "safetensors"
    torch.manual_seed(0)
    found = from_pretrained(cls, folder, **options)
    torch.manual_seed(0)
    expected = cls.from_pretrained(folder, **options)
    assert_equal(found, expected)
    assert found.config.to_dict() == expected.config.to_dict()
    assert found.config._attn_implementation == expected.config._attn_implementation


def test_a_class_for_a_part_of_the_config_gets_that_part(tmp_path):
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text, vision = {"vocab_size": 16, **sizes}, {"image_size": 8, "patch_size": 4, **sizes}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    transformers.CLIPModel(config).save_pretrained(tmp_path)
    for cls in (transformers.CLIPTextModel, transformers.CLIPVisionModel):
        assert_equal(from_pretrained(cls, tmp_path), cls.from_pretrained(tmp_path))


def test_the_part_of_a_config_keeps_how_the_whole_is_quantized():
    whole = transformers.Llama4Config(quantization_config={"quant_method": "fp8"})
    cls, part = rustload.transformers._model_class(transformers.AutoModelForCausalLM, whole)
    assert (cls, type(part)) == (transformers.Llama4ForCausalLM, transformers.Llama4TextConfig)
    assert part.quantization_config == whole.quantization_config


def test_a_device_map_is_passed_to_transformers(repositories):
    pytest.importorskip("accelerate")
    model = from_pretrained(
        transformers.LlamaForCausalLM, repositories / "single", dtype="bf16", device_map={"": "cpu"}
    )
    assert model.dtype == torch.bfloat16
    for where in ("disk", {"model": "cpu", "lm_head": "disk"}):
        with pytest.raises(ValueError, match="disk") as caught:
            from_pretrained(transformers.LlamaForCausalLM, repositories / "single", device_map=where)
        assert "weights_map=" in caught.value.__notes__[0]


def test_models_load_from_the_hugging_face_cache(repositories, tmp_path):
    """blobs hold the files, snapshots link to them, refs name commits."""
    repository = tmp_path / "hub" / "models--some--llama"
    snapshot = repository / "snapshots" / "0123abc"
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc\n")
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted((repositories / "sharded").iterdir())):
        shutil.copy(file, repository / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    cls = transformers.LlamaForCausalLM
    models = [
        from_pretrained(cls, repository),
        from_pretrained(cls, snapshot),
        from_pretrained(cls, "some/llama", cache_dir=tmp_path / "hub"),
        from_pretrained(cls, repository, revision="0123abc"),
    ]
    for model in models:
        assert_equal(model, models[0])
    with pytest.raises(FileNotFoundError) as caught:
        from_pretrained(cls, repository, revision="other")
    assert "there are 0123abc" in caught.value.__notes__[0]
    with pytest.raises(FileNotFoundError) as caught:
        from_pretrained(cls, "some/other", cache_dir=tmp_path / "hub")
    assert "hf download some/other" in caught.value.__notes__[0]
    with pytest.raises(FileNotFoundError):
        from_pretrained(cls, tmp_path / "nowhere")


def test_weights_may_be_a_file_or_its_name_in_the_folder(repositories, tmp_path):
    cls = transformers.LlamaForCausalLM
    expected = from_pretrained(cls, repositories / "single")
    assert_equal(from_pretrained(cls, repositories / "single" / "pytorch_model.bin"), expected)
    folder = shutil.copytree(repositories / "single", tmp_path / "repo" / "inner")
    (folder / "pytorch_model.bin").rename(folder / "pytorch_model.fp32.bin")
    torch.save({"x": torch.ones(1)}, folder / "pytorch_model.bin")
    assert_equal(
        from_pretrained(cls, tmp_path / "repo", subfolder="inner", weights="pytorch_model.fp32.bin"), expected
    )


def test_a_nested_checkpoint_of_a_trainer_is_loaded(repositories, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copy(repositories / "single" / "config.json", folder)
    state = rustload.open(repositories / "single").select("*")
    state = {f"module.{name}": lazy.torch() for name, lazy in state.items()}
    torch.save({"step": 3, "state_dict": state}, folder / "last.ckpt")
    model = from_pretrained(transformers.LlamaForCausalLM, folder, key="state_dict", strip="module")
    assert_equal(model, from_pretrained(transformers.LlamaForCausalLM, repositories / "single"))


def test_missing_weights_are_in_the_loading_info(repositories, tmp_path):
    source = rustload.open(
        repositories / "single"
    )  # not of the folder that is written to, as its tensors are views
    folder = shutil.copytree(repositories / "single", tmp_path / "model")
    state = {name: lazy.torch() for name, lazy in source.items() if name != "lm_head.weight"}
    torch.save(state, folder / "pytorch_model.bin")
    model, info = from_pretrained(transformers.LlamaForCausalLM, folder, output_loading_info=True)
    assert info["missing_keys"] == {"lm_head.weight"}
    assert model.name_or_path == str(folder)


@pytest.mark.parametrize("options", [
    {"trust_remote_code": True}, {"state_dict": {}}, {"variant": "fp16"}, {"use_safetensors": False},
])  # fmt: skip
def test_unsupported_options_are_refused(repositories, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        from_pretrained(transformers.LlamaForCausalLM, repositories / "single", **options)


def test_the_defaults_of_options_that_choose_files_are_accepted(repositories):
    for options in ({"variant": None, "use_safetensors": None}, {"use_safetensors": True}):
        from_pretrained(transformers.LlamaForCausalLM, repositories / "single", **options)


def test_progress_counts_bytes_of_the_file(repositories):
    calls = []
    model = from_pretrained(
        transformers.LlamaForCausalLM,
        repositories / "single",
        dtype="bfloat16",
        progress=lambda *call: calls.append(call),
    )
    total = sum(parameter.numel() * 4 for parameter in model.parameters())
    assert {call[1] for call in calls} == {total}
    assert [call[0] for call in calls] == sorted(call[0] for call in calls)
    assert calls[-1][0] == total
    assert {call[2] for call in calls} == set(model.state_dict())
    with pytest.raises(TypeError, match="progress="):
        from_pretrained(transformers.LlamaForCausalLM, repositories / "single", progress="yes")


def test_the_progress_bar_replaces_that_of_transformers(repositories, capfd):
    logging = transformers.utils.logging
    logging.enable_progress_bar()
    try:
        from_pretrained(
            transformers.LlamaForCausalLM, repositories / "sharded", dtype="bfloat16", progress=True
        )
        assert logging.is_progress_bar_enabled()
    finally:
        logging.disable_progress_bar()
    shown = capfd.readouterr().err
    assert "loading: " in shown
    assert "Loading weights" not in shown


def test_an_exception_of_the_progress_callable_propagates(repositories):
    def stop(*_):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        from_pretrained(transformers.LlamaForCausalLM, repositories / "single", progress=stop)


def test_the_load_report_names_the_path(repositories, tmp_path):
    folder = shutil.copytree(repositories / "single", tmp_path / "extra")
    state = transformers.LlamaForCausalLM(config()).state_dict()
    torch.save(state | {"stray.weight": torch.ones(2)}, folder / "pytorch_model.bin")
    logger = logging.getLogger("transformers.modeling_utils")
    records: list[logging.LogRecord] = []
    keep = logging.Handler()
    keep.emit = records.append
    logger.addHandler(keep)
    try:
        from_pretrained(transformers.LlamaForCausalLM, folder)
    finally:
        logger.removeHandler(keep)
    reports = [record.getMessage() for record in records if "LOAD REPORT" in record.getMessage()]
    assert len(reports) == 1
    assert "stray.weight" in reports[0]
    assert f"from: {folder}\n" in reports[0]
    assert not logger.filters


def test_quantized_weights_load_into_plain_layers(tmp_path):
    """fp8 with a scale for each block of 128 x 128, as DeepSeek stores it; transformers' own quantizer needs a GPU for it."""
    torch.manual_seed(0)
    settings = transformers.LlamaConfig(
        vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.LlamaForCausalLM(settings)
    state = {}
    for name, weight in model.state_dict().items():
        if "_proj" in name:
            state[name] = weight.to(torch.float8_e4m3fn)
            state[f"{name}_scale_inv"] = torch.rand(weight.shape[0] // 128, weight.shape[1] // 128) + 0.5
            scales = state[f"{name}_scale_inv"].repeat_interleave(128, 0).repeat_interleave(128, 1)
            weight.copy_(state[name].float() * scales)
        else:
            state[name] = weight
    rustload.save(state, tmp_path / "model.safetensors")
    settings.quantization_config = {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"}
    settings.save_pretrained(tmp_path)
    made = from_pretrained(transformers.AutoModelForCausalLM, tmp_path, dtype="bfloat16", dequantize=True)
    assert {type(layer) for name, layer in made.named_modules() if name.endswith("_proj")} == {
        torch.nn.Linear
    }
    assert not hasattr(made.config, "quantization_config")
    for name, weight in model.bfloat16().state_dict().items():
        assert_same_bits(made.state_dict()[name], weight)
