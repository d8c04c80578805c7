"""`rustload.torch.state_dict`: a checkpoint as the state dict that torch's and others' code takes, with nothing read yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rustload._checkpoint.checkpoint import Checkpoint
from rustload._checkpoint.names import Key, Rename, Strip, named, stripped
from rustload._checkpoint.open import open as open_checkpoint
from rustload._common.patterns import check_rules
from rustload._common.rules import Rules
from rustload._common.similar import did_you_mean, similar
from rustload._frameworks.torch import check_device
from rustload.errors import _make
from rustload.torch._handle import TorchHandle
from rustload.torch._own_views import OwnViews

if TYPE_CHECKING:
    from collections.abc import Callable

    from rustload._common.limits import Limits

__all__ = ["StateDict", "checkpoint_of", "state_dict", "versions"]


class StateDict(dict[str, TorchHandle]):
    """A dict from names to handles. It is a real dict, as some consumers ask for one, and holds no tensor data."""

    _versions: Callable[[], dict[str, dict[str, Any]]] | None = None

    @property
    def _metadata(self) -> dict[str, dict[str, Any]] | None:
        """The versions of modules, which `torch.save` keeps and `Module.load_state_dict` asks for."""
        return (self._versions() or None) if self._versions else None

    def __missing__(self, name: str) -> TorchHandle:
        """Refuses, with near names.

        Raises:
            TensorNotFoundError: Always; it is a KeyError.
        """
        note = did_you_mean(similar(str(name), self))
        raise _make("NotFound", "NotFound", f"no tensor is named {str(name)!r}", note)

    def __repr__(self) -> str:
        """The number of handles and their size; reads nothing."""
        return f"<StateDict of {len(self)} lazy tensors, {sum(handle.nbytes for handle in self.values()):,} bytes>"


def state_dict(
    path: Any,
    *,
    key: Key = None,
    strip: Strip = None,
    rename: Rename = None,
    dtype: Any = None,
    device: Any = None,
    limits: Limits | None = None,
) -> StateDict:
    """The state dict of a checkpoint with lazy handles in the place of tensors.

    `Module.load_state_dict` takes it (with `assign=False`: for a module on the meta device there is `load_into`), and so do
    `from_pretrained(None, config=config, state_dict=...)` of transformers, `weights_map=` and `state_dict=` of accelerate, and
    `load_state_dict` of diffusers. Nothing of theirs is patched. Handles may be used from any thread.

    Args:
        path: What `rustload.open` takes, or an open checkpoint.
        key: What the state dict is nested under in the file, such as `"state_dict"` or `("model", "ema")`.
        strip: A prefix, or several, to take off names.
        rename: Other names: a mapping, pairs of a regular expression and a replacement, or a callable.
        dtype: What reading gives: a dtype for float tensors, a mapping from glob patterns of names, or a callable; None keeps the
            file's.
        device: Where reading puts tensors; None is the CPU.
        limits: Bounds on what the file may make the reader do.

    Returns:
        The handles by name, in the file's order.

    Raises:
        ValueError: Nothing is under `key`, or two tensors would get one name.
        FormatError: As for `rustload.open`, whose other errors are possible too.

    >>> import torch, rustload.torch
    >>> model = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8, bias=False) for name in ("q", "k", "v", "lm_head")})
    >>> model.load_state_dict(rustload.torch.state_dict("model.pt"))
    <All keys matched successfully>
    """
    checkpoint = checkpoint_of(path, limits)
    rules = Rules(dtype=dtype)
    check_rules(checkpoint._core, dtype=dtype)
    found = named(checkpoint, key, strip, rename)
    place = check_device(device)
    views = OwnViews()
    made = StateDict(
        (name, TorchHandle(lazy, rules.dtype(lazy), place, views)) for name, lazy in found.items()
    )
    made._versions = lambda: versions(checkpoint, key, strip)
    return made


def versions(checkpoint: Checkpoint, key: Key = None, strip: Strip = None) -> dict[str, dict[str, Any]]:
    """The versions of modules that a state dict was saved with, by names of modules; empty where the file has none."""
    if checkpoint.format == "safetensors":
        return {}
    tree = checkpoint.objects
    for part in key if isinstance(key, tuple) else key.rstrip(".").split(".") if key else ():
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    found = getattr(tree, "_metadata", None)
    if not isinstance(found, Mapping):
        return {}
    prefixes = [strip] if isinstance(strip, str) else list(strip or ())
    return {
        stripped(name + ".", prefixes).rstrip("."): dict(value)
        for name, value in found.items()
        if isinstance(name, str) and isinstance(value, Mapping)
    }


def checkpoint_of(given: Any, limits: Limits | None = None) -> Checkpoint:
    """The open checkpoint that was given, or the one at that path."""
    if isinstance(given, Checkpoint):
        return given
    return open_checkpoint(given, framework="torch", limits=limits)
