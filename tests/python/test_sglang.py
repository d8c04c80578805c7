"""rustload's loader in SGLang if it is installed, and otherwise in a stand-in with SGLang's signatures."""

import importlib.metadata
import os
import types

import pytest
import safetensors.torch
import torch
from support import Reduced, assert_same_bits, child, host, write_entry_points

import rustload

pytestmark = pytest.mark.filterwarnings("ignore")  # of SGLang


@pytest.fixture(scope="module")
def sglang():
    with host("sglang") as is_real:
        yield is_real


@pytest.fixture
def config(sglang):  # noqa: ARG001 - made importable first
    from sglang.srt.configs.load_config import LoadConfig

    return LoadConfig


@pytest.fixture
def hook(config, monkeypatch, tmp_path):  # noqa: ARG001 - made importable first
    """`hook(value)`: SGLang's `get_model_loader` after its plug-ins were loaded, with `RUSTLOAD_SGLANG` set to the value."""
    import sglang.srt.model_loader.loader as loader
    from sglang.srt.plugins.hook_registry import HookRegistry

    import rustload._plugins.sglang as plugin

    (tmp_path / "installed").mkdir()
    write_entry_points(tmp_path / "installed")

    def load(value):
        monkeypatch.syspath_prepend(tmp_path / "installed")
        monkeypatch.setattr(plugin, "_is_registered", False)
        monkeypatch.setenv("RUSTLOAD_SGLANG", value)
        points = importlib.metadata.entry_points(group="sglang.srt.plugins", name="rustload")
        for point in list(points) * 2:  # twice is as once
            point.load()()
        HookRegistry.apply_hooks()
        return loader.get_model_loader

    monkeypatch.setattr(loader, "get_model_loader", loader.get_model_loader)
    monkeypatch.setattr(HookRegistry, "_hooks", type(HookRegistry._hooks)(list))
    monkeypatch.setattr(HookRegistry, "_patched", set())
    return load


def all_weights(loader, folder, **attributes):
    model = torch.nn.Module()
    for name, value in attributes.items():
        object.__setattr__(model, name, value)
    hf_config = types.SimpleNamespace(architectures=["LlamaForCausalLM"])
    config = types.SimpleNamespace(model_path=str(folder), revision=None, hf_config=hf_config)
    return loader._get_all_weights(config, model)


TENSORS = {"model.w": torch.randn(6, 4), "model.norm": torch.randn(4).bfloat16(), "n": torch.tensor(3)}


@pytest.fixture(params=["zip", "legacy", "shards", "safetensors"])
def folder(tmp_path, request):
    folder = tmp_path / "model"
    folder.mkdir()
    if request.param == "safetensors":
        safetensors.torch.save_file(TENSORS, folder / "model.safetensors")
    elif request.param == "shards":
        for name, tensor in TENSORS.items():
            torch.save({name: tensor}, folder / f"pytorch_{name}.bin")
    else:
        is_zip = request.param == "zip"
        torch.save(TENSORS, folder / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    return folder


@pytest.fixture(autouse=True)
def _server_arguments(sglang, monkeypatch):
    """SGLang asks its server's arguments while it looks for files; here there is no server."""
    if sglang:
        import sglang.srt.model_loader.loader as loader

        monkeypatch.setattr(loader, "get_server_args", lambda: None)


def assert_same_weights(loader, folder):
    found = dict(all_weights(loader, folder))
    assert sorted(found) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert_same_bits(found[name], tensor)


@pytest.mark.parametrize("options", [{}, {"memory": "1MiB", "threads": 1}, {"mmap": True}])
def test_the_class_is_a_load_format_and_its_weights_are_those_of_torch_load(config, folder, options):
    from sglang.srt.model_loader.loader import get_model_loader

    from rustload.sglang import RustloadModelLoader

    extra = {"rustload": options} if options else {}
    made = get_model_loader(config(load_format=RustloadModelLoader, model_loader_extra_config=extra))
    assert type(made) is RustloadModelLoader
    made.download_model(types.SimpleNamespace(model_path=str(folder), revision=None))
    assert_same_weights(made, folder)


def test_the_hook_chooses_the_loader_where_sglang_would_choose_its_default(config, hook, folder):
    from sglang.srt.model_loader import loader

    from rustload.sglang import RustloadModelLoader

    get = hook("1")
    made = get(config(model_loader_extra_config={"rustload": {"memory": "1MiB"}}))
    assert type(made) is RustloadModelLoader
    assert made._options.memory == "1MiB"
    assert_same_weights(made, folder)
    assert type(get(load_config=config(), model_config=None)) is RustloadModelLoader
    assert type(get(config(load_format="dummy"))) is loader.DummyModelLoader
    assert type(get(config(load_format="safetensors"))) is loader.DefaultModelLoader
    with pytest.raises(
        ValueError, match=r"model_loader_extra_config\['rustload'\] has an unknown key 'memroy'"
    ):
        get(config(model_loader_extra_config={"rustload": {"memroy": 1}}))


@pytest.mark.parametrize("value", ["", "0"])
def test_without_the_environment_variable_nothing_is_registered(config, hook, value):
    from sglang.srt.model_loader import loader
    from sglang.srt.plugins.hook_registry import HookRegistry

    assert type(hook(value)(config())) is loader.DefaultModelLoader
    assert not HookRegistry._hooks
    with pytest.raises(ValueError, match="rustload"):
        loader.get_model_loader(config(model_loader_extra_config={"rustload": {}}))


def test_the_entry_point_imports_nothing_where_it_is_not_asked_for():
    code = """
    import sys
    from rustload._plugins.sglang import register
    register()
    print(*(name for name in ("sglang", "torch", "rustload.sglang", "logging") if name in sys.modules))
    """
    assert child(code).stdout == "\n"


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"rustload": {"memroy": "1GiB"}}, "unknown key 'memroy'"),
        ({"rustload": ["memory"]}, r"model_loader_extra_config\['rustload'\] is a dict, not list"),
        ({"num_threads": 4}, "model_loader_extra_config has unknown keys: 'num_threads'"),
    ],
)
def test_wrong_options_are_refused(config, extra, message):
    from rustload.sglang import RustloadModelLoader

    with pytest.raises(ValueError, match=message):
        RustloadModelLoader(config(load_format=RustloadModelLoader, model_loader_extra_config=extra))


def test_resolved_files_secondary_weights_and_draft_layers(config, tmp_path):
    from rustload.sglang import RustloadModelLoader

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        torch.save({"w": torch.full((2,), len(name))}, tmp_path / name / "pytorch_model.bin")
    made = RustloadModelLoader(config(load_format=RustloadModelLoader))
    source = made.Source(str(tmp_path / "second"), None, prefix="draft.")
    found = dict(all_weights(made, tmp_path / "first", secondary_weights=[source]))
    assert {name: int(tensor[0]) for name, tensor in found.items()} == {"w": 5, "draft.w": 6}
    resolved = made.ResolvedSource(source, "", (str(tmp_path / "first" / "pytorch_model.bin"),), False)
    iterator = made._get_weights_iterator(source, resolved_source=resolved, startup_prefetch_started=True)
    assert [(name, int(tensor[0])) for name, tensor in iterator] == [("draft.w", 5)]

    layers = {f"model.mtp.layers.{number}.w": torch.tensor(number) for number in range(3)}
    torch.save(layers, tmp_path / "second" / "pytorch_model.bin")
    made = RustloadModelLoader(config(load_format=RustloadModelLoader, draft_model_idx=2))
    iterator = made._get_weights_iterator(source)
    assert [(name, int(tensor)) for name, tensor in iterator] == [("draft.model.mtp.layers.0.w", 2)]


def test_a_pickle_is_not_run(config, tmp_path):
    from rustload.sglang import RustloadModelLoader

    evil = Reduced(os.mkdir, (str(tmp_path / "ran"),))
    torch.save({"w": torch.ones(2), "evil": evil}, tmp_path / "pytorch_model.bin")
    made = RustloadModelLoader(config(load_format=RustloadModelLoader))
    assert [name for name, _ in all_weights(made, tmp_path)] == ["w"]
    assert not (tmp_path / "ran").exists()
    (tmp_path / "pytorch_model.bin").write_bytes(b"not a checkpoint")
    with pytest.raises(rustload.FormatError):
        next(all_weights(made, tmp_path))
