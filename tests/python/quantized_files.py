"""Checkpoints of every published quantized scheme with what they mean: `CASES`, by name a function that makes one."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from quantized_case import Case, Tensors
from quantized_codes import CODE_CASES
from quantized_floats import FLOAT_CASES
from quantized_ints import INT_CASES
from quantized_rare import RARE_CASES
from safetensors.torch import save_file
from support import write_shards

CASES: dict[str, Callable[[], Case]] = {**FLOAT_CASES, **INT_CASES, **CODE_CASES, **RARE_CASES}


def logical(found: Case) -> Tensors:
    """What a reader that dequantizes shows."""
    return {**found.weights, **found.plain}


def write(found: Case, folder: Path, kind: str = "safetensors") -> Path:
    """Writes the checkpoint in a folder, with its config: as one file of safetensors or torch, or each tensor in its own file."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": found.config, **(found.sidecars or {})}.items():
        if content:
            (folder / name).write_text(json.dumps(content))
    if kind == "pt":
        torch.save(found.tensors, folder / "pytorch_model.bin")
    elif kind == "safetensors":
        save_file(found.tensors, folder / "model.safetensors", found.metadata)
    else:
        # In no order, so that a reader meets companions before their codes and after them.
        in_no_order = sorted(found.tensors, key=lambda one: one[::-1])
        write_shards(folder, [{name: found.tensors[name]} for name in in_no_order], metadata=found.metadata)
    return folder
