"""Converts checkpoints of PyTorch to safetensors: `python -m examples.convert [SRC DST]`.

Without arguments it makes a sharded folder, as transformers wrote them before version 5, and a training checkpoint. The folder is
converted to bfloat16 with its other files; of the training checkpoint, the weights are converted and the other values written as
JSON. Nothing in the files is run, and no tensor is held as a whole.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import torch

import rustload


def write(folder: Path) -> None:
    """A folder of two shards with a configuration, and a training checkpoint."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    state = model.state_dict()
    sharded = folder / "model"
    sharded.mkdir()
    weight_map: dict[str, str] = {}
    for number, layer in enumerate(("0.", "2."), start=1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        part = {name: value for name, value in state.items() if name.startswith(layer)}
        torch.save(part, sharded / file)
        weight_map |= dict.fromkeys(part, file)
    index = {
        "metadata": {"total_size": sum(value.nbytes for value in state.values())},
        "weight_map": weight_map,
    }
    (sharded / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (sharded / "config.json").write_text('{"hidden_size": 32}')
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    module = {f"module.{name}": value for name, value in state.items()}
    training = {"epoch": 3, "state_dict": module, "optimizer": optimizer.state_dict()}
    torch.save(training, folder / "last.ckpt")


def main(arguments: list[str]) -> list[rustload.SaveReport]:
    """Converts, and prints what was written."""
    if arguments:
        source, target = arguments
        reports = [rustload.convert(source, target, copy_others=Path(source).is_dir())]
        print(reports[0])
        return reports
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        out = folder / "model-bf16"
        half = rustload.convert(folder / "model", out, dtype="bfloat16", copy_others=True)
        print(half)
        print(f"  {', '.join(sorted(half.files))}")
        print(f"  {rustload.open(out)['0.weight']}")
        weights = rustload.convert(
            folder / "last.ckpt",
            folder / "weights.safetensors",
            key="state_dict",
            strip="module.",
            objects=folder / "last.json",
        )
        print(weights)
        print(f"  {', '.join(rustload.open(folder / 'weights.safetensors'))}")
        values = json.loads((folder / "last.json").read_text())
        print(f"  epoch {values['epoch']}, learning rate {values['optimizer']['param_groups'][0]['lr']}")
    return [half, weights]


if __name__ == "__main__":
    main(sys.argv[1:])
