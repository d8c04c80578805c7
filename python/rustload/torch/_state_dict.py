"""`rustload.torch.state_dict`: a checkpoint as a lazy state dict, for code of torch and other libraries."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from rustload._checkpoint.names import below, select_tensors, strip_prefix
from rustload._checkpoint.open import opened
from rustload._common.options import NamesOptions, SourceOptions, filled, part, takes
from rustload._common.patterns import unknown_name, warn_of_unused_patterns
from rustload._common.rules import Rules
from rustload._frameworks.torch import check_device
from rustload.torch._handle import TorchHandle
from rustload.torch._private_views import PrivateViews

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._common.patterns import Key, Strip


class StateDict(dict[str, TorchHandle]):
    """A dict from names to handles, without tensor data. It is a dict subclass because some consumers require one."""

    _module_versions: Callable[[], dict[str, dict[str, Any]]] | None = None

    @functools.cached_property
    def _metadata(self) -> dict[str, dict[str, Any]]:
        """The versions of modules, which `torch.save` stores and `Module.load_state_dict` uses; empty if the file has none."""
        return self._module_versions() if self._module_versions else {}

    def __missing__(self, name: str) -> TorchHandle:
        """Raises, with similar names in the note.

        Raises:
            TensorNotFoundError: Always; it is a KeyError.
        """
        raise unknown_name(None, str(name), self)

    def __repr__(self) -> str:
        """The number of handles and their size; reads nothing."""
        return f"<StateDict of {len(self)} lazy tensors, {sum(handle.nbytes for handle in self.values()):,} bytes>"


@takes(SourceOptions)
def state_dict(
    path: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    **options: Unpack[SourceOptions],
) -> StateDict:
    """Returns a checkpoint as a state dict with lazy handles in place of tensors.

    `Module.load_state_dict` accepts it (with `assign=False`; for a module on the meta device, use `load_into`), and so do
    `from_pretrained(None, config=config, state_dict=...)` of transformers, `weights_map=` and `state_dict=` of accelerate, and
    `load_state_dict` of diffusers. None of them is patched. Handles are thread-safe.

    Args:
        path: Anything that `rustload.open` takes, an open checkpoint, or a selection of its tensors.
        dtype: The dtype of read tensors: a dtype for float tensors, a mapping from glob patterns of names, or a callable; None
            keeps the file's.
        device: The device of read tensors; None is the CPU.
        **options: What to load (`SourceOptions`).

    Returns:
        The handles by name, in the file's order.

    Raises:
        ValueError: No tensor is under `key`, or two tensors would get the same name.
        FormatError: As for `rustload.open`; its other errors are possible too.

    >>> import torch, rustload.torch
    >>> model = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8, bias=False) for name in ("q", "k", "v", "lm_head")})
    >>> model.load_state_dict(rustload.torch.state_dict("model.pt"))
    <All keys matched successfully>
    """
    how = filled(state_dict, options)
    checkpoint, tensors = opened(path, "torch", how["limits"])
    rules = Rules(dtype=dtype)
    warn_of_unused_patterns(checkpoint._core.names, dtype=dtype)
    found = select_tensors(tensors, **part(NamesOptions, how))
    rules.warn_of_kept(found.values())
    target = check_device(device)
    views = PrivateViews()
    made = StateDict(
        (name, TorchHandle(lazy, rules.dtype(lazy), target, views)) for name, lazy in found.items()
    )
    if tensors is checkpoint:  # the names of a selection are not those of the modules
        made._module_versions = functools.partial(module_versions, checkpoint, how["key"], how["strip"])
    return made


def module_versions(
    checkpoint: Checkpoint, key: Key = None, strip: Strip = None
) -> dict[str, dict[str, Any]]:
    """The module versions in the file (`_metadata` of the state dict), by module name; empty if the file has none."""
    if checkpoint._formats == {"safetensors"}:
        return {}
    found = getattr(below(checkpoint.objects, key), "_metadata", None)
    if not isinstance(found, Mapping):
        return {}
    prefixes = [strip] if isinstance(strip, str) else list(strip or ())
    return {
        strip_prefix(name + ".", prefixes).rstrip("."): dict(value)
        for name, value in found.items()
        if isinstance(name, str) and isinstance(value, Mapping)
    }
