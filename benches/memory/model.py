"""The model that is loaded: Llama-shaped, random float32 weights, as one `.bin`, four shards, a legacy `.bin` and safetensors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from benches.python import measure

if TYPE_CHECKING:
    from collections.abc import Callable

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "memory"
KINDS = ("single", "sharded", "legacy", "safetensors")
SHARDS = 4

# 111 tensors of 233.8 million elements: 892 MiB in float32.
SHAPE = {
    "vocab_size": 32_000,
    "hidden_size": 1024,
    "intermediate_size": 3200,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
}


def made() -> Path:
    """The folder of the model, with one folder per kind; writes it if it does not exist."""
    folder = CACHE / "llama-892"
    if not folder.exists():
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        measure.in_child(write, partial, dict(SHAPE))
        partial.rename(folder)
    return folder


def write(begin: Callable[[], None], folder: Path, shape: dict[str, int]) -> None:
    """Writes all kinds; the pickles by hand, as transformers 5 no longer writes any."""
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.utils import logging

    begin()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**shape)).to(torch.float32)
    model.generation_config = GenerationConfig(max_new_tokens=7, do_sample=True, temperature=0.25)
    model.save_pretrained(folder / "safetensors", max_shard_size="100GB")
    state = dict(model.state_dict())
    for kind in KINDS[:3]:
        (folder / kind).mkdir()
        for name in ("config.json", "generation_config.json"):
            shutil.copy(folder / "safetensors" / name, folder / kind)
    torch.save(state, folder / "single" / "pytorch_model.bin")
    torch.save(state, folder / "legacy" / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    names = list(state)
    each = -(-len(names) // SHARDS)
    weight_map: dict[str, str] = {}
    for number in range(SHARDS):
        file = f"pytorch_model-{number + 1:05}-of-{SHARDS:05}.bin"
        part = names[number * each : (number + 1) * each]
        torch.save({name: state[name] for name in part}, folder / "sharded" / file)
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "sharded" / "pytorch_model.bin.index.json").write_text(json.dumps(index, indent=2))


def files_of(folder: Path) -> list[Path]:
    """The files that contain tensors."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".bin", ".safetensors"))
