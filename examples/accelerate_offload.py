"""A model larger than memory, run straight from its `.bin`: `python -m examples.accelerate_offload`.

accelerate's hooks read each layer's weights when it runs and drop them afterwards. They usually read copies that accelerate
first writes to disk; here they read the checkpoint itself.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from accelerate.hooks import attach_align_device_hook

import rustload.torch


def build() -> torch.nn.Module:
    """A small example model."""
    return torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))


def main() -> tuple[torch.Tensor, torch.Tensor]:
    """Compares a forward pass from the file with one from memory."""
    torch.manual_seed(0)
    inputs = torch.randn(2, 64)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.bin"
        whole = build()
        torch.save(whole.state_dict(), path)
        with torch.device("meta"):
            model = build()
        weights = rustload.torch.state_dict(path)
        attach_align_device_hook(
            model, execution_device="cpu", offload=True, offload_buffers=True, weights_map=weights
        )
        with torch.no_grad():
            found, expected = model(inputs), whole(inputs)
        files = sorted(one.name for one in Path(folder).iterdir())
    print(
        f"equal: {torch.equal(found, expected)}; parameters on {next(model.parameters()).device}; files: {files}"
    )
    return found, expected


if __name__ == "__main__":
    main()
