"""The files that the documentation's examples open, beside those of the root's `conftest.py`."""

import collections
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from quantized_files import write as write_quantized
from quantized_ints import pack_quantized
from zero_folders import Run
from zero_folders import write as write_zero


def write(folder: Path) -> None:
    """Adds them to a folder that has the sample files."""
    state = torch.load(folder / "model.pt")
    torch.save(state, folder / "pytorch_model.bin")
    module = {f"module.{name}": value for name, value in state.items()}
    torch.save({"epoch": 3, "hyper_parameters": {"lr": 3e-4}, "state_dict": module}, folder / "last.ckpt")
    torch.save(
        {"a.lora_A.weight": torch.ones(2, 8), "a.lora_B.weight": torch.ones(8, 2)}, folder / "adapter.bin"
    )
    torch.save({"model": state, "epoch": 3}, folder / "run.pt")
    _safetensors({name: value.half() for name, value in state.items()}, folder / "half.safetensors")
    shutil.copy(folder / "model.bin", folder / "a.bin")
    shutil.copy(folder / "model.safetensors", folder / "b.safetensors")
    for name in ("step-100", "step-200", "70b"):
        shutil.copytree(folder / "llama", folder / name)
    for name in ("downloads", "models", "incoming", "registry"):
        (folder / name).mkdir()
        shutil.copy(folder / "model.pt", folder / name)
    _gate(folder)
    _blocks(folder / "deepseek")
    _packed(folder / "packed")


def write_zero_run(folder: Path) -> None:
    """`zero-run`, a run of DeepSpeed with two ranks, in stage 3."""
    weights = {"layer.weight": torch.ones(8, 16), "layer.bias": torch.zeros(8)}
    write_zero(folder / "zero-run", Run([weights], stage=3, world=2, moments=[{"exp_avg": weights}]))


def _gate(folder: Path) -> None:
    import rustload

    (folder / "scan-policy.toml").write_text('allow = ["mylib.config.Config"]\nfail_on = "unknown"\n')
    (folder / "known.json").write_text(rustload.scan(folder / "models").to_json())


def _blocks(folder: Path) -> None:
    """A weight in fp8 with a scale for each block of 128 x 128, as DeepSeek's are."""
    folder.mkdir()
    name = "model.layers.0.mlp.up_proj.weight"
    weight = torch.ones(256, 256).to(torch.float8_e4m3fn)
    _safetensors({name: weight, f"{name}_scale_inv": torch.ones(2, 2)}, folder / "model.safetensors")
    quantization = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps({"quantization_config": quantization}))


def _packed(folder: Path) -> None:
    """A weight of 4 bits in groups of 32, as compressed-tensors packs it."""
    found = pack_quantized("packed", (32, 64), 4, 32, prefix="proj")
    scales = torch.full((32, 2), 0.01, dtype=torch.bfloat16)
    found.tensors.update({"proj.weight_scale": scales, "norm.weight": torch.ones(64, dtype=torch.bfloat16)})
    del found.tensors["model.norm.weight"]
    write_quantized(found._replace(config={**found.config, "torch_dtype": "float32"}), folder)


def write_formats(folder: Path) -> None:
    """An exported program, a distributed checkpoint, and the files of two processes."""
    from torch.distributed import checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
        torch.export.save(program, folder / "program.pt2")
        state = {"model": {"embed": {"weight": torch.ones(128, 8)}}}
        dcp.save(state, checkpoint_id=folder / "checkpoints" / "step_1000", no_dist=True)
        _ranks(folder / "ranks")


def _ranks(folder: Path) -> None:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    folder.mkdir()
    for rank in range(2):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            mesh = DeviceMesh("cpu", torch.arange(2))
            part = DTensor.from_local(torch.full((4, 8), float(rank)), mesh, [Shard(0)], run_check=False)
            torch.save(collections.OrderedDict({"embed.weight": part}), folder / f"rank{rank}.pt")
        finally:
            torch.distributed.destroy_process_group()


def _safetensors(tensors: dict[str, Any], path: Path) -> None:
    import safetensors.torch

    safetensors.torch.save_file(tensors, path)
