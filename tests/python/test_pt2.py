"""Exported programs (`.pt2`), compared with `torch.export.load`: names, values, strides, ties and flags of twenty programs."""

import contextlib
import io
import json
import os
import pickle
import re
import runpy
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import DTYPES, Reduced, bits, deflated, patterns, repacked, saved
from torch.export.pt2_archive._package import package_pt2
from torch.testing._internal.two_tensor import TwoTensor

import rustload
import rustload.torch
from rustload.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore")
WRAPPED = "wrapped"
"""The program with a tensor subclass, which torch pickles."""


class Holder(torch.nn.Module):
    """A module of parameters and buffers that its forward does not need."""

    def __init__(
        self,
        parameters: dict[str, torch.Tensor] | None = None,
        buffers: dict[str, torch.Tensor] | None = None,
        **not_persistent: torch.Tensor,
    ) -> None:
        super().__init__()
        for name, tensor in (parameters or {}).items():
            trains = tensor.is_floating_point() or tensor.is_complex()
            self.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=trains))
        for name, tensor in (buffers or {}).items():
            self.register_buffer(name, tensor)
        for name, tensor in not_persistent.items():
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class Found(torch.nn.Linear):
    """A layer whose output has a size that torch checks when the program runs."""

    def __init__(self) -> None:
        super().__init__(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).nonzero()


class Tied(torch.nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(x))


class Constants(torch.nn.Module):
    """Tensors that are attributes or part of the code, and buffers that are not persistent."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.tensor([1.5, 2.0])
        self.shared = self.scale[1:]
        self.register_buffer("mask", torch.tensor([True, False]), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale + self.shared + self.mask + torch.tensor([7, 8])


class Shapes(torch.nn.Module):
    """A program with symbolic shapes, conditions on them, and guards."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        rows, columns = x.shape
        z = x.reshape(rows * columns // 2, 2) if columns % 2 == 0 else x
        return torch.cat([z.flatten(), self.linear(y).flatten()])[: max(rows, columns) // 3 + 1]


class Wrapped(torch.nn.Module):
    """A parameter of a tensor subclass."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(TwoTensor(torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)))
        self.b = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.w + self.b


def views() -> Holder:
    base = torch.arange(24.0)
    buffers = {
        "whole": base,
        "part": base[3:9],
        "rows": base.view(4, 6)[::2, 1:4],
        "turned": base.view(4, 6).t(),
    }
    return Holder({"p": torch.arange(12.0).reshape(3, 4).t()}, buffers)


def overlapping() -> Holder:
    return Holder(
        buffers={"x": torch.arange(4.0).as_strided((3, 2), (1, 1)), "y": torch.ones(1).expand(3, 4)}
    )


def every_dtype() -> Holder:
    return Holder(buffers={f"of_{name}": patterns(name, (3, 2)) for name in DTYPES})


ROW = torch.ones(2, 3)


def programs() -> dict[str, tuple[torch.nn.Module, tuple[Any, ...]]]:
    """The modules, and arguments of their forward."""
    torch.manual_seed(0)
    nn = torch.nn
    plain = nn.Linear(3, 4)
    frozen = nn.Linear(3, 4)
    frozen.weight.requires_grad_(requires_grad=False)
    return {
        "linear": (plain, (ROW,)),
        "frozen": (frozen, (ROW,)),
        "conv": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval(), (torch.ones(1, 3, 8, 8),)),
        "channels_last": (nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), (torch.ones(1, 3, 8, 8),)),
        "transformer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (torch.ones(1, 4, 8),)),
        "lstm": (nn.LSTM(3, 4), (torch.ones(5, 1, 3),)),
        "in_place": (nn.Sequential(plain, nn.ReLU(inplace=True), nn.Linear(4, 2), nn.ReLU(inplace=True)), (ROW,)),
        "found": (Found(), (ROW,)),
        "nested": (nn.Sequential(nn.Sequential(nn.Linear(3, 2), nn.Sequential(nn.Linear(2, 2))), nn.Tanh()), (ROW,)),
        "tied": (Tied(), (torch.tensor([[0, 1]]),)),
        "constants": (Constants(), (torch.ones(2),)),
        "views": (views(), (ROW,)),
        "dtypes": (every_dtype(), (ROW,)),
        "bfloat16": (nn.Linear(3, 4).bfloat16(), (ROW.bfloat16(),)),
        "float16": (Holder({"w": torch.randn(3, 4).half()}, {"b": torch.randn(2).half()}), (ROW,)),
        "integers": (Holder({"i": torch.arange(6)}, {"u": torch.arange(6, dtype=torch.uint8).reshape(2, 3)}), (ROW,)),
        "complex": (Holder({"c": ROW.cfloat() * 1j}, {"d": ROW.cdouble() * 2j}), (ROW,)),
        "scalars": (Holder({"s": torch.tensor(1.5)}, {"n": torch.tensor(3)}), (ROW,)),
        "empty": (Holder({"e": torch.zeros(0, 3)}, {"f": torch.zeros(2, 0), "g": torch.zeros(0)}), (ROW,)),
        "no_parameters": (nn.ReLU(), (ROW,)),
        "overlapping": (overlapping(), (ROW,)),
        "shapes": (Shapes(), (torch.ones(4, 6), torch.ones(3, 3))),
        "buffers": (Holder({"w": torch.ones(2)}, {"kept": ROW}, left=torch.arange(3), out=ROW.bfloat16()), (ROW,)),
        WRAPPED: (Wrapped(), (ROW,)),
    }  # fmt: skip


NAMES = (
    "linear", "frozen", "conv", "channels_last", "transformer", "lstm", "in_place", "found", "nested", "tied", "constants",
    "views", "dtypes", "bfloat16", "float16", "integers", "complex", "scalars", "empty", "no_parameters", "overlapping",
    "shapes", "buffers", WRAPPED,
)  # fmt: skip
PLAIN = [name for name in NAMES if name != WRAPPED]


def shapes_of(name: str) -> Any:
    if name != "shapes":
        return None
    dim = torch.export.Dim
    return ({0: dim("b", min=3, max=64), 1: 2 * dim("h", min=2, max=99)}, {0: dim("q")})


@pytest.fixture(scope="session")
def exported() -> dict[str, torch.export.ExportedProgram]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            name: torch.export.export(module, inputs, dynamic_shapes=shapes_of(name))
            for name, (module, inputs) in programs().items()
        }


@pytest.fixture(scope="session")
def files(exported: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The programs as files."""
    folder = tmp_path_factory.mktemp("exported")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, program in exported.items():
            torch.export.save(program, folder / f"{name}.pt2")
    return {name: folder / f"{name}.pt2" for name in exported}


@pytest.fixture(scope="session")
def loaded(files: dict[str, Path]) -> Callable[[str], dict[str, torch.Tensor]]:
    """The weights and constants of a program, as torch loads them."""
    known: dict[str, dict[str, torch.Tensor]] = {}

    def load(name: str) -> dict[str, torch.Tensor]:
        if name not in known:
            program = torch.export.load(files[name])
            known[name] = {**program.state_dict, **program.constants}
        return known[name]

    return load


def groups(tensors: dict[str, torch.Tensor]) -> list[list[str]]:
    """The names that share a storage."""
    by_storage: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.untyped_storage().nbytes():
            by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    return sorted(sorted(names) for names in by_storage.values() if len(names) > 1)


def test_there_are_twenty_programs():
    assert tuple(programs()) == NAMES
    assert len(PLAIN) >= 20


@pytest.mark.parametrize("name", PLAIN)
def test_programs_are_as_torch_loads_them(name, files, loaded, exported):
    expected = loaded(name)
    # torch gives empty tensors the flag of the first one, as they have one member.
    trained = {
        key: tensor.requires_grad
        for key, tensor in {**exported[name].state_dict, **exported[name].constants}.items()
    }
    assert all(trained[key] == tensor.requires_grad for key, tensor in expected.items() if tensor.numel())
    with rustload.open(files[name]) as ckpt:
        assert ckpt.format == "torch-export"
        assert sorted(ckpt) == sorted(expected)
        assert groups(expected) == sorted(sorted(names) for names in ckpt.tied)
        assert not ckpt.opaque
        for key, tensor in expected.items():
            found = ckpt[key]
            assert found.dtype == str(tensor.dtype).removeprefix("torch."), key
            assert (found.shape, found.strides) == (tuple(tensor.shape), tensor.stride()), key
            assert found.is_parameter == isinstance(tensor, torch.nn.Parameter), key
            assert found.requires_grad == trained[key], key
            assert bits(found.materialize(framework="torch")) == bits(tensor), key
    tensors = rustload.torch.load(files[name])
    assert sorted(tensors) == sorted(expected)
    assert groups(tensors) == groups(expected)
    for key, tensor in expected.items():
        found = tensors[key]
        assert type(found) is type(tensor), key
        assert (found.stride(), found.storage_offset()) == (tensor.stride(), tensor.storage_offset()), key
        assert (found.dtype, found.requires_grad) == (tensor.dtype, trained[key]), key
        assert bits(found) == bits(tensor), key


@pytest.mark.parametrize("name", NAMES)
def test_scans_of_honest_programs_have_the_honest_findings(name, files):
    report = rustload.scan(files[name])
    assert report.complete
    assert report.files[0].format == "torch-export"
    findings = {(finding.code, finding.name) for finding in report.findings}
    if name == WRAPPED:
        # The class is one of another module, which loading imports.
        assert report.verdict == "unknown"
        assert {code for code, _ in findings} == {"Import", "DisallowedCall"}
    else:
        assert (report.verdict, findings) == ("inert", set())


def test_a_tensor_subclass_is_read_as_its_tensors(files):
    with rustload.open(files[WRAPPED]) as ckpt:
        assert sorted(ckpt) == ["b", "w.a", "w.b"]
        assert [(found.class_name, found.at) for found in ckpt.opaque] == [
            (TwoTensor.__module__ + ".TwoTensor", ["w"])
        ]
        assert bits(ckpt["w.a"].materialize(framework="torch")) == bits(torch.arange(6.0))
        assert ckpt["w.b"].path == ("w", "b")
        assert list(ckpt.objects) == ["b", "w"]
        assert ckpt.files == [str(files[WRAPPED])]
    with pytest.raises(rustload.errors.DisallowedError):
        rustload.open(files[WRAPPED], unknown="error")


def test_constants_are_noted(files):
    with rustload.open(files["buffers"]) as ckpt:
        assert list(ckpt) == ["w", "kept", "left", "out"]
        assert [note for note in ckpt.notes if "constants" in note and "left, out" in note]
        assert not ckpt["left"].is_parameter


def test_storages_state_their_device(files):
    def change(name: str, data: bytes) -> bytes:
        device = b'"device": {"type": "cuda", "index": 1}'
        return (
            data.replace(b'"device": {"type": "cpu", "index": null}', device) if "_config" in name else data
        )

    asked = []
    rustload.torch.load(
        repacked(files["linear"], change), map_location=lambda storage, at: asked.append(at) or storage
    )
    assert asked == ["cuda:1", "cuda:1"]


def test_every_verb_reads_a_program(files, loaded, tmp_path, capsys):
    path, expected = files["transformer"], loaded("transformer")
    with rustload.open(path) as ckpt:
        assert {name for name, _ in ckpt.stream()} == set(expected)
        assert len(ckpt.materialize()) == len(expected)
        assert sorted(ckpt.select("linear1.*")) == ["linear1.bias", "linear1.weight"]
    module, _ = programs()["transformer"]
    for parameter in module.parameters():
        torch.nn.init.zeros_(parameter)
    rustload.torch.load_into(module, path)
    for key, value in module.state_dict().items():
        assert bits(value) == bits(expected[key]), key
    rustload.convert(path, tmp_path / "m.safetensors")
    report = rustload.diff(path, tmp_path / "m.safetensors")
    assert report.equal, str(report)
    with rustload.safe_open(path, framework="pt") as file:
        assert sorted(file.keys()) == sorted(expected)
        assert bits(file.get_tensor("norm1.weight")) == bits(expected["norm1.weight"])
    with rustload.open(path) as ckpt:
        assert ckpt["norm1.weight"].stats().total == 8
    from rustload.__main__ import main

    for verb in ("info", "scan", "stats"):
        assert main([verb, str(path)]) == 0
    assert "torch-export" in capsys.readouterr().out


def test_buffers_that_are_not_persistent_are_left_out_by_selection(files):
    module, _ = programs()["buffers"]
    with rustload.open(files["buffers"]) as ckpt:
        rustload.torch.load_into(module, ckpt.select(["w", "kept"]))


def test_several_programs_have_their_names_in_front(exported, tmp_path):
    path = tmp_path / "two.pt2"
    models = {"encoder": exported["linear"], "decoder": exported[WRAPPED], "x.y": exported["constants"]}
    package_pt2(str(path), exported_programs=models, extra_files={"note.npy": "no array"})
    names = {"encoder.weight", "encoder.bias", "decoder.b", "decoder.w.a", "decoder.w.b"}
    names |= {f"x.y.{name}" for name in exported["constants"].constants}
    with rustload.open(path) as ckpt:
        assert set(ckpt) == names
        assert ckpt["decoder.w.a"].materialize(framework="torch").shape == (2, 3)
        assert set(ckpt.objects) == {"encoder.weight", "encoder.bias", "decoder.b", "decoder.w"} | {
            name for name in names if name.startswith("x.y")
        }


def test_a_deflated_archive_reads_the_same(files):
    for name in ("transformer", "views", WRAPPED):
        data = deflated(files[name])
        with rustload.open(data) as ckpt, rustload.open(files[name]) as stored:
            assert list(ckpt) == list(stored)
            for key in ckpt:
                same = ckpt[key].materialize(framework="torch"), stored[key].materialize(framework="torch")
                assert bits(same[0]) == bits(same[1])
        assert rustload.scan(data).complete


def test_big_endian_programs_are_swapped(files, loaded):
    def swap(name: str, data: bytes) -> bytes:
        if name.endswith("/byteorder"):
            return b"big"
        if "/weight_" in name:
            return struct.pack(f">{len(data) // 4}f", *struct.unpack(f"<{len(data) // 4}f", data))
        return data

    with rustload.open(repacked(files["linear"], swap)) as ckpt:
        for key, tensor in loaded("linear").items():
            assert bits(ckpt[key].materialize(framework="torch")) == bits(tensor)


@pytest.fixture
def pickled(files, exported, tmp_path) -> Path:
    """A program as torch 2.8 wrote it: with state dicts in place of configurations, which torch 2.13 reads too."""
    program = exported["tied"]

    def change(name: str, data: bytes) -> bytes | None:
        if name.endswith("model_weights_config.json") or "/weight_" in name:
            return None
        return None if name.endswith("model_constants_config.json") else data

    path = tmp_path / "pickled.pt2"
    path.write_bytes(repacked(files["tied"], change))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("tied/data/weights/model.pt", saved(dict(program.state_dict)))
        archive.writestr("tied/data/constants/model.pt", saved({"c": torch.arange(3.0)}))
    return path


def test_pickled_weights_of_torch_2_8(pickled):
    theirs = torch.export.load(pickled).state_dict
    with rustload.open(pickled) as ckpt:
        assert (ckpt.format, sorted(ckpt)) == ("torch-export", sorted([*theirs, "c"]))
        assert ckpt.tied == [["embed.weight", "head.weight"]]
        assert bits(ckpt["head.weight"].materialize(framework="torch")) == bits(theirs["head.weight"])
        assert ckpt["head.weight"].is_parameter
        assert [note for note in ckpt.notes if "constants" in note]
    tensors = rustload.torch.load(pickled)
    assert groups(tensors) == [["embed.weight", "head.weight"]]
    assert rustload.scan(pickled).verdict == "inert"


def test_archives_before_torch_2_8(exported, tmp_path):
    path = tmp_path / "old.pt2"
    state = dict(exported["tied"].state_dict)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("version", "8.2")
        archive.writestr("serialized_exported_program.json", "{}")
        archive.writestr("serialized_state_dict.pt", saved(state))
        archive.writestr("serialized_constants.pt", saved({}))
        archive.writestr("serialized_example_inputs.pt", saved((torch.ones(2),)))
    with rustload.open(path) as ckpt:
        assert (ckpt.format, sorted(ckpt)) == ("torch-export", sorted(state))
        assert bits(ckpt["embed.weight"].materialize(framework="torch")) == bits(state["embed.weight"])
    assert sorted(rustload.torch.load(path)) == sorted(state)
    assert rustload.scan(path).verdict == "inert"
    # What the caller of `load` gets as text is not interpreted.
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("extra_files/a", "x")
    assert sorted(rustload.open(path)) == sorted(state)
    assert rustload.scan(path).verdict == "unknown"


def test_the_schema_of_graphs_is_that_of_the_installed_torch():
    generator = runpy.run_path(str(Path(__file__).parents[1] / "data/make_export_schema.py"))
    assert generator["TARGET"].read_text() == generator["text"]()


def test_fake_tensors_are_meta_tensors(tmp_path):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        module = torch.nn.Linear(3, 4)
        inputs = torch.ones(2, 3)
    with mode:
        program = torch.export.export(module, (inputs,))
        torch.export.save(program, tmp_path / "fake.pt2")
    with rustload.open(tmp_path / "fake.pt2") as ckpt:
        assert (ckpt["weight"].shape, ckpt["weight"].is_parameter) == ((4, 3), True)
        with pytest.raises(UnsupportedError) as caught:
            ckpt["weight"].materialize(framework="dlpack")
        assert caught.value.code == "MetaTensor"


def test_custom_objects_are_listed_and_never_loaded(files):
    """What `_package_constants` writes for a TorchScript object and for another one."""

    def change(name: str, data: bytes) -> bytes:
        if not name.endswith("model_constants_config.json"):
            return data
        config = json.loads(data)
        for path_name in ("custom_obj_0", "opaque_obj_0"):
            config["config"][path_name[:6]] = {
                "path_name": path_name, "is_param": False, "use_pickle": True, "tensor_meta": None,
            }  # fmt: skip
        return json.dumps(config).encode()

    script = (
        torch._C._pickle_save(torch.classes.quantized.LinearPackedParamsBase) if False else saved({"a": 1})
    )
    file = io.BytesIO(repacked(files["linear"], change))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("linear/data/constants/custom_obj_0", script)
        archive.writestr("linear/data/constants/opaque_obj_0", pickle.dumps(Reduced(os.system, ("true",))))
    with rustload.open(file.getvalue()) as ckpt:
        assert sorted(ckpt) == ["bias", "weight"]
        listed = {found.class_name: found.at for found in ckpt.opaque}
        assert listed == {"torch.ScriptObject": ["custom"], "builtins.object": ["opaque"]}
    report = rustload.scan(file.getvalue())
    assert report.verdict == "would execute"
    assert any(step.name == "system" for step in report.trace)


def test_torch_runs_what_the_scan_reports(files, tmp_path):
    """The expressions of a graph and its sample inputs: torch executes the payloads that the scan finds."""
    canary = tmp_path / "canary"

    call = f"__import__('os').system('touch {canary}')"
    changes = {
        "models/shapes.json": lambda data: re.sub(
            rb'"expr_str": "[^"]*"', f'"expr_str": "{call}"'.encode(), data
        ),
        "data/sample_inputs/model.pt": lambda _: saved(((Reduced(os.system, (f"touch {canary}",)),), {})),
    }
    changes["models/model.json"] = changes.pop("models/shapes.json")
    for member, change in changes.items():
        path = tmp_path / "evil.pt2"
        path.write_bytes(
            repacked(
                files["shapes"], lambda name, data, m=member, c=change: c(data) if name.endswith(m) else data
            )
        )
        assert rustload.scan(path).verdict == "would execute", member
        rustload.open(path)
        assert not canary.exists()
        with contextlib.suppress(Exception):
            torch.export.load(path)
        assert canary.exists(), member
        canary.unlink()
