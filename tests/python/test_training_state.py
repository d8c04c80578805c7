"""`save(keep_nesting=True)` keeps a training state: every value exactly, so that the optimizer's next step has the same bits."""

import argparse
import collections
import copy
import enum
import io
import json
import math
import pickle
import random
import struct
from typing import Any

import numpy as np
import pytest
import torch

import rustload
import rustload.torch

OPTIMIZERS = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2, amsgrad=True),
    "adamw": lambda parameters: torch.optim.AdamW(
        [{"params": parameters[:2], "lr": 3e-3}, {"params": parameters[2:], "weight_decay": 0.0}], lr=1e-3
    ),
    "adamw tensor lr": lambda parameters: torch.optim.AdamW(
        parameters, lr=torch.tensor(1e-3), betas=(0.8, 0.99)
    ),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, centered=True, momentum=0.5),
    # Its sums depend on how tensors are aligned.
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=5),
}


def same(found: Any, expected: Any) -> bool:
    """Whether two values are equal in type, order and bits."""
    if isinstance(expected, torch.Tensor):
        return (
            isinstance(found, torch.Tensor)
            and found.dtype == expected.dtype
            and found.shape == expected.shape
            and found.contiguous()
            .view(-1)
            .view(torch.uint8)
            .equal(expected.contiguous().view(-1).view(torch.uint8))
        )
    if isinstance(expected, dict):
        keys = (
            zip(found, expected, strict=True) if type(found) is dict and len(found) == len(expected) else None
        )
        return keys is not None and all(same(a, b) and same(found[a], expected[b]) for a, b in keys)
    if type(found) is not type(expected):
        return False
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float):
        return struct.pack("d", found) == struct.pack("d", expected)
    if isinstance(expected, complex):
        return same([found.real, found.imag], [expected.real, expected.imag])
    return bool(found == expected)


def net() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        data = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))

        def closure(data: torch.Tensor = data) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(data).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize("target", ["run.safetensors", "run"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_next_steps_are_those_of_an_uninterrupted_run(tmp_path, name, target):
    model = net()
    optimizer = OPTIMIZERS[name](list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    train(model, optimizer, range(3))
    scheduler.step()
    state = {
        "model": model.state_dict(),
        "optim": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "step": 3,
        "rng": torch.get_rng_state(),
        "python": random.getstate(),
    }
    options = {} if target.endswith(".safetensors") else {"max_shard_size": 1000}
    report = rustload.save(state, tmp_path / target, keep_nesting=True, **options)
    assert (report.skipped_objects, report.skipped_at) == (0, ())
    loaded = rustload.torch.load(tmp_path / target)
    assert same(loaded["optim"], state["optim"])
    assert same(loaded["scheduler"], state["scheduler"])
    assert same(loaded["python"], state["python"])
    assert loaded["step"] == 3
    assert same(loaded["rng"], state["rng"])
    resumed = net()
    restarted = OPTIMIZERS[name](list(resumed.parameters()))
    resumed.load_state_dict(loaded["model"])
    restarted.load_state_dict(loaded["optim"])
    train(model, optimizer, range(3, 6))
    train(resumed, restarted, range(3, 6))
    assert same(dict(resumed.state_dict()), dict(model.state_dict()))
    assert same(restarted.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("mmap", [None, False, True])
def test_a_loaded_state_owns_its_memory_unless_it_is_mapped(tmp_path, mmap):
    rustload.save(
        {"optim": [torch.zeros(9), torch.zeros(1)]}, tmp_path / "run.safetensors", keep_nesting=True
    )
    first, _ = rustload.torch.load(tmp_path / "run.safetensors", mmap=mmap)["optim"]
    with (tmp_path / "run.safetensors").open("r+b") as file:
        file.seek(-40, io.SEEK_END)
        file.write(b"\1" * 40)
    assert first.eq(0).all().item() is not bool(mmap)


NAN_BITS = struct.unpack("d", struct.pack("Q", 0xFFF8_0000_0000_0123))[0]
VALUES = [
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 7**5000, 0.1, -0.0, 5e-324,
    1.7976931348623157e308,
    1e22, math.inf, -math.inf, math.nan, -math.nan, NAN_BITS, complex(-0.0, math.nan), complex(math.inf, 1), "", "x", "$dict",
    "w", "\0\ud800\u2028é", b"", b"\0\xff", [], (), {}, [[]], ([],), {"": {}}, {"a.b": 1}, {1: 2, "1": 3, -1: None},
    {True: 1}, {None: 0, 1.5: 1}, {2**70: 1}, {"$int": "0x1"},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=map(str, range(len(VALUES))))
def test_values_are_kept_exactly(value):
    file = io.BytesIO()
    state = {"value": value, "w": torch.ones(2)}
    rustload.save(state, file, keep_nesting=True)
    assert same(rustload.torch.load(file.getvalue()), state)
    objects = rustload.open(file.getvalue()).objects
    assert same(objects["value"], value)
    assert isinstance(objects["w"], rustload.LazyTensor)


class Random:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        kind = self.random.randrange(9 if depth < 5 else 4)
        count = self.random.randrange(4)
        if kind == 0:
            return torch.randn(self.random.randrange(4), generator=torch.Generator().manual_seed(kind))
        if kind < 4:
            return copy.copy(self.random.choice(VALUES))
        if kind < 6:
            return [self.value(depth + 1) for _ in range(count)]
        if kind == 6:
            return tuple(self.value(depth + 1) for _ in range(count))
        keys = self.random.sample(["a", "b.c", "b", "0", 0, 1, "$list", ""], count)
        return {key: self.value(depth + 1) for key in keys}


@pytest.mark.parametrize("seed", range(60))
def test_random_nestings_are_kept(seed, tmp_path):
    made = Random(seed)
    state = {"x": [made.value() for _ in range(6)], "w": torch.ones(1)}
    rustload.save(state, tmp_path / "n.safetensors", keep_nesting=True)
    found = rustload.torch.load(tmp_path / "n.safetensors")
    assert same(found, state)
    assert list(rustload.open(tmp_path / "n.safetensors")) == list(rustload.open(tmp_path / "n.safetensors"))
    rustload.convert(tmp_path / "n.safetensors", tmp_path / "again.safetensors")
    assert same(rustload.torch.load(tmp_path / "again.safetensors"), state)
    # A checkpoint as the source: its values are plain, and kept the same way.
    rustload.save(rustload.open(tmp_path / "n.safetensors"), tmp_path / "lazy.safetensors", keep_nesting=True)
    assert same(rustload.torch.load(tmp_path / "lazy.safetensors"), state)


def test_a_training_checkpoint_of_torch_is_kept(tmp_path):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, range(2))
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "history": [(1, 0.5), (2, math.nan)],
        "args": argparse.Namespace(lr=0.1, layers=[1, 2]),
    }
    torch.save(state, tmp_path / "train.ckpt")
    ckpt = rustload.open(tmp_path / "train.ckpt")
    report = rustload.save(ckpt, tmp_path / "flat.safetensors")
    names = report.skipped_at
    assert report.skipped_objects == len(names) == 22
    assert {"epoch", "args", "history.1.0", "optimizer.param_groups.0.betas.1"} < set(names)
    assert ", 22 other values left out (optimizer.param_groups.0.lr, ...), in " in str(report)
    assert "skipped_at" in report._repr_html_()
    assert rustload.open(tmp_path / "flat.safetensors").metadata == {"format": "pt"}
    report = rustload.save(ckpt, tmp_path / "kept.safetensors", keep_nesting=True)
    assert (report.skipped_objects, report.skipped_at) == (1, ("args",))
    del state["args"]
    state["model"] = dict(state["model"])
    found = rustload.torch.load(tmp_path / "kept.safetensors")
    assert same(found, state)
    optimizer.load_state_dict(found["optimizer"])


def test_tied_tensors_and_names_that_are_not_written(tmp_path):
    weight = torch.randn(3)
    state = {"a": weight, "b": [weight, 1], "c.d": torch.zeros(1), "c": {"d": torch.ones(1)}}
    report = rustload.save(state, tmp_path / "t.safetensors", keep_nesting=True, ties="drop")
    assert report.dropped == {"b.0": "a"}
    assert same(rustload.torch.load(tmp_path / "t.safetensors"), state)
    assert same(rustload.unflatten(rustload.open(tmp_path / "t.safetensors"))["b"][1], 1)
    rustload.convert(tmp_path / "t.safetensors", tmp_path / "part.safetensors", select="a")
    assert list(rustload.torch.load(tmp_path / "part.safetensors")) == ["a"]
    report = rustload.save(rustload.open(tmp_path / "t.safetensors"), tmp_path / "flat.safetensors")
    assert (report.skipped_objects, report.skipped_at) == (1, ("b.1",))


def test_the_key_of_the_record_is_no_key_of_metadata(tmp_path):
    path = tmp_path / "t.safetensors"
    with pytest.raises(
        ValueError, match=r"metadata= has 'rustload\.nesting', which is the record of keep_nesting"
    ):
        rustload.save({"a": torch.ones(1)}, path, keep_nesting=True, metadata={"rustload.nesting": "x"})
    assert not path.exists()
    weight = torch.randn(3)
    state = {"a": weight, "rustload": {"nesting": weight}, "n": 1}
    rustload.save(state, path, keep_nesting=True, ties="drop")
    assert same(rustload.torch.load(path), state)
    ckpt = rustload.open(path)  # the texts of a file may be passed on
    rustload.save(ckpt, tmp_path / "n.safetensors", metadata=ckpt.metadata)
    assert same(rustload.torch.load(tmp_path / "n.safetensors"), state)


def test_tied_tensors_of_a_checkpoint_keep_their_places(tmp_path):
    weight = torch.randn(3)
    state = {"a": {"b": weight, "c": [weight, 2]}, "d": weight, "e": weight[1:]}
    torch.save(state, tmp_path / "t.pt")
    ckpt = rustload.open(tmp_path / "t.pt")
    for ties, names in (("auto", ["a.b", "a.c.0", "d", "e"]), ("drop", ["a.b", "e"])):
        for given in (ckpt, ckpt.objects):
            rustload.save(given, tmp_path / "t.safetensors", keep_nesting=True, ties=ties)
            assert sorted(rustload.open(tmp_path / "t.safetensors")) == names
            assert same(rustload.torch.load(tmp_path / "t.safetensors"), state)


def test_objects_are_written_to_a_file_as_convert_does(tmp_path):
    state = {
        "w": torch.ones(1),
        "epoch": 3,
        "lr": (0.1, math.inf),
        "deep": {1: {"t": torch.ones(1), "on": True}},
    }
    torch.save(state, tmp_path / "m.bin")
    rustload.convert(tmp_path / "m.bin", objects=tmp_path / "converted.json")
    expected = (tmp_path / "converted.json").read_text()
    report = rustload.save(state, tmp_path / "m.safetensors", objects=tmp_path / "m.json")
    assert (report.tensors, report.skipped_objects) == (2, 4)
    assert report.skipped_at == ("epoch", "lr.0", "lr.1", "deep.1.on")
    assert (tmp_path / "m.json").read_text() == expected
    assert json.loads(expected)["lr"] == [0.1, {"$float": "inf"}]
    rustload.save(rustload.open(tmp_path / "m.bin"), tmp_path / "out", objects=tmp_path / "out" / "o.json")
    assert (tmp_path / "out" / "o.json").read_text() == expected
    assert list(rustload.open(tmp_path / "out")) == ["deep.1.t", "w"]
    with pytest.raises(FileExistsError):
        rustload.save(state, tmp_path / "m.safetensors", objects=tmp_path / "m.json", overwrite=False)
    with pytest.raises(FileNotFoundError):
        rustload.save(state, tmp_path / "new.safetensors", objects=tmp_path / "no" / "m.json")
    assert not (tmp_path / "new.safetensors").exists()
    file = io.BytesIO()
    rustload.save(state, file, objects=tmp_path / "memory.json")
    assert (tmp_path / "memory.json").read_text() == expected


class Colour(enum.IntEnum):
    RED = 1


def test_what_cannot_be_kept_says_so(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(TypeError, match=r"'optim.0' is a float, not a tensor") as caught:
        rustload.save({"optim": [0.1]}, path)
    assert "keep_nesting=True" in caught.value.__notes__[0]
    deep: Any = torch.ones(1)
    for _ in range(101):
        deep = [deep]
    wide = [1]
    for _ in range(40):
        wide = [wide, wide]
    cases: list[tuple[Any, type[BaseException], str]] = [
        ({"a": {1, 2}}, TypeError, "is a set, not a tensor"),
        ({"a": Colour.RED}, TypeError, r"Colour, not a tensor"),
        ({"a": object()}, TypeError, "is an object, not a tensor"),
        ({(1, 2): 1}, TypeError, "a tuple as a key"),
        (deep, ValueError, "more deeply than 100"),
    ]
    for state, kind, text in cases:
        with pytest.raises(kind, match=text):
            rustload.save(state, path, keep_nesting=True)
    # A checkpoint whose lists refer to each other would take an exabyte.
    (tmp_path / "wide.bin").write_bytes(pickle.dumps({"wide": wide, "w": np.ones(2)}))
    with pytest.raises(
        ValueError, match="the record of containers and values would have more than"
    ) as caught:
        rustload.save(rustload.open(tmp_path / "wide.bin"), path, keep_nesting=True)
    assert caught.value.code == "HeaderTooLarge"
    module = torch.nn.Linear(2, 2)
    torch.save({"net": module, "epoch": 1}, tmp_path / "module.pt")
    with pytest.raises(ValueError, match=r"cannot keep 'net\.weight': it is inside of a value"):
        rustload.save(rustload.open(tmp_path / "module.pt"), path, keep_nesting=True)
    assert not path.exists()
    assert rustload.save(rustload.open(tmp_path / "module.pt"), path).skipped_at[-1] == "epoch"


def test_subclasses_of_containers_become_plain(tmp_path):
    Pair = collections.namedtuple("Pair", "x y")
    state = {
        "o": collections.OrderedDict(a=1),
        "p": Pair(1, np.float64(2)),
        "d": collections.defaultdict(list, k=[1]),
    }
    rustload.save(state, tmp_path / "s.safetensors", keep_nesting=True)
    found = rustload.torch.load(tmp_path / "s.safetensors")
    assert same([found["o"], found["d"]], [{"a": 1}, {"k": [1]}])
    assert same(found["p"], (1, torch.tensor(2.0, dtype=torch.float64)))


def test_info_shows_the_values(tmp_path, capsys):
    from rustload import _cli

    path = tmp_path / "run.safetensors"
    rustload.save({"epoch": 12345, "model": {"w": torch.ones(2)}}, path, keep_nesting=True)
    assert _cli.main(["info", str(path)]) == 0
    out = capsys.readouterr().out
    assert "epoch  12345" in out
    assert "model  dict of 1" in out
