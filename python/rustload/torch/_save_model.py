"""`save_model`: writes a module as its own loaders read it."""

from __future__ import annotations

import copy
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch

from rustload._common.options import filled, takes
from rustload._rustload import dtype_name
from rustload._save.options import WriteOptions
from rustload._save.save import save_with

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustload._save.report import SaveReport


@takes(WriteOptions)
def save_model(
    model: torch.nn.Module,
    path: Any,
    **options: Unpack[WriteOptions],
) -> SaveReport:
    """Writes a module's parameters and buffers as safetensors, and in a folder its configuration: what `from_pretrained` reads.

    Tied weights are written once: under the names that the model itself does not derive from others (`_tied_weights_keys` of
    transformers), else under the first one. The header's metadata names the others. The folder or file appears when it is
    complete.

    >>> import rustload.torch, safetensors.torch, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> model[1].weight = model[0].weight
    >>> rustload.torch.save_model(model, "tied.safetensors").dropped
    {'1.weight': '0.weight'}
    >>> safetensors.torch.load_model(model, "tied.safetensors")
    (set(), [])

    Args:
        model: A module; of transformers and diffusers, its configuration is saved too, into a folder.
        path: A folder, or a file whose name ends with `.safetensors`.
        **options: How the files are written (`WriteOptions`).

    Returns:
        The report of `rustload.save`.

    Raises:
        TypeError: It is not a module.
        UnsupportedError: A parameter is on the meta device, or has a dtype that safetensors lacks.
        RustloadError: As for `rustload.save`.
    """
    how = filled(save_model, options)
    given: Any = model
    if not isinstance(given, torch.nn.Module):
        from rustload.errors import _error

        raise _error("Type", f"is a torch.nn.Module, not a {type(given).__name__}", argument="model")
    state = model.state_dict()
    # State dicts may have values of `get_extra_state`, which are not tensors.
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return save_with(
        _configurations(model, how["dtype"]),
        tensors,
        path,
        name="diffusion_pytorch_model" if _is_of_diffusers(model) else "model",
        ties="drop",
        discard=_derived(model, tensors),
        **how,
    )


def _derived(model: torch.nn.Module, names: Mapping[str, torch.Tensor]) -> list[str]:
    """The names that the model derives from others when it ties its weights, by the lists of its modules."""
    derived: list[str] = []
    for prefix, module in model.named_modules():
        keys = getattr(module, "_tied_weights_keys", None)
        if not keys:
            continue
        start = f"{prefix}." if prefix else ""
        # A list of regular expressions; since transformers 5 a mapping from them to what the weights are tied to.
        for key in keys:
            pattern = re.compile(key)
            derived += [
                name for name in names if name.startswith(start) and pattern.search(name.removeprefix(start))
            ]
    # They are names, not patterns.
    return [re.sub(r"([*?\[{])", r"[\1]", name) for name in dict.fromkeys(derived)]


def _configurations(model: Any, dtype: Any) -> list[tuple[str, str]]:
    """The files of a model's configuration, as its own library writes them."""
    savers = []
    if _is_of_diffusers(model) and hasattr(model, "save_config"):
        savers = [model.save_config]
    elif hasattr(getattr(model, "config", None), "save_pretrained"):
        # As transformers does, which notes the class and the dtype in the configuration that it saves.
        config = copy.deepcopy(model.config)
        config.architectures = [type(model).__name__]
        config.dtype = _dtype_name(model, dtype)
        savers = [config.save_pretrained]
        generation = getattr(model, "generation_config", None)
        if generation is not None and getattr(model, "can_generate", bool)():
            savers.append(generation.save_pretrained)
    with tempfile.TemporaryDirectory() as folder:
        for saver in savers:
            saver(folder)
        files = sorted(Path(folder).glob("*.json"))
        return [(file.name, file.read_text("utf-8")) for file in files]


def _dtype_name(model: torch.nn.Module, dtype: Any) -> str | None:
    """The dtype of the first float as it is written; None without floats."""
    own = next((value.dtype for value in model.state_dict().values() if value.is_floating_point()), None)
    plain = isinstance(dtype, (str, torch.dtype))
    return dtype_name(dtype) if plain and own is not None else own and str(own).removeprefix("torch.")


def _is_of_diffusers(model: object) -> bool:
    """Whether the model's class is one of diffusers, or derived from one."""
    return any(cls.__module__.partition(".")[0] == "diffusers" for cls in type(model).__mro__)
