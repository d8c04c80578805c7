"""The names of a whole module are the keys of its `state_dict()`, in their order; other values are in `objects`."""

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import assert_same_bits, repacked, saved
from torch import nn

import rustload


class Extras(nn.Module):
    """Everything that a module may hold besides its state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        self.tied = self.layer
        self.alias = nn.Parameter(torch.ones(2))
        self.alias.note = torch.ones(1)  # type: ignore[attr-defined]
        self.register_parameter("none", None)
        self.register_buffer("kept", torch.ones(1))
        self.register_buffer("hidden", torch.ones(1), persistent=False)
        self.register_buffer("alias_of_kept", self.kept)
        self.plain = torch.ones(4)
        self.unregistered = [nn.Linear(2, 2)]
        self.cache = {"key": (torch.ones(1), {"deep": torch.ones(2)})}
        self.storage = torch.ones(3).untyped_storage()


class Subset(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer(
            "scaled",
            torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.quint8),
        )
        self.register_buffer("affine", torch.quantize_per_tensor(torch.ones(2), 0.5, 1, torch.qint8))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.weight = nn.utils.weight_norm(nn.Linear(2, 2))
            self.spectral = nn.utils.spectral_norm(nn.Linear(2, 2))
        with torch.no_grad():
            self.weight.weight = self.weight.weight.detach()


def pruned() -> nn.Module:
    import torch.nn.utils.prune as prune

    module = nn.Linear(4, 4)
    prune.l1_unstructured(module, "weight", 0.5)
    module.weight = module.weight.detach()
    return module


def traced_graph() -> nn.Module:
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(2, 3),
    "without bias": lambda: nn.Linear(2, 3, bias=False),
    "LSTM": lambda: nn.LSTM(2, 3, num_layers=2, bidirectional=True, proj_size=2),
    "GRU": lambda: nn.GRU(2, 3),
    "RNNCell": lambda: nn.RNNCell(2, 3),
    "MultiheadAttention": lambda: nn.MultiheadAttention(4, 2),
    "MultiheadAttention of other sizes": lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True),
    "Transformer": lambda: nn.Transformer(4, 2, 1, 1, 8),
    "BatchNorm": lambda: nn.BatchNorm2d(3),
    "BatchNorm without statistics": lambda: nn.BatchNorm2d(3, affine=False, track_running_stats=False),
    "Embedding": lambda: nn.Embedding(4, 2, padding_idx=0),
    "EmbeddingBag": lambda: nn.EmbeddingBag(4, 2),
    "CrossEntropyLoss": lambda: nn.CrossEntropyLoss(torch.ones(3)),
    "containers": lambda: nn.ModuleDict({
        "list": nn.ModuleList([nn.Conv2d(1, 1, 1), nn.PReLU()]),
        "tensors": nn.ParameterList([torch.ones(1), torch.ones(2)]),
        "named": nn.ParameterDict({"b": torch.ones(1), "a": torch.ones(2)}),
        "empty": nn.Sequential(),
    }),
    "DataParallel": lambda: nn.DataParallel(nn.Linear(2, 2)),
    "extras": Extras,
    "quantized buffers": Subset,
    "norms": Normed,
    "pruned": pruned,
    "graph": traced_graph,
    "dynamically quantized": lambda: torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.LayerNorm(2))),
}  # fmt: skip


def stored(module: Any, *, legacy: bool = False) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.save cannot find the source of some modules
        return saved(module, _use_new_zipfile_serialization=not legacy)


def tensors_of(state: dict[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    return {prefix + name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", MODULES)
def test_the_tensor_names_of_a_module_are_its_state_dict_keys(name, legacy):
    module = MODULES[name]()
    with rustload.open(stored(module, legacy=legacy), framework="torch") as ckpt:
        expected = tensors_of(module.state_dict())
        assert list(ckpt) == list(expected)
        for key, want in expected.items():
            if not want.is_quantized:
                assert_same_bits(ckpt[key].materialize(), want.detach())
    whole = {"epoch": 1, "model": module, "x": torch.ones(1), "all": [module]}
    with rustload.open(stored(whole, legacy=legacy)) as ckpt:
        states = (tensors_of(module.state_dict(), prefix) for prefix in ("model.", "all.0."))
        first, second = states
        assert list(ckpt) == [*first, "x", *second]


def test_other_tensors_of_a_module_are_in_objects_without_a_name():
    ckpt = rustload.open(stored(Extras()), framework="torch")
    state = ckpt.objects.state
    unnamed = [
        state["plain"],
        state["_buffers"]["hidden"],
        *state["cache"]["key"][:1],
        state["cache"]["key"][1]["deep"],
    ]
    for lazy, count in zip(unnamed, (4, 1, 1, 2), strict=True):
        assert (lazy.name, lazy.path) == ("", ())
        assert lazy.materialize().tolist() == [1] * count
    assert state["storage"].materialize().dtype == torch.uint8
    assert state["_buffers"]["kept"].name == "kept"
    lstm = rustload.open(stored(nn.LSTM(2, 2))).objects.state
    assert [lazy.name for lazy in lstm["_flat_weights"]] == lstm["_flat_weights_names"]


def test_a_module_with_exponentially_many_paths_has_bounded_names():
    """40 levels of shared lists have 2**40 paths to tensors that no state dict names."""
    module = Extras()
    shared: Any = module.cache["key"]
    for _ in range(40):
        shared = [shared, shared]
    module.cache = shared
    ckpt = rustload.open(stored(module))
    assert list(ckpt) == list(module.state_dict())


# TorchScript.


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ScriptedPart()
        self.other = ScriptedPart()
        self.lstm = nn.LSTM(2, 2)
        self._state = torch.ones(1)
        self._context = torch.ones(2)
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.BatchNorm1d(2)])
        self.tied = self.inner
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x) + self.other(x) + self._state + self._context.sum() + self.weight
        for layer in self.layers:
            x = layer(x)
        return self.tied(self.lstm(x)[0])


class ScriptedPart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("hidden", torch.ones(4), persistent=False)
        self.register_buffer("kept", torch.ones(1))
        self.w = nn.Parameter(torch.ones(2))
        self.plain = torch.ones(3)
        self.several = [torch.ones(1)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w + self.plain.sum() + self.kept + self.hidden.sum() + self.several[0]


def scripted() -> Any:
    return torch.jit.script(Scripted())


def traced() -> Any:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    return torch.jit.trace(module, torch.ones(3, 2))


def frozen() -> Any:
    return torch.jit.freeze(traced())


def archive(module: Any) -> bytes:
    file = io.BytesIO()
    torch.jit.save(module, file)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("make", [scripted, traced, frozen])
def test_the_tensor_names_of_a_torchscript_archive_are_its_state_dict_keys(make):
    data = archive(make())
    expected = torch.jit.load(io.BytesIO(data)).state_dict()
    with rustload.open(data, framework="torch") as ckpt:
        assert list(ckpt) == list(expected)
        for key, want in expected.items():
            assert_same_bits(ckpt[key].materialize(), want)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_all_other_tensors_of_an_old_torchscript_archive_are_buffers():
    """Its sources list parameters only, and its `state_dict()` had every other tensor of a module."""

    def old(name: str, data: bytes) -> bytes:
        lines = data.split(b"\n")
        is_source = name.endswith(".py")
        return b"\n".join(line for line in lines if b"__buffers__" not in line) if is_source else data

    data = archive(scripted())
    names = list(torch.jit.load(io.BytesIO(data)).state_dict())
    found = list(rustload.open(repacked(data, old)))
    assert set(found) == {*names, "_state", "_context", "inner.plain", "other.plain", "tied.plain"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_torchscript_archive_without_its_sources_names_every_tensor():
    data = repacked(archive(scripted()), lambda name, data: None if "/code/" in name else data)
    names = list(rustload.open(data))
    assert {
        "_state",
        "inner.plain",
        "inner.several.args.0.0",
        "lstm._flat_weights.args.0.0",
        "lstm.bias_hh_l0",
    } <= set(names)
    assert len(names) == len(set(names))
