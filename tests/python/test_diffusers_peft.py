"""`rustload.diffusers.from_pretrained` and `rustload.peft.load_adapter` against the libraries' own loaders."""

import argparse
import pickle

import pytest
import torch
from ranged import Ranges
from support import Reduced, assert_same_bits

import rustload

pytestmark = pytest.mark.filterwarnings("ignore")  # of the libraries themselves


def assert_equal_models(found, expected):
    assert type(found) is type(expected)
    theirs, ours = expected.state_dict(), found.state_dict()
    assert list(ours) == list(theirs)
    for name, tensor in theirs.items():
        assert_same_bits(ours[name], tensor)
    assert not any(tensor.is_meta for tensor in (*found.parameters(), *found.buffers()))
    assert found.training == expected.training


@pytest.fixture(scope="module")
def diffusers():
    return pytest.importorskip("diffusers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, diffusers):
    """A pipeline in .bin files: a U-Net, a VAE, a text encoder of transformers, and a scheduler."""
    import transformers

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("pipeline")
    sizes = {"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1}
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, attention_head_dim=8, cross_attention_dim=16, **sizes,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2, **sizes
    )
    config = transformers.CLIPTextConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=12,
    )
    pipeline = diffusers.StableDiffusionPipeline(
        unet=unet, vae=vae, text_encoder=transformers.CLIPTextModel(config), tokenizer=None, scheduler=diffusers.DDIMScheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    pipeline.save_pretrained(folder, safe_serialization=False)
    # transformers 5 writes safetensors only.
    torch.save(pipeline.text_encoder.state_dict(), folder / "text_encoder" / "pytorch_model.bin")
    for file in (folder / "text_encoder").glob("*.safetensors"):
        file.unlink()
    assert not list(folder.rglob("*.safetensors"))
    return folder


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
@pytest.mark.parametrize("name", ["unet", "vae"])
def test_a_model_is_that_of_diffusers(folder, diffusers, name, dtype):
    from rustload.diffusers import from_pretrained

    cls = {"unet": diffusers.UNet2DConditionModel, "vae": diffusers.AutoencoderKL}[name]
    options = {} if dtype is None else {"torch_dtype": getattr(torch, dtype)}
    expected = cls.from_pretrained(folder / name, use_safetensors=False, local_files_only=True, **options)
    found = from_pretrained(cls, folder, subfolder=name, dtype=dtype)
    assert_equal_models(found, expected)
    assert found.config._name_or_path == str(expected.config._name_or_path)
    assert_equal_models(from_pretrained(cls, folder / name, dtype=dtype), expected)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_modules_stay_in_float32_and_names_are_ignored_as_in_diffusers(diffusers, dtype, tmp_path):
    from rustload.diffusers import from_pretrained

    cls = diffusers.WanTransformer3DModel
    made = cls(num_attention_heads=1, attention_head_dim=12, text_dim=8, freq_dim=8, ffn_dim=8, num_layers=1)
    made.save_pretrained(tmp_path)
    file = tmp_path / "diffusion_pytorch_model.safetensors"
    state = rustload.open(file, framework="torch").materialize(copy=True)
    rustload.save(state | {"blocks.0.attn2.norm_added_q.weight": torch.ones(12)}, file)
    options = {} if dtype is None else {"torch_dtype": torch.bfloat16}
    assert_equal_models(from_pretrained(cls, tmp_path, dtype=dtype), cls.from_pretrained(tmp_path, **options))
    rustload.save(state | {"other": torch.ones(1)}, file)
    with pytest.raises(rustload.ModelMismatchError, match="unexpected: other"):
        from_pretrained(cls, tmp_path, dtype=dtype)


@pytest.mark.parametrize("dtype", [None, torch.float64, torch.bfloat16])
def test_buffers_that_no_file_has_get_the_dtype_too(diffusers, dtype, tmp_path):
    from rustload.diffusers import from_pretrained

    cls = diffusers.PriorTransformer
    cls(
        num_attention_heads=1, attention_head_dim=8, num_layers=1, embedding_dim=8, num_embeddings=3
    ).save_pretrained(tmp_path)
    expected = cls.from_pretrained(tmp_path, torch_dtype=dtype).causal_attention_mask
    assert_same_bits(from_pretrained(cls, tmp_path, dtype=dtype).causal_attention_mask, expected)
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_a_pipeline_is_that_of_diffusers(folder, diffusers, dtype):
    from rustload.diffusers import from_pretrained

    options = {"tokenizer": None} if dtype is None else {"tokenizer": None, "torch_dtype": dtype}
    expected = diffusers.DiffusionPipeline.from_pretrained(
        folder, use_safetensors=False, local_files_only=True, **options
    )
    found = from_pretrained(diffusers.DiffusionPipeline, folder, dtype=dtype, tokenizer=None)
    assert type(found) is type(expected) is diffusers.StableDiffusionPipeline
    for name in ("unet", "vae", "text_encoder"):
        assert_equal_models(getattr(found, name), getattr(expected, name))
    assert found.scheduler.config == expected.scheduler.config
    given = from_pretrained(diffusers.StableDiffusionPipeline, folder, unet=found.unet, tokenizer=None)
    assert given.unet is found.unet


def test_a_pickle_that_would_execute_is_not_run(folder, diffusers, tmp_path):
    import shutil

    from rustload.diffusers import from_pretrained

    evil = Reduced((tmp_path / "ran").touch, ())
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    file = copy / "unet" / "diffusion_pytorch_model.bin"
    state = torch.load(file, weights_only=True)
    torch.save({**state, "evil": evil}, file)
    assert from_pretrained(diffusers.UNet2DConditionModel, copy / "unet") is not None
    assert not (tmp_path / "ran").exists()
    (copy / "unet" / "diffusion_pytorch_model.bin").write_bytes(pickle.dumps(evil))
    with pytest.raises(rustload.ModelMismatchError):
        from_pretrained(diffusers.DiffusionPipeline, copy, tokenizer=None)
    assert not (tmp_path / "ran").exists()


def sd3_in_original_names():
    """A tiny Stable Diffusion 3 as its authors name it: diffusers splits, joins and swaps parts of these tensors."""
    width, mlp, text, pooled = 16, 64, 12, 10
    shapes = {
        "x_embedder.proj": (width, 4, 2, 2),
        "context_embedder": (width, text),
        "t_embedder.mlp.0": (width, 256),
        "t_embedder.mlp.2": (width, width),
        "y_embedder.mlp.0": (width, pooled),
        "y_embedder.mlp.2": (width, width),
        "joint_blocks.0.x_block.attn.qkv": (3 * width, width),
        "joint_blocks.0.x_block.attn.proj": (width, width),
        "joint_blocks.0.x_block.mlp.fc1": (mlp, width),
        "joint_blocks.0.x_block.mlp.fc2": (width, mlp),
        "joint_blocks.0.x_block.adaLN_modulation.1": (6 * width, width),
        "joint_blocks.0.context_block.attn.qkv": (3 * width, width),
        "joint_blocks.0.context_block.adaLN_modulation.1": (2 * width, width),
        "final_layer.linear": (2 * 2 * 4, width),
        "final_layer.adaLN_modulation.1": (2 * width, width),
    }
    torch.manual_seed(0)
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}
    state["pos_embed"] = torch.randn(1, 64, width)
    state = {f"model.diffusion_model.{name}": tensor for name, tensor in state.items()}
    return state, {
        "sample_size": 8, "in_channels": 4, "out_channels": 4, "num_layers": 1, "attention_head_dim": 8,
        "num_attention_heads": 2, "joint_attention_dim": text, "caption_projection_dim": width,
        "pooled_projection_dim": pooled, "pos_embed_max_size": 8,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("low_memory", [True, False])
def test_from_single_file_takes_the_lazy_state_dict_of_a_file_that_diffusers_refuses(
    diffusers, tmp_path, dtype, low_memory
):
    import rustload.torch

    state, settings = sd3_in_original_names()
    cls = diffusers.SD3Transformer2DModel
    cls(**settings).save_config(tmp_path)
    file = tmp_path / "run.ckpt"
    torch.save({"state_dict": state, "args": argparse.Namespace(lr=1)}, file)
    options = {"config": str(tmp_path), "low_cpu_mem_usage": low_memory}
    options |= {} if dtype is None else {"torch_dtype": dtype}
    with pytest.raises(OSError, match="Unable to load weights"):
        cls.from_single_file(str(file), **options)
    expected = cls.from_single_file(dict(state), **options)
    source = Ranges(file.read_bytes())
    lazy = rustload.torch.state_dict(source, key="state_dict")
    of_metadata = source.nbytes
    found = cls.from_single_file(lazy, **options)
    assert_equal_models(found, expected)
    assert not any(isinstance(one, rustload.torch.TorchHandle) for one in found.state_dict().values())
    assert source.nbytes - of_metadata <= 1.1 * source.size


def test_wrong_arguments_are_refused(folder, diffusers, tmp_path):
    from rustload.diffusers import from_pretrained

    with pytest.raises(ValueError, match=r"key= is for one model, and DiffusionPipeline is a pipeline"):
        from_pretrained(diffusers.DiffusionPipeline, folder, key="x")
    with pytest.raises(ValueError, match=r"unet= is for pipelines, and AutoencoderKL is a model"):
        from_pretrained(diffusers.AutoencoderKL, folder / "vae", unet=None)
    with pytest.raises(OSError, match="config"):
        from_pretrained(diffusers.AutoencoderKL, tmp_path)
    with pytest.raises(rustload.ModelMismatchError):
        from_pretrained(diffusers.AutoencoderKL, folder / "vae", rename={"encoder": "x"})


def base():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


@pytest.fixture(params=[False, True], ids=["bin", "safetensors"])
def adapter(tmp_path, request):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(base(), peft.LoraConfig(r=2, target_modules=["0", "2"], modules_to_save=[]))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "adapter", safe_serialization=request.param)
    assert (tmp_path / "adapter" / f"adapter_model.{'safetensors' if request.param else 'bin'}").exists()
    return tmp_path / "adapter"


@pytest.mark.parametrize("is_trainable", [False, True])
def test_an_adapter_is_that_of_peft(adapter, is_trainable):
    import peft

    from rustload.peft import load_adapter

    expected = peft.PeftModel.from_pretrained(base(), str(adapter), is_trainable=is_trainable)
    found = load_adapter(base(), adapter, is_trainable=is_trainable)
    assert_equal_models(found, expected)
    wanted = {name: parameter.requires_grad for name, parameter in expected.named_parameters()}
    assert {name: parameter.requires_grad for name, parameter in found.named_parameters()} == wanted
    x = torch.randn(3, 8)
    assert torch.equal(found(x), expected(x))
    expected.load_adapter(str(adapter), "second")
    assert load_adapter(found, adapter, adapter_name="second") is found
    assert_same_bits(
        found.base_model.model[0].lora_A["second"].weight,
        expected.base_model.model[0].lora_A["second"].weight,
    )


def test_an_adapter_that_does_not_fit_is_an_error(adapter):
    import peft

    from rustload.peft import load_adapter

    with pytest.raises(rustload.ModelMismatchError, match="2 missing") as caught:
        load_adapter(base(), adapter, rename={"base_model.model.0": "base_model.model.5"})
    assert "base_model.model.0.lora_A.weight" in str(caught.value)
    config = peft.PeftConfig.from_pretrained(str(adapter))
    config.target_modules = {"0"}
    model = load_adapter(base(), adapter)
    with pytest.raises(rustload.ModelMismatchError, match="2 unexpected"):
        load_adapter(model, adapter, adapter_name="second", config=config)
    assert list(model.peft_config) == ["default"]
    with pytest.raises(ValueError, match="adapter_config"):
        load_adapter(base(), adapter.parent)


@pytest.mark.parametrize("path", ["org/adapter", "empty/folder"])
def test_a_folder_without_an_adapter_is_not_looked_for_on_the_hub(path, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    from rustload.peft import load_adapter

    asked = []
    monkeypatch.setattr("peft.config.hf_hub_download", lambda *given, **_options: asked.append(given))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"Can't find 'adapter_config\.json' at"):
        load_adapter(base(), path)
    assert asked == []
