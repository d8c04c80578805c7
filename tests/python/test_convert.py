"""`rustload.convert`: files and folders of every format become what the reference libraries write and read."""

import ast
import errno
import json
import os
import pickle
import random
import re
import shutil
import time
import warnings
from pathlib import Path
from typing import Any

import huggingface_hub
import make_kinds
import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from attacks import CASES
from quiet import within
from support import (
    assert_same_bits,
    child,
    contents,
    divided,
    module_of,
    names,
    sizes_of,
    sparse,
    write_shards,
)

import rustload
from rustload._save.objects import Objects

PT = {"format": "pt"}
FOUR_BITS = {"float4_e2m1fn_x2"}
"""Dtypes that torch cannot compare."""


def below(folder: Path) -> list[str]:
    """The paths of all files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def model() -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    layers = {
        f"layers.{at}.{name}": torch.randn(6, 4) for at in range(4) for name in ("q.weight", "k.weight")
    }
    return {"embed.weight": torch.randn(10, 4), **layers, "norm.bias": torch.randn(4), "ids": torch.arange(3)}


def test_a_file_of_any_format_becomes_what_the_reference_writes(tmp_path):
    tensors = model()
    expected = safetensors.torch.save(tensors, metadata=PT)
    torch.save(tensors, tmp_path / "zip.pt")
    torch.save(tensors, tmp_path / "legacy.ckpt", _use_new_zipfile_serialization=False)
    safetensors.torch.save_file(tensors, tmp_path / "plain.sft")
    np.savez(tmp_path / "arrays.npz", **{name: tensor.numpy() for name, tensor in tensors.items()})
    for name in ("zip.pt", "legacy.ckpt", "plain.sft", "arrays.npz"):
        report = rustload.convert(tmp_path / name)
        path = tmp_path / f"{name.partition('.')[0]}.safetensors"
        assert path.read_bytes() == expected, name
        assert report == report._replace(
            path=str(path), files={path.name: len(expected)}, tensors=len(tensors), nbytes=len(expected),
            dropped={}, packed=[], converted=0, skipped_objects=0,
        )  # fmt: skip
    with (tmp_path / "zip.pt").open("rb") as file:
        for source in ((tmp_path / "zip.pt").read_bytes(), file):
            rustload.convert(source, tmp_path / "memory.safetensors", overwrite=True)
            assert (tmp_path / "memory.safetensors").read_bytes() == expected


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("pytorch_model.bin", "model.safetensors"),
        ("pytorch_model-00001-of-00002.bin", "model-00001-of-00002.safetensors"),
        ("diffusion_pytorch_model.fp16.bin", "diffusion_pytorch_model.fp16.safetensors"),
        ("adapter_model.bin", "adapter_model.safetensors"),
        ("consolidated.00.pth", "consolidated.00.safetensors"),
        ("step=1.5-last", "step=1.5-last.safetensors"),
        ("my_pytorch_model.PT", "my_pytorch_model.safetensors"),
    ],
)
def test_only_a_name_that_starts_with_pytorch_model_changes(source, target, tmp_path):
    torch.save({"x": torch.zeros(2)}, tmp_path / source)
    assert list(rustload.convert(tmp_path / source).files) == [target]
    assert below(tmp_path) == sorted([source, target])


def test_selected_tensors_are_renamed_cast_and_transposed(tmp_path):
    weights = {f"module.{name}": tensor for name, tensor in model().items()}
    state = {
        "epoch": 3,
        "model": weights,
        "optimizer": {"state": {0: {"step": 5, "exp_avg": torch.zeros(9)}}, "param_groups": [{"lr": 0.1}]},
    }
    torch.save(state, tmp_path / "last.ckpt")
    report = rustload.convert(
        tmp_path / "last.ckpt",
        tmp_path / "weights.safetensors",
        select="model.*",
        key="model",
        strip="module",
        rename={"layers": "blocks", "norm": None},
        dtype="bfloat16",
        transpose={"*.q.weight": True},
    )
    expected = {
        name.replace("layers.", "blocks."): tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in model().items()
        if name != "norm.bias"
    }
    expected |= {name: tensor.T.contiguous() for name, tensor in expected.items() if "q.weight" in name}
    assert (tmp_path / "weights.safetensors").read_bytes() == safetensors.torch.save(expected, metadata=PT)
    assert (report.tensors, report.converted, report.skipped_objects) == (10, 9, 3)
    assert str(report).startswith("wrote 10 tensors, ")
    assert ", 1 file, 3 other values left out (epoch, ...), in " in str(report)


def test_a_sharded_folder_of_transformers_keeps_its_shards(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16)
    torch.manual_seed(0)
    gpt = transformers.GPT2LMHeadModel(config)
    source = tmp_path / "gpt"
    state = gpt.state_dict()
    write_shards(
        source, divided({name: value for name, value in state.items() if name != "lm_head.weight"}, 3), "bin"
    )
    config.save_pretrained(source)
    (source / "tokenizer.json").write_text('{"version": "1.0"}')
    (source / "training_args.bin").write_bytes(pickle.dumps({"lr": 1}))
    (source / "renamed.dat").write_bytes(pickle.dumps({"lr": 1}))
    (source / ".cache").mkdir()
    (source / ".cache" / "x").write_text("x")
    report = rustload.convert(source, tmp_path / "out", copy_others=True)
    shards = [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    index = "model.safetensors.index.json"
    assert set(report.files) == {*shards, index, "config.json", "tokenizer.json"}
    assert below(tmp_path / "out") == sorted(report.files)
    for name in ("config.json", "tokenizer.json"):
        assert (tmp_path / "out" / name).read_bytes() == (source / name).read_bytes()
    text = (tmp_path / "out" / index).read_text()
    document = json.loads(text)
    old = json.loads((source / "pytorch_model.bin.index.json").read_text())
    assert text == json.dumps(document, indent=2, sort_keys=True) + "\n"
    assert document["metadata"] == old["metadata"]
    assert document["weight_map"] == {
        name: file.replace("pytorch_model", "model").replace(".bin", ".safetensors")
        for name, file in old["weight_map"].items()
    }
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    for name, value in state.items():
        assert_same_bits(again.state_dict()[name], value)
    accelerate = pytest.importorskip("accelerate")
    for shard in shards:
        found = accelerate.utils.modeling.load_state_dict(str(tmp_path / "out" / shard))
        assert found.keys() == {name for name, file in document["weight_map"].items() if file == shard}

    # Again, in half of the precision and in place: what other files there are stays.
    before = contents(tmp_path / "out")
    rustload.convert(tmp_path / "out", dtype="bfloat16", overwrite=True)
    after = contents(tmp_path / "out")
    assert after.keys() == before.keys()
    assert all((after[name] == before[name]) == (not name.startswith("model")) for name in before)
    assert transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


def test_the_files_of_a_folder_are_joined_by_those_made_of_them(tmp_path):
    write_shards(tmp_path / "m", divided(model(), 2), "bin")
    (tmp_path / "m" / "config.json").write_text("{}")
    before = contents(tmp_path / "m")
    report = rustload.convert(tmp_path / "m")
    assert report.path == str(tmp_path / "m")
    after = contents(tmp_path / "m")
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == report.files.keys()
    with pytest.raises(FileExistsError) as caught:
        rustload.convert(tmp_path / "m")
    assert "overwrite=True" in caught.value.__notes__[0]
    assert contents(tmp_path / "m") == after
    assert names(tmp_path) == ["m"]


def test_an_index_and_a_list_of_shards_are_taken_for_their_folder(tmp_path, monkeypatch):
    write_shards(tmp_path / "m", divided(model(), 2), "bin")
    (tmp_path / "m" / "config.json").write_text("{}")
    rustload.convert(tmp_path / "m", tmp_path / "out", copy_others=True)
    expected = contents(tmp_path / "out")
    monkeypatch.chdir(tmp_path / "m")
    shards = sorted(path.name for path in Path().glob("*.bin"))
    for number, source in enumerate((".", "pytorch_model.bin.index.json", shards)):
        report = rustload.convert(source, f"../out{number}/", copy_others=True)
        assert contents(tmp_path / f"out{number}") == expected, source
        assert sorted(report.files) == sorted(expected)
    with pytest.warns(rustload.RustloadWarning, match="was replaced by a new folder"):
        assert rustload.convert("pytorch_model.bin.index.json").path == "."
    assert contents(tmp_path / "m").keys() == {*shards, "pytorch_model.bin.index.json", *expected}


def test_shards_are_divided_anew_as_the_hub_does(tmp_path):
    source = random.Random(3)
    for number in range(40):
        tensors = {f"t{at}": torch.randn(source.randint(1, 60)) for at in range(source.randint(2, 14))}
        count = source.randint(1, 3)
        folder, out, limit = tmp_path / f"m{number}", tmp_path / f"out{number}", source.randint(40, 500)
        write_shards(folder, divided(tensors, count), "bin")
        in_order = {name: tensors[name] for name in rustload.open(folder)}
        split = huggingface_hub.split_torch_state_dict_into_shards(in_order, max_shard_size=limit)
        report = rustload.convert(folder, out, max_shard_size=limit, fsync=False)
        found = {name: sorted(rustload.open(out / name)) for name in report.files if name.endswith("tensors")}
        assert found == {name: sorted(some) for name, some in split.filename_to_tensors.items()}, number
        for name, tensor in rustload.open(out).items():
            assert_same_bits(tensor.torch(), tensors[name])
    rustload.convert(tmp_path / "m3", tmp_path / "whole.safetensors")
    whole = safetensors.torch.load_file(tmp_path / "whole.safetensors")
    assert whole.keys() == rustload.open(tmp_path / "m3").keys()
    rustload.convert(tmp_path / "whole.safetensors", tmp_path / "named", name="weights", max_shard_size=100)
    assert "weights.safetensors.index.json" in below(tmp_path / "named")


def test_shards_without_selected_tensors_are_not_written(tmp_path):
    tensors = {f"t{at}": torch.full((2,), float(at)) for at in range(3)}
    write_shards(tmp_path / "m", divided(tensors, 3), "bin")
    two = rustload.convert(tmp_path / "m", tmp_path / "two", select=["t0", "t2"])
    assert sorted(two.files) == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
    ]  # fmt: skip
    assert rustload.open(tmp_path / "two")["t2"].numpy().tolist() == [2, 2]
    assert list(rustload.convert(tmp_path / "m", tmp_path / "one", select="t1").files) == [
        "model.safetensors"
    ]


def test_a_pipeline_of_diffusers_is_converted_with_its_variants(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, block_out_channels=(8, 8),
        norm_num_groups=2, down_block_types=("DownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    source, out = tmp_path / "pipeline", tmp_path / "out"
    diffusers.DDPMPipeline(unet, diffusers.DDPMScheduler()).save_pretrained(source, safe_serialization=False)
    unet.half().save_pretrained(source / "unet", safe_serialization=False, variant="fp16")
    unet.save_pretrained(source / "unet", safe_serialization=False, variant="bf16", max_shard_size="10KB")
    report = rustload.convert(source, out, copy_others=True)
    shards = [name for name in report.files if "bf16-" in name]
    assert len(shards) > 1
    assert set(report.files) == {
        *shards,
        "model_index.json",
        "scheduler/scheduler_config.json",
        "unet/config.json",
        "unet/diffusion_pytorch_model.safetensors",
        "unet/diffusion_pytorch_model.fp16.safetensors",
        "unet/diffusion_pytorch_model.safetensors.index.bf16.json",
    }
    assert below(out) == sorted(report.files)
    for variant in (None, "fp16", "bf16"):
        expected = diffusers.UNet2DModel.from_pretrained(
            source / "unet", variant=variant, use_safetensors=False
        )
        found = diffusers.UNet2DModel.from_pretrained(out / "unet", variant=variant, use_safetensors=True)
        for name, value in expected.state_dict().items():
            assert_same_bits(found.state_dict()[name], value)
    diffusers.DDPMPipeline.from_pretrained(out, use_safetensors=True)
    # One of them is divided anew, and keeps its name.
    one = rustload.convert(source / "unet", tmp_path / "unet", max_shard_size="10KB")
    assert "diffusion_pytorch_model.safetensors.index.fp16.json" in one.files


def test_a_folder_with_files_of_other_names_is_converted_as_it_opens(tmp_path):
    source = tmp_path / "m"
    (source / "checkpoint-1").mkdir(parents=True)
    torch.save(model(), source / "best.pt")
    torch.save(model(), source / "checkpoint-1" / "pytorch_model.bin")
    assert list(rustload.convert(source, tmp_path / "out").files) == ["best.safetensors"]
    torch.save(model(), source / "last.pt")
    with pytest.raises(rustload.FormatError, match="nothing says which"):
        rustload.convert(source, tmp_path / "out2")
    # Beside the parts of a pipeline, they are the same model in one file.
    (source / "model_index.json").write_text("{}")
    report = rustload.convert(source, tmp_path / "out3", copy_others=True)
    assert sorted(report.files) == ["checkpoint-1/model.safetensors", "model_index.json"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(rustload.FormatError, match="no checkpoint"):
        rustload.convert(tmp_path / "empty", tmp_path / "out4")
    assert names(tmp_path) == ["empty", "m", "out", "out3"]


def test_modules_of_sentence_transformers_are_converted(tmp_path):
    source = tmp_path / "m"
    (source / "2_Dense").mkdir(parents=True)
    (source / "checkpoint-10").mkdir()
    for folder in (source, source / "2_Dense", source / "checkpoint-10"):
        torch.save(model(), folder / "pytorch_model.bin")
    # Other subfolders are not parts of the model unless a file says so.
    assert list(rustload.convert(source, tmp_path / "one").files) == ["model.safetensors"]
    (source / "modules.json").write_text("[]")
    several = rustload.convert(source, tmp_path / "several", select="embed.*")
    assert "2_Dense/model.safetensors" in several.files
    assert several.tensors == 3
    with pytest.raises(ValueError, match="3 checkpoints") as caught:
        rustload.convert(source, tmp_path / "m.safetensors")
    assert "as the target" in caught.value.__notes__[0]


def test_metadata_of_a_safetensors_source_are_kept(tmp_path):
    tensors = model()
    (tmp_path / "m").mkdir()
    safetensors.torch.save_file(tensors, tmp_path / "m" / "a.safetensors", metadata={"by": "me", "step": "1"})
    rustload.convert(tmp_path / "m" / "a.safetensors", tmp_path / "b.safetensors", metadata={"step": "2"})
    assert rustload.open(tmp_path / "b.safetensors").metadata == {"by": "me", "format": "pt", "step": "2"}
    rustload.convert(tmp_path / "m", tmp_path / "s", max_shard_size=100)
    rustload.convert(tmp_path / "s", tmp_path / "again")
    for name in ("s", "again"):
        shard = next((tmp_path / name).glob("*-00001-of-*.safetensors"))
        assert rustload.open(shard).metadata == {"by": "me", "format": "pt", "step": "1"}
    assert contents(tmp_path / "s") == contents(tmp_path / "again")
    nested = {"a": [torch.zeros(1), torch.ones(1)]}
    rustload.save(nested, tmp_path / "n.safetensors", keep_nesting=True)
    rustload.convert(tmp_path / "n.safetensors", tmp_path / "kept.safetensors")
    assert rustload.unflatten(rustload.open(tmp_path / "kept.safetensors"))["a"][1].numpy() == [1]
    rustload.convert(tmp_path / "n.safetensors", tmp_path / "part.safetensors", select="a.1")
    assert rustload.open(tmp_path / "part.safetensors").metadata == PT


def test_ties_and_views_are_reported(tmp_path):
    weight = torch.randn(4, 3)
    torch.save({"embed": weight, "head": weight, "rows": weight[:2]}, tmp_path / "m.bin")
    report = rustload.convert(tmp_path / "m.bin", ties="drop", keep="head")
    assert (report.dropped, report.packed) == ({"embed": "head"}, ["rows"])
    assert rustload.open(tmp_path / "m.safetensors").metadata == {"embed": "head", "format": "pt"}
    with pytest.raises(ValueError, match="'embed' = 'head'"):
        rustload.convert(tmp_path / "m.bin", overwrite=True, ties="error")


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        ({"strip": "module"}, {"head": "embed"}),
        ({"key": "module"}, {"head": "embed"}),
        ({"key": ("module",)}, None),
        ({"rename": {"module.embed": "emb", "module.other": "module.embed"}}, {"module.head": "emb"}),
        ({"rename": [("^module", "m")]}, {"m.head": "m.embed"}),
        ({"rename": {"module.other": "module.head"}}, {}),
        ({"rename": {"module.embed": None}}, {}),
        ({"rename": {"module.head": None}}, {}),
        ({"select": "module.other"}, {}),
        ({"select": "module.embed", "strip": "module"}, {"head": "embed"}),
    ],
)
def test_ties_of_a_header_are_renamed_like_tensors(options, texts, tmp_path):
    embed = torch.ones(2)
    tensors = {"module.embed": embed, "module.head": embed, "module.other": torch.zeros(2)}
    source = tmp_path / "m.safetensors"
    rustload.save(tensors, source, ties="drop", metadata={"by": "me"})
    assert rustload.open(source).metadata["module.head"] == "module.embed"
    for target in ("new.safetensors", "folder"):
        if texts is None:  # the paths of names in safetensors files have one part
            with pytest.raises(ValueError, match="no tensor is under key"):
                rustload.convert(source, tmp_path / target, **options)
            continue
        rustload.convert(source, tmp_path / target, **options)
        assert rustload.open(tmp_path / target).metadata == {"by": "me", "format": "pt"} | texts


def test_a_nesting_is_not_kept_of_tensors_that_change_names(tmp_path):
    rustload.save({"a": torch.zeros(1), "b": [torch.ones(1)]}, tmp_path / "m.safetensors", keep_nesting=True)
    rustload.convert(tmp_path / "m.safetensors", tmp_path / "n.safetensors", rename={"a": "b.0", "b.0": "a"})
    assert rustload.open(tmp_path / "n.safetensors").metadata == PT


class Opaque:
    """Pickled by name: a class that rustload does not know."""


def test_values_that_are_no_tensors_are_written_as_json(tmp_path):
    shared = [1, 2]
    state = {
        "w": torch.zeros(2),
        "only": {"tensors": {"x": torch.zeros(1)}},
        "plain": {"a": None, "b": True, "c": -(2**63), "d": "ü\ud800", "e": 0.1, 7: (1, [2.5])},
        "special": [float("inf"), 2**80, complex(1, -2), b"\x00\xff", {3, 1}, torch.ones(1)],
        "keys": {(1, 2): "pair", 1: "int", "1": "str", 2: torch.zeros(1)},
        "classes": [Opaque(), torch.nn.Linear],
        "again": [shared, shared],
    }
    torch.save(state, tmp_path / "m.bin")
    texts = []
    for _ in range(2):
        report = rustload.convert(tmp_path / "m.bin", objects=tmp_path / "m.json", overwrite=True)
        texts.append((tmp_path / "m.json").read_text())
    assert texts[0] == texts[1]
    assert report.skipped_objects == 20
    assert json.loads(texts[0]) == {
        "plain": {"a": None, "b": True, "c": -(2**63), "d": "ü\ud800", "e": 0.1, "7": [1, [2.5]]},
        "special": [
            {"$float": "inf"},
            {"$int": hex(2**80)},
            {"$complex": ["1.0", "-2.0"]},
            {"$bytes": "AP8="},
            [1, 3],
            {"$tensor": "special.5"},
        ],
        "keys": {"$dict": [[[1, 2], "pair"], [1, "int"], ["1", "str"]]},
        "classes": [{"$class": f"{Opaque.__module__}.Opaque"}, {"$global": "torch.nn.modules.linear.Linear"}],
        "again": [[1, 2], {"$same": "$.again[0]"}],
    }
    with pytest.raises(FileExistsError):
        rustload.convert(tmp_path / "m.bin", tmp_path / "new.safetensors", objects=tmp_path / "m.json")
    with pytest.raises(FileNotFoundError):
        rustload.convert(tmp_path / "m.bin", tmp_path / "new.safetensors", objects=tmp_path / "no" / "m.json")
    assert not (tmp_path / "new.safetensors").exists()
    rustload.convert(tmp_path / "m.bin", tmp_path / "out", objects=tmp_path / "out" / "m.json")
    assert below(tmp_path / "out") == ["m.json", "m.safetensors"]


def test_the_json_of_values_is_made_once(tmp_path, monkeypatch):
    calls, made = [], Objects.json
    monkeypatch.setattr(Objects, "json", lambda objects: calls.append(objects) or made(objects))
    torch.save({"w": torch.zeros(2), "epoch": 3}, tmp_path / "m.bin")
    rustload.convert(tmp_path / "m.bin", objects=tmp_path / "m.json")
    assert (len(calls), json.loads((tmp_path / "m.json").read_text())) == (1, {"epoch": 3})


def test_snapshots_of_the_hub_are_read_and_its_blobs_are_kept(tmp_path):
    hub = tmp_path / "hub" / "models--a--b"
    snapshot = hub / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (hub / "blobs").mkdir()
    (hub / "refs").mkdir()
    (hub / "refs" / "main").write_text("c0ffee")
    torch.save(model(), hub / "blobs" / "12")
    (hub / "blobs" / "34").write_text("{}")
    (snapshot / "pytorch_model.bin").symlink_to("../../blobs/12")
    (snapshot / "config.json").symlink_to("../../blobs/34")
    blobs = contents(hub / "blobs")
    report = rustload.convert(hub, tmp_path / "out", copy_others=True)
    assert sorted(report.files) == ["config.json", "model.safetensors"]
    assert not (tmp_path / "out" / "config.json").is_symlink()
    rustload.convert(snapshot)
    assert (snapshot / "pytorch_model.bin").is_symlink()
    assert (snapshot / "model.safetensors").read_bytes() == (
        tmp_path / "out" / "model.safetensors"
    ).read_bytes()
    for source, target in [(hub / "blobs" / "12", None), (snapshot, hub / "blobs")]:
        with pytest.raises(ValueError, match="blob of a Hugging Face cache"):
            rustload.convert(source, target, overwrite=True)
    (tmp_path / "secret").write_text("not of the repository")
    (snapshot / "notes.txt").symlink_to("../../../../secret")
    with pytest.raises(ValueError, match="outside of the folder"):
        rustload.convert(snapshot, tmp_path / "two", copy_others=True)
    assert contents(hub / "blobs") == blobs
    assert names(hub) == ["blobs", "refs", "snapshots"]


def test_a_second_run_writes_the_same_bytes(tmp_path):
    write_shards(tmp_path / "m", divided(model(), 3), "bin")
    (tmp_path / "m" / "config.json").write_text("{}")
    options: dict[str, Any] = {"dtype": "float16", "max_shard_size": 200, "copy_others": True}
    first = rustload.convert(tmp_path / "m", tmp_path / "out", **options)
    before = contents(tmp_path / "out")
    second = rustload.convert(tmp_path / "m", tmp_path / "out", overwrite=True, threads=1, **options)
    assert contents(tmp_path / "out") == before
    assert first._replace(seconds=0) == second._replace(seconds=0)


def test_what_has_no_form_is_refused_with_the_argument_to_use(tmp_path):
    with warnings.catch_warnings(action="ignore"):
        quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    target = tmp_path / "out.safetensors"
    target.write_bytes(b"old")
    cases: list[tuple[Any, str, str]] = [
        (torch.zeros(2, dtype=torch.complex128), "NotSafetensors", "dtype={'a.b': 'complex64'} to cast it, or pass rename="),
        (torch.empty(2, device="meta"), "MetaTensor", "rename={'a.b': None}"),
        (torch.eye(3).to_sparse(), "NotSafetensors", "rename={'a.b': None}"),
        (quantized, "NotSafetensors", "dequantize=True"),
    ]  # fmt: skip
    for value, code, advice in cases:
        torch.save({"a": {"b": value}, "ok": torch.zeros(1)}, tmp_path / "m.bin")
        with pytest.raises(rustload.UnsupportedError) as caught:
            rustload.convert(tmp_path / "m.bin", target, overwrite=True)
        assert (caught.value.code, target.read_bytes()) == (code, b"old")
        assert "a.b" in str(caught.value)
        assert any(advice in note for note in caught.value.__notes__), caught.value.__notes__
        rustload.convert(
            tmp_path / "m.bin", tmp_path / "ok.safetensors", rename={"a.b": None}, overwrite=True
        )
        assert list(rustload.open(tmp_path / "ok.safetensors")) == ["ok"]
    rustload.convert(tmp_path / "m.bin", target, dequantize=True, overwrite=True)
    assert_same_bits(safetensors.torch.load_file(target)["a.b"], quantized.dequantize())
    torch.save({"s": torch.eye(3).to_sparse()}, tmp_path / "m.bin")
    rustload.convert(tmp_path / "m.bin", target, select=["s.indices", "s.values"], overwrite=True)
    assert sorted(rustload.open(target)) == ["s.indices", "s.values"]
    np.savez(tmp_path / "o.npz", a=np.zeros(2), o=np.array([None], dtype=object))
    report = rustload.convert(tmp_path / "o.npz")
    assert (report.tensors, report.skipped_objects) == (1, 1)
    assert names(tmp_path) == [
        "m.bin", "o.npz", "o.safetensors", "ok.safetensors", "out.safetensors",
    ]  # fmt: skip


def test_wrong_arguments_leave_the_target_as_it_is(tmp_path):
    tensors = {"a.x": torch.zeros(2), "b.x": torch.zeros(2)}
    source, target = tmp_path / "m.bin", tmp_path / "out.safetensors"
    torch.save(tensors, source)
    target.write_bytes(b"old")
    write_shards(tmp_path / "m", divided(tensors, 2), "bin")
    error = rustload.RustloadError
    cases: list[tuple[dict[str, Any], type[BaseException], str]] = [
        ({}, FileExistsError, "out.safetensors"),
        ({"overwrite": True, "strip": ["a", "b"]}, ValueError, "both be named 'x'"),
        ({"overwrite": True, "rename": {"a": "c", "b": "c"}}, ValueError, "both be named 'c.x'"),
        ({"overwrite": True, "select": "c.x"}, rustload.TensorNotFoundError, "no tensor has that name"),
        ({"overwrite": True, "select": "c.*"}, rustload.TensorNotFoundError, "matches no name"),
        ({"overwrite": True, "dtype": {"c.x": "float16"}}, rustload.TensorNotFoundError, "c.x"),
        ({"overwrite": True, "key": "model"}, ValueError, "under key 'model'"),
        ({"overwrite": True, "dtype": {"a.x": "int8"}}, ValueError, "lossy"),
        ({"overwrite": True, "max_shard_size": "1GB"}, ValueError, "files of a folder"),
        ({"overwrite": True, "name": "x"}, ValueError, "files of a folder"),
        ({"overwrite": True, "copy_others": True}, ValueError, "folder to folder"),
        ({"overwrite": True, "ties": "share"}, ValueError, "ties="),
        ({"dst": tmp_path / "x.bin"}, ValueError, "no pickles"),
        ({"dst": tmp_path / "missing" / "x.safetensors"}, FileNotFoundError, "missing"),
        ({"src": tmp_path / "m", "dst": tmp_path / "x", "name": "a/b"}, ValueError, "not a name of a file"),
        ({"src": source.read_bytes(), "dst": None}, ValueError, "dst= is needed"),
        ({"src": tmp_path / "none.bin"}, FileNotFoundError, "none.bin"),
        ({"src": target}, error, "out.safetensors"),
    ]
    before = contents(tmp_path)
    for options, kind, text in cases:
        given: dict[str, Any] = {"src": source, "dst": target} | options
        with pytest.raises(kind, match=text):
            rustload.convert(given.pop("src"), given.pop("dst"), **given)
        assert contents(tmp_path) == before, options
    with pytest.warns(rustload.RustloadWarning, match=r"'c\.\*'"):
        rustload.convert(source, target, overwrite=True, select=["a.*", "c.*"])


def test_missing_shards_are_named(tmp_path):
    for number in (1, 3):
        torch.save({f"t{number}": torch.zeros(1)}, tmp_path / f"pytorch_model-0000{number}-of-00003.bin")
    with pytest.raises(rustload.FormatError, match="2 of the 3 shards"):
        rustload.convert(tmp_path, tmp_path / "out")
    torch.save({"t2": torch.zeros(1)}, tmp_path / "pytorch_model-00002-of-00003.bin")
    assert "model.safetensors.index.json" in rustload.convert(tmp_path, tmp_path / "out").files


def test_a_source_that_changes_leaves_nothing(tmp_path):
    write_shards(tmp_path / "m", divided(model(), 2), "bin")
    paths = sorted((tmp_path / "m").glob("*.bin"))

    def touch(tensor: Any) -> str:
        os.utime(paths[0], (1, 1))
        return "float16" if tensor.dtype == "float32" else tensor.dtype

    with pytest.raises(rustload.FormatError) as caught:
        rustload.convert(tmp_path / "m", tmp_path / "out", dtype=touch)
    assert caught.value.code == "FileChanged"
    assert caught.value.__notes__ == ["Open the checkpoint again once the writer is done."]
    assert names(tmp_path) == ["m"]


def test_a_full_disk_is_an_error_before_anything_is_written(tmp_path):
    size = shutil.disk_usage(tmp_path).free + (1 << 30)
    source = sparse(tmp_path / "large.safetensors", {"x": ("U8", [size])})
    if sizes_of(source)[1] > 1 << 20:
        pytest.skip("the file system of the temporary directory has no holes")
    for target in ("out.safetensors", "out"):
        with pytest.raises(OSError, match="No space left") as caught:
            rustload.convert(source, tmp_path / target)
        assert caught.value.errno == errno.ENOSPC
        assert "select=" in caught.value.__notes__[0]
    assert names(tmp_path) == ["large.safetensors"]


def test_a_read_only_folder_is_an_error_with_advice(tmp_path):
    torch.save({"x": torch.zeros(3)}, tmp_path / "m.bin")
    # Nobody, not even root, may write there.
    for target in ("/sys/m.safetensors", "/sys/out"):
        with pytest.raises(PermissionError) as caught:
            rustload.convert(tmp_path / "m.bin", target)
        assert "dst=" in caught.value.__notes__[0]


def test_ctrl_c_leaves_nothing_temporary(tmp_path):
    write_shards(tmp_path / "m", divided({f"t{at}": torch.zeros(1_000_000) for at in range(8)}, 2), "bin")
    code = """
    import _thread, threading, rustload
    threading.Timer(0.2, _thread.interrupt_main).start()
    try:
        while True:
            rustload.convert("m", "out", overwrite=True, fsync=False, dtype="float16")
            rustload.save(rustload.open("m"), "m.safetensors", fsync=False)
    except KeyboardInterrupt:
        print("interrupted")
    """
    assert child(code, cwd=tmp_path).stdout.strip() == "interrupted"
    assert set(names(tmp_path)) <= {"m", "out", "m.safetensors"}
    assert all(len(rustload.open(path)) == 8 for path in tmp_path.iterdir())


def test_converting_needs_neither_torch_nor_numpy(tmp_path):
    write_shards(tmp_path / "m", divided(model(), 2), "bin")
    code = """
    import sys, rustload
    print(rustload.convert(sys.argv[1], sys.argv[2], dtype="bfloat16", objects=sys.argv[3]).tensors)
    assert not {"torch", "numpy", "rustload._scan.scan"} & sys.modules.keys()
    """
    assert child(code, tmp_path / "m", tmp_path / "out", tmp_path / "o.json").stdout.split() == ["11"]


def test_20_000_tensors_take_600_ms_of_a_core(tmp_path):
    tensors = {f"layers.{at // 10}.w{at % 10}": torch.full((4,), float(at)) for at in range(20_000)}
    torch.save(tensors, tmp_path / "m.bin")
    taken = []
    for _ in range(3):
        # All threads together; other processes may share the cores.
        start = time.process_time()
        rustload.convert(tmp_path / "m.bin", overwrite=True, fsync=False)
        taken.append(time.process_time() - start)
    assert within(min(taken), 0.6), taken
    found = safetensors.torch.load_file(tmp_path / "m.safetensors")
    assert len(found) == 20_000
    assert found["layers.1999.w9"].tolist() == [19_999.0] * 4


def test_one_tensor_of_a_sparse_40_gb_archive_converts_within_a_second(tmp_path):
    sparse = module_of("tests/data/sparse.py")
    sparse.write_archive(tmp_path / "large.bin")
    if sizes_of(tmp_path / "large.bin")[1] > 64 << 20:
        pytest.skip("the file system of the temporary directory has no holes")
    start = time.perf_counter()
    rustload.convert(tmp_path / "large.bin", tmp_path / "tail.safetensors", select="tail")
    assert time.perf_counter() - start < 1
    found = safetensors.torch.load_file(tmp_path / "tail.safetensors")
    assert found.keys() == {"tail"}
    for at, data in sparse.planted("tail"):
        assert found["tail"][at].numpy().tobytes() == data
    (tmp_path / "large.bin").unlink()


@pytest.mark.filterwarnings("ignore")
def test_every_kind_of_object_converts_or_says_why_not(tmp_path):
    source, target = tmp_path / "kind.bin", tmp_path / "kind.safetensors"
    refused = {}
    for kind, make in make_kinds.KINDS.items():
        torch.save(make(), source)
        ckpt = rustload.open(source, framework="torch")
        options: dict[str, Any] = {"rename": {}, "overwrite": True, "fsync": False}
        while True:
            try:
                report = rustload.convert(source, target, **options)
                break
            except rustload.UnsupportedError as error:
                (advice,) = error.__notes__
                refused[kind] = error.code
                if "dequantize=True" in advice:
                    options["dequantize"] = True
                    continue
                name = re.search(r"rename=\{('.*?'|\".*?\"): None\}", advice)
                assert name is not None, (kind, advice)
                assert ast.literal_eval(name[1]) not in options["rename"], kind
                options["rename"][ast.literal_eval(name[1])] = None
        with safetensors.safe_open(target, "pt") as found:
            left = set(found.keys())
            assert report.tensors == len(left) <= len(ckpt), kind
            for name in left:
                if ckpt[name].dtype not in FOUR_BITS:
                    expected = ckpt[name].materialize(
                        copy=True, dequantize=ckpt[name].quantization is not None
                    )
                    assert_same_bits(found.get_tensor(name), expected.detach().contiguous())
        converted = rustload.open(target)
        dequantize = options.get("dequantize", False)
        same = rustload.diff(ckpt.select(left) if left else ckpt, converted, data=True, dequantize=dequantize)
        assert same.same or not left, (kind, str(same))
        assert not same.close, kind
        if kind not in refused:
            assert len(left) == len(ckpt), kind
            assert ckpt.fingerprint(data=True) == converted.fingerprint(data=True), kind
    assert set(refused.values()) == {"NotSafetensors", "MetaTensor", "DtypeUnsupported"}
    assert len(make_kinds.KINDS) - len(refused) > 60, refused


SLOW = {
    "N19-real",
    "N19-terabytes",
    "R08-lists",
    "R09-nones",
    "R10-binget",
    "R12",
    "R13",
    "R17-argument",
    "R17-name",
    "R17-ordered",
    "R17-pairs",
    "R20-tuple_key_fits",
    "R22-listed",
    "S17-half_a_million",
    "S22",
    "X86-batches",
    "X91-arguments",
    "X91-calls",
}
"""Cases that take long to build or convert, as they have up to a million tensors or values."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("letter", sorted({case.id[0] for case in CASES}))
def test_a_hostile_source_is_converted_or_refused_as_a_whole(letter, tmp_path, monkeypatch):
    canary, work = tmp_path / "canary", tmp_path / "work"
    canary.mkdir()
    monkeypatch.setenv("RUSTLOAD_CANARY", str(canary))
    cases = [
        case
        for case in CASES
        if case.id[0] == letter and case.build is not None and case.id != "X94" and case.label not in SLOW
    ]
    wrong = []
    for number, case in enumerate(cases):
        source = work / "source"
        source.mkdir(parents=True)
        path = case.input(source)
        options = {key: value for key, value in case.options.items() if key not in ("framework", "verify")}
        if "limits" in options:
            options["limits"] = rustload.Limits(**options["limits"])
        target = work / ("out.safetensors" if number % 2 else "out")
        before = names(source)
        try:
            report = rustload.convert(path, target, fsync=False, **options)
        except (rustload.RustloadError, OSError, ValueError, MemoryError) as error:
            found = getattr(error, "code", None), names(work)
            expected = found[0] or "a code", ["source"]
        else:
            found = report.tensors, names(work)
            expected = len(rustload.open(target)), sorted(["source", target.name])
        if found != expected or names(source) != before:
            wrong.append((case.label, found, expected))
        shutil.rmtree(work)
    assert not wrong
    assert names(canary) == []


@pytest.mark.parametrize("data", [False, True])
def test_a_fingerprint_takes_a_positive_number_of_threads(tmp_path, data):
    rustload.save({"w": torch.ones(3)}, tmp_path / "m.safetensors")
    ckpt = rustload.open(tmp_path / "m.safetensors")
    assert ckpt.fingerprint(data=data, threads=3) == ckpt.fingerprint(data=data)
    for wrong, error in ((0, ValueError), (-1, ValueError), ("2", TypeError)):
        with pytest.raises(error):
            ckpt.fingerprint(data=data, threads=wrong)  # type: ignore[arg-type]


def test_a_tensor_called_pt_has_no_further_name_in_fingerprint_and_diff(tmp_path):
    """Headers say `"format": "pt"`, and other texts may be names that were left out because they are tied."""
    torch.save({"pt": torch.ones(2), "b": torch.zeros(3)}, tmp_path / "m.pt")
    ckpt = rustload.open(tmp_path / "m.pt")
    rustload.save(ckpt, tmp_path / "m.safetensors")
    saved = rustload.open(tmp_path / "m.safetensors")
    assert saved.fingerprint() == ckpt.fingerprint()
    assert rustload.diff(saved, ckpt).notes == []


def test_the_fingerprint_of_the_source_is_recorded(tmp_path):
    path = tmp_path / "m.bin"
    torch.save({"a": torch.randn(30, 40), "b": torch.arange(5)}, path)
    for fingerprint in ("structure", "data"):
        target = tmp_path / f"{fingerprint}.safetensors"
        rustload.convert(path, target, fingerprint=fingerprint)  # type: ignore[arg-type]
        ckpt = rustload.open(target)
        expected = rustload.open(path).fingerprint(data=fingerprint == "data")
        assert ckpt.metadata["source_fingerprint"] == expected
        assert ckpt.fingerprint(data=fingerprint == "data") == expected
    with pytest.raises(ValueError, match="fingerprint="):
        rustload.convert(path, tmp_path / "c.safetensors", fingerprint="all")  # type: ignore[arg-type]


def test_a_checkpoint_without_tensors_is_a_warning(tmp_path):
    torch.save({"epoch": 3}, tmp_path / "numbers.pt")
    with pytest.warns(rustload.RustloadWarning, match="has no tensors"):
        report = rustload.convert(tmp_path / "numbers.pt", tmp_path / "out.safetensors")
    assert report.tensors == 0
    assert list(rustload.open(tmp_path / "out.safetensors")) == []
    rustload.save({"module.w": torch.ones(2)}, tmp_path / "module.safetensors")
    with pytest.warns(rustload.RustloadWarning, match="rename= leaves all tensors out"):
        rustload.convert(
            tmp_path / "module.safetensors",
            tmp_path / "out.safetensors",
            rename={"module": None},
            overwrite=True,
        )
