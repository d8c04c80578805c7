"""`--load-format rustload`: the loader in vLLM if it is installed, and otherwise in a stand-in with vLLM's signatures."""

import importlib.metadata
import logging
import os
import sys
import types

import pytest
import safetensors.torch
import torch
from support import Reduced, assert_same_bits, child, host, open_files, write_entry_points

import rustload
import rustload.torch._weights as weights_module

pytestmark = pytest.mark.filterwarnings("ignore")  # of vLLM


@pytest.fixture(scope="module")
def vllm():
    with host("vllm") as is_real:
        yield is_real


@pytest.fixture
def plugin(vllm, monkeypatch):  # noqa: ARG001 - made importable first
    import rustload._plugins.vllm as plugin

    monkeypatch.setattr(plugin, "_is_registered", False)
    monkeypatch.setattr(sys, "argv", ["program.py"])
    return plugin


@pytest.fixture
def loader(plugin):
    """`loader(**extra)`: what vLLM makes for `--load-format rustload`."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    plugin.register()
    return lambda **extra: get_model_loader(
        LoadConfig(load_format="rustload", model_loader_extra_config=extra, use_tqdm_on_load=False)
    )


def all_weights(loader, folder, **attributes):
    model = torch.nn.Module()
    for name, value in attributes.items():
        object.__setattr__(model, name, value)
    config = types.SimpleNamespace(model=str(folder), revision=None)
    return loader.get_all_weights(config, model)


TENSORS = {
    "model.embed.weight": torch.randn(40, 16),
    "model.layers.0.mlp.experts.0.up.weight": torch.randn(8, 16).bfloat16(),
    "model.layers.0.mlp.experts.1.up.weight": torch.randn(8, 16).bfloat16(),
    "model.layers.0.mlp.experts.1.up.weight_scale": torch.randn(8),
    "model.norm.weight": torch.randn(16).half(),
    "model.count": torch.tensor(3),
}


@pytest.fixture(params=["zip", "legacy", "shards", "safetensors", "pt"])
def folder(tmp_path, request):
    form = request.param
    if form == "safetensors":
        safetensors.torch.save_file(TENSORS, tmp_path / "model.safetensors")
        torch.save({"other": torch.ones(1)}, tmp_path / "pytorch_model.bin")  # not used beside safetensors
    elif form == "shards":
        for number, (name, tensor) in enumerate(TENSORS.items()):
            torch.save({name: tensor}, tmp_path / f"pytorch_model-{number:05}-of-00006.bin")
    else:
        name = "model.pt" if form == "pt" else "pytorch_model.bin"
        torch.save(TENSORS, tmp_path / name, _use_new_zipfile_serialization=form != "legacy")
        torch.save({"lr": 1.0}, tmp_path / "training_args.bin")
    if form == "pt":
        (tmp_path / "training_args.bin").unlink()
    return tmp_path


@pytest.mark.parametrize("extra", [{}, {"memory": "1MiB", "threads": 1}, {"mmap": True}, {"mmap": False}])
def test_the_weights_are_those_of_torch_load(loader, folder, extra):
    made = loader(**extra)
    made.download_model(types.SimpleNamespace(model=str(folder), revision=None))
    found = dict(all_weights(made, folder))
    assert sorted(found) == sorted(TENSORS)
    for name, tensor in TENSORS.items():
        assert_same_bits(found[name], tensor)
    assert made.counter_before_loading_weights > 0


def test_the_weights_are_those_of_vllms_own_iterators(vllm, loader, folder):
    if not vllm:
        pytest.skip("vLLM is not installed")
    from vllm.model_executor.model_loader import weight_utils

    files = sorted(str(file) for file in folder.glob("*.safetensors"))
    if files:
        expected = list(weight_utils.safetensors_weights_iterator(files, use_tqdm_on_load=False))
    else:
        files = sorted(str(file) for file in folder.glob("*model*"))
        expected = list(weight_utils.pt_weights_iterator(files, use_tqdm_on_load=False))
    found = list(all_weights(loader(), folder))
    assert len(found) == len(expected)
    for (name, tensor), (other, wanted) in zip(sorted(found), sorted(expected), strict=True):
        assert name == other
        assert_same_bits(tensor, wanted)


def test_names_are_selected_and_renamed(loader, tmp_path):
    torch.save({"ema": {"module.w": torch.ones(2)}, "step": 1}, tmp_path / "model.bin")
    made = loader(key="ema", strip="module.", rename={"w": "weight"})
    (pair,) = all_weights(made, tmp_path)
    assert pair[0] == "weight"
    assert_same_bits(pair[1], torch.ones(2))


def test_weights_that_a_rank_does_not_use_are_not_read(loader, tmp_path, monkeypatch):
    torch.save(TENSORS, tmp_path / "pytorch_model.bin")
    streamed = []
    stream = rustload.Checkpoint.stream
    monkeypatch.setattr(
        rustload.Checkpoint,
        "stream",
        lambda self, names, **options: streamed.extend(names) or stream(self, names, **options),
    )
    made = loader()
    made.local_expert_ids = {0}
    found = dict(all_weights(made, tmp_path, is_unused_checkpoint_weight=lambda name: "norm" in name))
    unread = {"model.layers.0.mlp.experts.1.up.weight", "model.norm.weight"}
    assert set(found) == set(TENSORS) - unread == set(streamed)


def test_secondary_weights_have_their_prefix(loader, tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        torch.save({"w": torch.full((2,), len(name))}, tmp_path / name / "pytorch_model.bin")
    made = loader()
    source = type(made).Source(str(tmp_path / "second"), None, prefix="draft.")
    found = dict(all_weights(made, tmp_path / "first", secondary_weights=[source]))
    assert {name: int(tensor[0]) for name, tensor in found.items()} == {"w": 5, "draft.w": 6}


def test_a_pickle_is_not_run(loader, tmp_path):
    evil = Reduced(os.mkdir, (str(tmp_path / "ran"),))
    torch.save({"w": torch.ones(2), "evil": evil}, tmp_path / "pytorch_model.bin")
    assert [name for name, _ in all_weights(loader(), tmp_path)] == ["w"]
    assert not (tmp_path / "ran").exists()


def test_a_damaged_shard_is_an_error_before_the_first_tensor_and_files_are_closed(loader, tmp_path):
    torch.save({"w": torch.ones(2)}, tmp_path / "a.bin")
    torch.save({"v": torch.ones(2)}, tmp_path / "b.bin")
    iterator = all_weights(loader(), tmp_path)
    next(iterator)
    iterator.close()
    (tmp_path / "b.bin").write_bytes((tmp_path / "b.bin").read_bytes()[:100])
    with pytest.raises(rustload.FormatError):
        next(all_weights(loader(), tmp_path))
    assert not [path for path in open_files() if path.startswith(str(tmp_path))]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"memroy": "1GiB"}, "model_loader_extra_config has an unknown key 'memroy'"),
        ({"enable_multithread_load": True}, "unknown key 'enable_multithread_load'"),
        ({"memory": "much"}, "memory='much' is not a size"),
        ({"threads": 0}, "threads is a positive integer, not 0"),
        ({"threads": True}, "threads is a positive integer, not True"),
        ({"mmap": "yes"}, "mmap is true, false or null, not 'yes'"),
    ],
)
def test_wrong_options_are_refused(loader, extra, message):
    with pytest.raises(ValueError, match=message) as caught:
        loader(**extra)
    if "memroy" in extra:
        assert caught.value.__notes__ == ["did you mean: memory"]


def test_vllms_own_option_and_torchao(loader, tmp_path):
    made = loader(enable_weights_track=False)
    assert made.load_config.model_loader_extra_config == {"enable_weights_track": False}
    made.load_config.safetensors_load_strategy = "torchao"
    with pytest.raises(ValueError, match="torchao weights need vLLM's own loader"):
        next(all_weights(made, tmp_path))


@pytest.mark.parametrize(("ranks", "copy"), [(1, True), (2, None)])
def test_one_of_several_ranks_gets_views(loader, tmp_path, monkeypatch, ranks, copy):
    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    monkeypatch.setattr(weights_module, "_ranks", lambda: ranks)
    copies = []
    stream = rustload.Checkpoint.stream
    monkeypatch.setattr(
        rustload.Checkpoint,
        "stream",
        lambda self, names, **options: copies.append(options["copy"]) or stream(self, names, **options),
    )
    assert len(list(all_weights(loader(), tmp_path))) == 1
    assert copies == [copy]


def test_the_entry_point_registers_once(vllm, plugin, tmp_path, monkeypatch, caplog):
    from vllm.model_executor import model_loader

    from rustload.vllm import RustloadModelLoader

    registered = model_loader._LOAD_FORMAT_TO_MODEL_LOADER
    monkeypatch.delitem(registered, "rustload", raising=False)
    write_entry_points(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        if vllm:
            from vllm import plugins

            monkeypatch.setattr(plugins, "plugins_loaded", False)
            plugins.load_general_plugins()
        else:
            points = importlib.metadata.entry_points(group="vllm.general_plugins", name="rustload")
            assert {point.value for point in points} == {"rustload._plugins.vllm:register"}
            for point in points:
                point.load()()
    assert plugin._is_registered
    assert registered["rustload"] is RustloadModelLoader
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("error", [ValueError("not here"), TypeError("another signature"), None])
def test_a_vllm_with_another_interface_is_logged_and_starts(plugin, monkeypatch, caplog, error):
    from vllm.model_executor import model_loader

    def refuse(_load_format):
        raise error

    if error is None:
        monkeypatch.delattr(model_loader, "register_model_loader")
    else:
        monkeypatch.setattr(model_loader, "register_model_loader", refuse)
    with caplog.at_level(logging.WARNING):
        plugin.register()
    assert not plugin._is_registered
    (record,) = caplog.records
    assert record.getMessage().startswith("--load-format rustload is not available: ")


@pytest.mark.parametrize(
    ("argv", "asked"),
    [
        (["/usr/bin/vllm", "serve", "model"], False),
        (["/x/site-packages/vllm/entrypoints/openai/api_server.py", "--model", "m"], False),
        (["/usr/bin/vllm", "serve", "model", "--load-format", "rustload"], True),
        (["/usr/bin/vllm", "serve", "model", "--load_format=Rustload"], True),
        (["/usr/bin/vllm", "serve", "--config", "serve.yaml"], True),
        (["program.py"], True),
        (["-c"], True),
        ([], True),
    ],
)
def test_a_vllm_command_that_does_not_use_it_imports_nothing(argv, asked, tmp_path):
    (tmp_path / "vllm.py").write_text("raise ImportError('imported')")
    code = f"""
    import sys
    sys.path.insert(0, sys.argv[1])
    sys.argv = {argv!r}
    from rustload._plugins.vllm import register
    register()
    print("logging" in sys.modules, "torch" in sys.modules)
    """
    done = child(code, tmp_path, check=False)
    assert done.stdout == f"{asked} False\n"
    assert done.stderr == ("--load-format rustload is not available: imported\n" if asked else "")


PEAK = """
import sys, types
sys.path.insert(0, {stand_ins!r})
import torch
from vllm.config.load import LoadConfig
from vllm.model_executor.model_loader import get_model_loader
import rustload._plugins.vllm as plugin
plugin.register()
config = LoadConfig("rustload", model_loader_extra_config={extra!r}, use_tqdm_on_load=False)
loader = get_model_loader(config)
import rustload
shapes = {{name: lazy.shape for name, lazy in rustload.open(sys.argv[1]).items()}}
for _, tensor in loader.get_all_weights(types.SimpleNamespace(model=sys.argv[2], revision=None), torch.nn.Module()):
    tensor.to(torch.bfloat16)
before = rustload.memory()
model = {{}}
peak = 0
for name, tensor in loader.get_all_weights(types.SimpleNamespace(model=sys.argv[1], revision=None), torch.nn.Module()):
    rows = slice(0, len(tensor) // {ranks})
    model[name] = tensor[rows].to(torch.bfloat16)
    now = rustload.memory()
    peak = max(peak, now.anon + now.file - before.anon - before.file)
    del tensor
end = rustload.memory()
print(peak, end.anon - before.anon, now.file - before.file)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """384 MiB in float32, and a small file, for what a first load takes."""
    folder, small = tmp_path_factory.mktemp("large"), tmp_path_factory.mktemp("small")
    torch.save({f"w{number}": torch.full((4 << 20,), 1.0) for number in range(24)}, folder / "model.bin")
    torch.save({"w": torch.ones(1 << 20)}, small / "model.bin")
    yield folder, small
    (folder / "model.bin").unlink()


def measured(large, ranks, extra):
    from support import STAND_INS

    done = child(PEAK.format(stand_ins=STAND_INS, extra=extra, ranks=ranks), *large)
    return [int(number) / (384 << 20) for number in done.stdout.split()]


def test_the_peak_of_a_load_as_bfloat16_is_the_model_and_a_window(large):
    peak, end, _ = measured(large, 1, {"memory": "256MiB"})
    assert peak < 0.75
    assert end < 0.53


def test_a_rank_with_views_reads_its_part(large):
    _, end, file = measured(large, 4, {"mmap": True})
    assert end < 0.15
    assert file < 0.45  # a quarter, in the pieces in which the kernel maps a file
