"""Inspects a training checkpoint layer by layer, reading one tensor at a time: `python -m examples.training_checkpoint [FILE]`.

Such files contain dictionaries: weights, optimizer moments, arguments of classes that are not installed here. rustload shows
all of it, constructs none of it, and reads only the tensors that you use.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import torch

import rustload


def write(path: Path) -> None:
    """A checkpoint in the form that trainers write."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 16)).square().sum().backward()
    optimizer.step()
    state = {"epoch": 3, "hyper_parameters": argparse.Namespace(lr=1e-3, width=32)}
    torch.save(
        {**state, "state_dict": model.state_dict(), "optimizer_states": [optimizer.state_dict()]}, path
    )


def main(arguments: list[str]) -> dict[str, int]:
    """Prints the contents of the file, and one line per layer."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(arguments[0]) if arguments else Path(folder) / "last.ckpt"
        if not arguments:
            write(path)
        with rustload.open(path, framework="torch") as ckpt:
            tree = ckpt.objects
            for key, value in tree.items():
                print(f"{key:18} {value if isinstance(value, int) else type(value).__name__}")
            for found in ckpt.opaque:
                print(f"kept as data: {found.class_name} x{found.count}, at {', '.join(found.at)}")
            sizes: dict[str, int] = defaultdict(int)
            for name, lazy in ckpt.items():
                sizes[name.rpartition(".")[0]] += lazy.nbytes  # from the metadata: nothing is read
            for layer, nbytes in sizes.items():
                print(f"{layer:30} {nbytes:8,} bytes")
                for name, lazy in ckpt.select(f"{layer}.*").items():
                    if lazy.ndim and name.rpartition(".")[0] == layer:
                        tensor = lazy.materialize(
                            dtype="float32"
                        )  # reads this tensor only; freed in the next iteration
                        print(
                            f"  {name:40} {lazy.dtype:9} {list(lazy.shape)!s:10} norm {float(tensor.norm()):.4f}"
                        )
    return dict(sizes)


if __name__ == "__main__":
    main(sys.argv[1:])
