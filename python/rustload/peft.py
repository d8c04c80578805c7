"""`rustload.peft.load_adapter`: puts an adapter of PEFT, in a folder of any format, on a model.

A thin layer over PEFT's own functions: PEFT makes the adapter from its config and names its weights, rustload reads them. Nothing
is downloaded, PEFT is not patched, and no pickle is run.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from rustload._checkpoint.open import open as open_checkpoint
from rustload._common.options import NamesOptions, SourceOptions, filled, part, takes
from rustload._frameworks.adapters import import_framework
from rustload.errors import _error
from rustload.torch._report import mismatch_error

if TYPE_CHECKING:
    import os

peft: Any = import_framework("peft")

__all__ = ["load_adapter"]

_CONFIG = "adapter_config.json"


@takes(SourceOptions)
def load_adapter(
    model: Any,
    path: str | os.PathLike[str],
    *,
    adapter_name: str = "default",
    is_trainable: bool = False,
    config: Any = None,
    weights: str | None = None,
    **options: Unpack[SourceOptions],
) -> Any:
    """Puts an adapter on a model, as `peft.PeftModel.from_pretrained(model, path)` does; the weights are bit-equal.

    Args:
        model: The base model, which PEFT changes in place; or a `PeftModel`, which gets one more adapter.
        path: A folder with `adapter_config.json` and `adapter_model.bin` or `adapter_model.safetensors`.
        adapter_name: The name of the adapter in the model.
        is_trainable: Whether the adapter's parameters require gradients; if not, the model is set to evaluation mode.
        config: A `PeftConfig` to use in place of the folder's.
        weights: The weight file in the folder, if its names do not determine which one is meant.
        **options: What to load (`SourceOptions`).

    Returns:
        The `PeftModel`.

    Raises:
        ModelMismatchError: The adapter has parameters that the file lacks, or the file has others; the adapter was removed again
            from a model that had one before. A base model keeps it, without the file's weights if some are missing.
        ValueError: The folder has no `adapter_config.json`; or it has prompts, and `is_trainable` is set, which PEFT refuses.
        FormatError: As for `rustload.open`; its other errors are possible too.
    """
    how = filled(load_adapter, options)
    folder = Path(path)
    if config is None:
        # PEFT would look for a repository of that name on the hub.
        if not (folder / _CONFIG).is_file():
            raise _error("Value", f"Can't find {_CONFIG!r} at {str(path)!r}")
        config = peft.PeftConfig.from_pretrained(str(folder))
    if config.is_prompt_learning and is_trainable:
        raise _error(
            "Value", "PEFT trains no prompts that were loaded: is_trainable=True is for other adapters"
        )
    config.inference_mode = not is_trainable
    file = folder / weights if weights else folder
    with open_checkpoint(file, framework="torch", limits=how["limits"]) as checkpoint:
        # Owned, so that the adapter can be saved over its file.
        state = checkpoint.materialize(**part(NamesOptions, how), copy=True)
    had_adapters = isinstance(model, peft.PeftModel)
    if had_adapters:
        model.add_adapter(adapter_name, config)
        if is_trainable:
            model.set_requires_grad(adapter_name)
    else:
        model = peft.get_peft_model(model, config, adapter_name=adapter_name)
    # Without embeddings, about which PEFT may ask the hub; it loads those of the file all the same.
    expected = peft.get_peft_model_state_dict(model, adapter_name=adapter_name, save_embedding_layers=False)
    missing = {name: tuple(tensor.shape) for name, tensor in expected.items() if name not in state}
    unexpected = {}
    if not missing:
        # PEFT reports prompts, and projections of VeRA, as unexpected and loads them all the same: those of its own adapter too.
        # It keeps adaption prompts that are not active outside of the model.
        active = getattr(model.base_model, "_temporarily_active", contextlib.nullcontext)
        with active(adapter_name):
            own = _unexpected(model, expected, adapter_name)
            found = _unexpected(model, state, adapter_name)
        unexpected = {name: () for name in found if name not in own}
    if missing or unexpected:
        if had_adapters:
            model.delete_adapter(adapter_name)
        is_loaded = bool(unexpected) and not had_adapters
        what = "the adapter is in the model, with the weights that fit" if is_loaded else None
        raise mismatch_error(repr(str(file)), type(model).__name__, missing, unexpected, (), loaded=what)
    return model if is_trainable else model.eval()


def _unexpected(model: Any, state: dict[str, Any], adapter_name: str) -> list[str]:
    """Loads the weights of an adapter; returns the names that PEFT reports as unexpected."""
    loaded = peft.set_peft_model_state_dict(model, state, adapter_name=adapter_name)
    return list(loaded.unexpected_keys)
