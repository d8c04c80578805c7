"""Loads float32 weights into a bfloat16 model, with the memory of the latter: `python -m examples.low_memory [CHECKPOINT]`.

Without an argument it writes a small checkpoint of its own. With one, the file must fit the model below.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

import rustload.torch


def build(width: int = 256, layers: int = 4) -> torch.nn.Module:
    """A stack of linear layers between an embedding and a tied head."""
    model = torch.nn.ModuleDict(
        {
            "embed": torch.nn.Embedding(1000, width),
            "layers": torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers))),
            "head": torch.nn.Linear(width, 1000, bias=False),
        }
    )
    model["head"].weight = model["embed"].weight
    return model


def main(arguments: list[str]) -> torch.nn.Module:
    """Builds the model on the meta device, then loads its weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(arguments[0]) if arguments else Path(folder) / "model.bin"
        if not arguments:
            torch.save(build().state_dict(), path)
        with torch.device("meta"):
            model = build()  # shapes and dtypes, no memory
        report = rustload.torch.load_into(model, path, dtype="bfloat16")
    print(report)
    print(f"tied: {report.tied}")
    return model


if __name__ == "__main__":
    main(sys.argv[1:])
