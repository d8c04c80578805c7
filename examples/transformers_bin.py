"""Loads a repository with an old `.bin` file as a transformers model: `python -m examples.transformers_bin [FOLDER]`.

Without an argument it writes a tiny Llama of its own, in the format from before torch 1.6, which torch itself cannot map.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

import rustload.transformers


def write(folder: Path) -> None:
    """A tiny repository: config, generation config, legacy weights."""
    torch.manual_seed(0)
    settings: dict[str, int] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48}
    model = LlamaForCausalLM(LlamaConfig(**settings, num_hidden_layers=2, num_attention_heads=4))
    model.config.save_pretrained(folder)
    GenerationConfig(max_new_tokens=5, do_sample=False, pad_token_id=0).save_pretrained(folder)
    torch.save(dict(model.state_dict()), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def main(arguments: list[str]) -> Any:
    """Loads the model as bfloat16 and generates some tokens."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(arguments[0]) if arguments else Path(temporary)
        if not arguments:
            write(folder)
        model = rustload.transformers.from_pretrained(AutoModelForCausalLM, folder, dtype="bfloat16")
    tokens = model.generate(torch.tensor([[1, 2, 3]]))
    print(f"{type(model).__name__} in {model.dtype}: {tokens.tolist()}")
    return model


if __name__ == "__main__":
    main(sys.argv[1:])
