"""Stock loaders of a checkpoint into a model, and rustload's; each returns the model.

Afterwards, every parameter has the requested dtype and is owned by the model; with float32, nothing is converted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from benches.memory.model import files_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _empty(folder: Path, device: str | None = None) -> Any:
    """The model, with random weights or on the meta device."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    config = LlamaConfig.from_pretrained(folder, local_files_only=True)
    if device == "meta":
        with torch.device("meta"):
            return LlamaForCausalLM(config)
    with no_init_weights():
        return LlamaForCausalLM(config)


def _state(folder: Path, *, mmap: bool) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for file in files_of(folder):
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state |= load_file(file)
        else:
            state |= torch.load(file, weights_only=True, mmap=mmap)
    return state


def torch_load(folder: Path, dtype: torch.dtype) -> Any:
    """Builds the model, `torch.load`, `load_state_dict`, and converts at the end."""
    model = _empty(folder)
    model.load_state_dict(_state(folder, mmap=False))
    return model.to(dtype)


def torch_load_mmap(folder: Path, dtype: torch.dtype) -> Any:
    """As `torch_load` with the file mapped, into a model of the final dtype."""
    model = _empty(folder).to(dtype)
    model.load_state_dict(_state(folder, mmap=True))
    return model


def meta_assign(folder: Path, dtype: torch.dtype) -> Any:
    """A model on the meta device, the mapped state dict assigned, converted at the end."""
    model = _empty(folder, "meta")
    model.load_state_dict(_state(folder, mmap=True), assign=True)
    return model.to(dtype)


def stock(folder: Path, dtype: torch.dtype) -> Any:
    """`from_pretrained` of transformers."""
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)


def rustload_into(folder: Path, dtype: torch.dtype) -> Any:
    """`rustload.torch.load_into` a model on the meta device."""
    import rustload.torch

    model = _empty(folder, "meta")
    rustload.torch.load_into(model, folder, dtype=dtype)
    return model


def rustload_pretrained(folder: Path, dtype: torch.dtype) -> Any:
    """`rustload.transformers.from_pretrained`."""
    from transformers import LlamaForCausalLM

    import rustload.transformers

    return rustload.transformers.from_pretrained(LlamaForCausalLM, folder, dtype=dtype)


WAYS: dict[str, Callable[[Path, torch.dtype], Any]] = {
    "torch.load": torch_load,
    "torch.load(mmap=True)": torch_load_mmap,
    "meta + assign, mmap": meta_assign,
    "from_pretrained": stock,
    "rustload load_into": rustload_into,
    "rustload from_pretrained": rustload_pretrained,
}


def can(way: str, kind: str) -> bool:
    """Whether the loader supports the file: torch cannot map legacy files."""
    return not (kind == "legacy" and way in ("torch.load(mmap=True)", "meta + assign, mmap"))
