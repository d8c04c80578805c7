"""`rustload.lightning.RustloadCheckpointIO` in Lightning's trainer, compared with Lightning's own `TorchCheckpointIO`."""

import argparse
import collections
import enum
import os
import pathlib
import pickle
import types

import numpy as np
import pytest
import torch
from support import Reduced, assert_same_bits, held_anon, torch_child

import rustload
import rustload.torch
from rustload.torch._native_values import find_inert, restore

pytestmark = pytest.mark.filterwarnings("ignore")  # of Lightning


class Level(enum.Enum):
    LOW = 1


@pytest.fixture(scope="module")
def lightning():
    return pytest.importorskip("lightning.pytorch")


@pytest.fixture(scope="module")
def checkpoint_io(lightning):  # noqa: ARG001 - imported first
    from rustload.lightning import RustloadCheckpointIO

    return RustloadCheckpointIO


@pytest.fixture(scope="module")
def module_class(lightning):
    class Small(lightning.LightningModule):
        def __init__(self, **values):
            super().__init__()
            self.save_hyperparameters()
            torch.manual_seed(len(values))
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch, _number):
            loss = self.layer(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)]

        def train_dataloader(self):
            data = torch.utils.data.TensorDataset(torch.arange(32.0).reshape(8, 4))
            return torch.utils.data.DataLoader(data, batch_size=2)

    return Small


@pytest.fixture
def trainer(lightning, tmp_path):
    def make(epochs, *plugins):
        return lightning.Trainer(
            max_epochs=epochs,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path / "runs",
            callbacks=[lightning.callbacks.ModelCheckpoint(tmp_path / "best", monitor="loss")],
            plugins=list(plugins),
        )

    return make


@pytest.fixture
def run(trainer, module_class, tmp_path):
    """A checkpoint of two epochs, saved by Lightning alone."""
    from lightning.fabric.utilities.data import AttributeDict

    values = {
        "args": argparse.Namespace(lr=0.1, out=pathlib.Path("runs/a"), inner=argparse.Namespace(x=[1, 2])),
        "simple": types.SimpleNamespace(a=(1, pathlib.PurePosixPath("b"))),
        "settings": AttributeDict(depth=2, inner=AttributeDict(x=1)),
        "scale": np.float64(2.5),
    }
    made = trainer(2)
    made.fit(module_class(**values))
    made.save_checkpoint(tmp_path / "run.ckpt")
    return tmp_path / "run.ckpt"


def assert_same_tree(found, expected):
    """The types and values of two trees are the same; NumPy scalars are expected as Python numbers."""
    if isinstance(expected, np.generic):
        expected = expected.item()
    assert type(found) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert_same_bits(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same_tree(found[key], value)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_same_tree(one, other)
    elif isinstance(expected, (argparse.Namespace, types.SimpleNamespace)):
        assert_same_tree(vars(found), vars(expected))
    else:
        assert found == expected


def test_a_checkpoint_is_the_one_that_lightning_loads_by_unpickling(run, checkpoint_io, monkeypatch):
    from lightning.fabric.plugins import TorchCheckpointIO

    expected = TorchCheckpointIO().load_checkpoint(run, weights_only=False)
    monkeypatch.setattr(torch, "load", None)
    monkeypatch.setattr(pickle, "Unpickler", None)
    for options in ({}, {"mmap": True}, {"unknown": "keep"}):
        assert_same_tree(checkpoint_io(**options).load_checkpoint(run), expected)
    assert isinstance(expected["hyper_parameters"]["args"].out, pathlib.Path)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert_same_tree(checkpoint_io().load_checkpoint(run, weights_only=None), expected)


def test_a_trainer_resumes_as_with_lightnings_own_plugin(run, checkpoint_io, trainer, module_class):
    models = []
    for plugins, options in (((checkpoint_io(),), {}), ((), {"weights_only": False})):
        model, made = module_class(other=1), trainer(4, *plugins)
        made.fit(model, ckpt_path=run, **options)
        assert made.global_step == 16
        models.append((model, made))
    (found, with_ours), (expected, with_theirs) = models
    for name, tensor in expected.state_dict().items():
        assert_same_bits(found.state_dict()[name], tensor)
    assert_same_tree(with_ours.optimizers[0].state_dict(), with_theirs.optimizers[0].state_dict())
    assert type(with_ours.strategy.checkpoint_io) is checkpoint_io


def test_async_saving_wraps_it(checkpoint_io, trainer, module_class, tmp_path):
    from lightning.pytorch.plugins.io import AsyncCheckpointIO

    made = trainer(1, AsyncCheckpointIO(checkpoint_io()))
    made.fit(module_class(), ckpt_path=None)
    (best,) = (tmp_path / "best").glob("*.ckpt")
    state = checkpoint_io().load_checkpoint(best)["state_dict"]
    assert_same_bits(state["layer.weight"], made.model.layer.weight.detach())


def test_pytorch_lightning_gets_a_subclass_of_its_own_class(tmp_path):
    pytest.importorskip("pytorch_lightning")
    torch.save({"args": argparse.Namespace(x=1), "state_dict": {}}, tmp_path / "run.ckpt")
    code = """
    import sys, warnings
    warnings.simplefilter("ignore")
    import pytorch_lightning
    from rustload.lightning import RustloadCheckpointIO
    assert issubclass(RustloadCheckpointIO, pytorch_lightning.plugins.CheckpointIO)
    trainer = pytorch_lightning.Trainer(plugins=[RustloadCheckpointIO()], logger=False, accelerator="cpu")
    print(trainer.strategy.load_checkpoint(sys.argv[1]), "lightning" in sys.modules)
    """
    printed = torch_child(code, tmp_path / "run.ckpt", check=False).stdout
    assert printed.splitlines()[-1] == "{'args': Namespace(x=1), 'state_dict': {}} False"


@pytest.mark.parametrize("key", ["callbacks", "my_state"])
def test_an_object_of_another_class_is_an_error_that_names_it_and_is_not_created(
    checkpoint_io, save, tmp_path, key
):
    value = {"inner": [(1, Reduced(os.mkdir, (str(tmp_path / "ran"),)))]}
    path = save({"state_dict": {}, key: value, "hyper_parameters": {"level": Level.LOW}}, "run.ckpt")
    with pytest.raises(rustload.UnsupportedError) as caught:
        checkpoint_io().load_checkpoint(path)
    assert caught.value.code == "OpaqueValue"
    assert str(caught.value).startswith(f"'{key}'['inner'][0][1] in '{path}' is a posix.mkdir: ")
    kept = checkpoint_io(unknown="keep").load_checkpoint(path)
    assert isinstance(kept[key]["inner"][0][1], rustload.Opaque)
    assert not (tmp_path / "ran").exists()


def test_hyper_parameters_of_other_classes_are_kept_as_data(checkpoint_io, save):
    hyper = {"level": Level.LOW, "args": argparse.Namespace(level=Level.LOW, x=1)}
    found = checkpoint_io().load_checkpoint(save({"state_dict": {}, "hyper_parameters": hyper}, "run.ckpt"))
    kept = found["hyper_parameters"]
    assert kept["args"].x == 1
    for level in (kept["level"], kept["args"].level):
        assert level.class_name.endswith("test_lightning.Level")
        assert level.args == (1,)


def test_arguments_and_paths_are_those_of_lightning(checkpoint_io, save, tmp_path):
    from lightning.fabric.plugins import TorchCheckpointIO

    errors = []
    for io in (checkpoint_io(), TorchCheckpointIO()):
        with pytest.raises(FileNotFoundError) as caught:
            io.load_checkpoint(tmp_path / "absent.ckpt")
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    path = save({"w": torch.ones(3)}, "run.ckpt")
    assert checkpoint_io().load_checkpoint(path, map_location="meta")["w"].is_meta
    assert_same_bits(
        checkpoint_io().load_checkpoint(path, lambda storage, _location: storage)["w"], torch.ones(3)
    )
    with pytest.raises(ValueError, match="weights_only=False would run code"):
        checkpoint_io().load_checkpoint(path, weights_only=False)
    with pytest.raises(ValueError, match=r"unknown= is 'error' or 'keep', not 'ignore'"):
        checkpoint_io(unknown="ignore")
    with pytest.raises(rustload.LimitError):
        checkpoint_io(limits=rustload.Limits(pickle_bytes=10)).load_checkpoint(path)
    checkpoint_io().save_checkpoint({"w": torch.ones(2)}, tmp_path / "new" / "saved.ckpt")
    assert torch.load(tmp_path / "new" / "saved.ckpt", weights_only=True)["w"].tolist() == [1, 1]


def test_a_url_of_fsspec_is_read_through_its_file_system(checkpoint_io):
    checkpoint_io().save_checkpoint({"w": torch.arange(5), "a": argparse.Namespace(x=1)}, "memory://run.ckpt")
    found = checkpoint_io().load_checkpoint("memory://run.ckpt")
    assert found["w"].tolist() == [0, 1, 2, 3, 4]
    assert found["a"] == argparse.Namespace(x=1)
    checkpoint_io().remove_checkpoint("memory://run.ckpt")
    with pytest.raises(FileNotFoundError):
        checkpoint_io().load_checkpoint("memory://run.ckpt")


def test_a_url_is_shown_without_its_secrets(checkpoint_io):
    for url in ("memory://absent.ckpt?signature=s3cr3t", "https://user:s3cr3t@127.0.0.1:1/run.ckpt?s3cr3t"):
        with pytest.raises(FileNotFoundError, match=r"not found: (memory|https)://") as caught:
            checkpoint_io().load_checkpoint(url)
        assert "s3cr3t" not in str(caught.value)
    url = "memory://run.ckpt?signature=s3cr3t"
    checkpoint_io().save_checkpoint({"level": Level}, url)
    with pytest.raises(rustload.UnsupportedError, match=r"in 'memory://run\.ckpt' is a"):
        checkpoint_io().load_checkpoint(url)
    checkpoint_io().remove_checkpoint(url)


def test_the_environment_can_forbid_urls(checkpoint_io, save, monkeypatch):
    checkpoint_io().save_checkpoint({"w": torch.arange(5)}, "memory://run.ckpt")
    path = save({"w": torch.ones(3)}, "run.ckpt")
    monkeypatch.setenv("RUSTLOAD_REMOTE", "hf,https")
    for url in ("memory://run.ckpt", "simplecache::memory://run.ckpt", "https://x/y::memory://run.ckpt"):
        with pytest.raises(ValueError, match=r"'memory' is not allowed|chained URLs are not taken"):
            checkpoint_io().load_checkpoint(url)
    for local in (path, f"file://{path}"):
        assert checkpoint_io().load_checkpoint(local)["w"].tolist() == [1, 1, 1]
    monkeypatch.setenv("RUSTLOAD_REMOTE", "hf,memory")
    assert checkpoint_io().load_checkpoint("memory://run.ckpt")["w"].tolist() == [0, 1, 2, 3, 4]
    checkpoint_io().remove_checkpoint("memory://run.ckpt")


def test_mmap_loads_views_of_the_file(checkpoint_io, save):
    path = save({"state_dict": {"w": torch.zeros(16 << 20)}}, "run.ckpt")
    before = held_anon()
    found = checkpoint_io(mmap=True).load_checkpoint(path)
    assert found["state_dict"]["w"].count_nonzero() == 0
    assert held_anon() - before < 16 << 20


def loaded(value, save):
    return rustload.torch.load(save({"value": value}, "value.pt"))["value"]


def test_objects_are_created_inside_of_every_container(save):
    space = argparse.Namespace(x=1)
    value = [
        (space, (2, space)),
        collections.OrderedDict(a=space),
        {pathlib.PurePosixPath("k"): {pathlib.PurePosixPath("i")}},
        frozenset([pathlib.PurePosixPath("f")]),
        collections.deque([space]),
        {"plain": (1, 2)},
    ]
    found = restore(loaded(value, save), {})
    assert found == value
    assert found[0][0] is found[0][1][1] is found[1]["a"]
    assert not list(find_inert(found, "value"))


def test_objects_that_contain_themselves_are_created(save):
    space = argparse.Namespace(items=[])
    space.items.append({"space": space})
    found = restore(loaded(space, save), {})
    assert type(found) is argparse.Namespace
    assert found.items[0]["space"] is found
    assert not list(find_inert(found, "value"))


def test_deep_nesting_needs_no_recursion():
    inner = rustload.Opaque("argparse.Namespace")
    for level in range(100_000):
        inner = [inner] if level % 2 else (inner,)
    found = restore(inner, {})
    level = found
    while isinstance(level, (list, tuple)):
        (level,) = level
    assert type(level) is argparse.Namespace
    inner = rustload.Opaque("some.Class")
    for _ in range(100_000):
        inner = [inner]
    assert list(find_inert(inner, "value")) == [("value...[0]", "some.Class")]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("argparse.Namespace", {"args": (1,)}),
        ("argparse.Namespace", {"state": {1: 2}}),
        ("argparse.Namespace", {"state": [("x", 1)]}),
        ("argparse.Namespace", {"appended": [1]}),
        ("argparse.Namespace", {"function": rustload.Global("a", "b")}),
        ("pathlib.PosixPath", {"args": (b"x",)}),
        ("pathlib.PosixPath", {"args": ("x",), "state": {"_raw_paths": ["y"]}}),
        ("my.Dict", {"args": ([(1, 2)],)}),
        ("my.Dict", {"state": {"x": 1}}),
    ],
)
def test_a_call_of_another_form_stays_inert(name, fields):
    value = rustload.Opaque(name)
    for field, given in fields.items():
        setattr(value, field, given)
    found = restore(value, {"my.Dict": collections.OrderedDict})
    assert type(found) is rustload.Opaque
    assert all(getattr(found, field) == getattr(value, field) for field in rustload.Opaque.__slots__)


def test_an_object_that_cannot_be_a_key_stays_inert_as_one():
    value = rustload.Opaque("argparse.Namespace")
    found = restore({value: 1, "set": {value}}, {})
    assert found == {value: 1, "set": {value}}
    assert list(find_inert(found, "value")) == [("value, in a key", "argparse.Namespace")]
