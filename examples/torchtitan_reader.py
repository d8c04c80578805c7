"""Initializes a torchtitan model from a legacy `.bin` file: `python -m examples.torchtitan_reader` (needs torchtitan).

torchtitan reads the weights of Hugging Face by the reader that a model's state dict adapter returns. By default that reader takes
safetensors only; rustload's takes every format, and each rank reads its own part of each tensor.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict_loader import load as load_checkpoint

from rustload.torch.distributed import Reader


def reads_any_format(adapter: Any) -> Any:
    """A subclass of a state dict adapter of torchtitan that reads Hugging Face weights through rustload.

    In torchtitan, put it into the `ModelSpec` of the model: `dataclasses.replace(spec, state_dict_adapter=reads_any_format(
    spec.state_dict_adapter))`.
    """

    class RustloadAdapter(adapter):  # type: ignore[misc]  # a class that the caller passes
        def get_hf_storage_reader(self, path: str, from_quantized: bool = False) -> Any:  # noqa: FBT001, FBT002 - torchtitan's
            """The reader; torchtitan's own for weights that are quantized in blocks, which it dequantizes."""
            return super().get_hf_storage_reader(path, from_quantized) if from_quantized else Reader(path)

    return RustloadAdapter


def load(model: torch.nn.Module, adapter: Any, folder: str) -> None:
    """What torchtitan's checkpointer does with `initial_load_in_hf`."""
    weights = adapter.to_hf(model.state_dict())
    load_checkpoint(weights, storage_reader=adapter.get_hf_storage_reader(folder))
    model.load_state_dict(adapter.from_hf(weights))


def main() -> bool:
    """Saves a small Llama as a legacy `.bin` with the names of Hugging Face, loads it, and compares."""
    from torchtitan.models.llama3 import llama3_configs
    from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter

    warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)  # one process
    config = llama3_configs["debugmodel"](attn_backend="flex")
    adapter = reads_any_format(Llama3StateDictAdapter)(config, None)
    source, model = config.build(), config.build()
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.normal_()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pytorch_model.bin"
        torch.save(adapter.to_hf(source.state_dict()), file, _use_new_zipfile_serialization=False)
        load(model, adapter, folder)
    pairs = zip(model.parameters(), source.parameters(), strict=True)
    are_equal = all(torch.equal(one, other) for one, other in pairs)
    print(
        f"{type(model).__name__} of {sum(one.numel() for one in model.parameters()):,} parameters, equal: {are_equal}"
    )
    return are_equal


if __name__ == "__main__":
    main()
