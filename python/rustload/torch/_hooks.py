"""Loading code of the model's own: hooks of `load_state_dict`, and classes with a `_load_from_state_dict` of theirs.

It runs as `Module.load_state_dict` runs it, module by module, before anything of the file is read: on a state dict of lazy
handles, so that renaming costs nothing and only what is computed with is read. What it copies into parameters is noted and not
done. So the plan is made of its results, and goes the way of all others: one error for all that does not fit, one tensor at a
time.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from rustload._frameworks.torch import torch_dtype
from rustload.errors import _make
from rustload.torch._handle import TorchHandle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rustload._tensor.handle import LazyTensor

__all__ = ["Made", "Own", "after_loading", "own_code", "run_own_code"]

EXTRA = "_extra_state"
NO_OP = "for .*: copying from a non-meta parameter in the checkpoint to a meta"


class Made:
    """A tensor that the model's code has made, in the place of a lazy one."""

    quantization = None

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        """Wraps it; `name` is its name in the model."""
        self.tensor = tensor.detach()
        self.name = name
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        self.shape = tuple(tensor.shape)
        self.ndim = tensor.ndim
        self.size = tensor.numel()

    def __getitem__(self, key: Any) -> Made:
        """A part."""
        return Made(self.tensor[key], self.name)

    def permute(self, dims: Any) -> Made:
        """The same elements with the dimensions in another order."""
        return Made(self.tensor.permute(dims), self.name)

    def materialize(
        self, *, dtype: Any = None, out: torch.Tensor | None = None, **_options: Any
    ) -> torch.Tensor:
        """A copy in another dtype, or in memory that is there."""
        if out is not None:
            return out.copy_(self.tensor)
        kind = torch_dtype(dtype) if isinstance(dtype, str) else dtype
        return self.tensor.to(dtype=kind, copy=True)


@dataclasses.dataclass
class Own:
    """What the model's own code made of a state dict.

    Attributes:
        tensors: What belongs into the model, by its names there; and what nobody took.
        transposed: Names in the file of what was transposed before the code saw it.
        silent: Names of tensors that are not filled and that the code does not call missing.
        missing: Names that the code calls missing and that are no tensors of the model.
        messages: What it says against the state dict.
        classes: The classes whose code was run.
    """

    tensors: dict[str, Any] = dataclasses.field(default_factory=dict)
    transposed: set[str] = dataclasses.field(default_factory=set)
    silent: set[str] = dataclasses.field(default_factory=set)
    missing: list[str] = dataclasses.field(default_factory=list)
    messages: list[str] = dataclasses.field(default_factory=list)
    classes: set[str] = dataclasses.field(default_factory=set)


def own_code(model: torch.nn.Module) -> bool:
    """Whether the model has any; torch's own modules, lazy ones and batch norms among them, need none here."""
    return any(_has_own(module) for module in model.modules())


def _has_own(module: torch.nn.Module) -> bool:
    method = module._load_from_state_dict
    overridden = getattr(method, "__func__", method) is not torch.nn.Module._load_from_state_dict
    theirs = getattr(method, "__module__", None) or ""
    if overridden and not theirs.startswith("torch.nn."):
        return True
    hooks = [getattr(hook, "hook", hook) for hook in module._load_state_dict_pre_hooks.values()]
    return any(getattr(hook, "__module__", None) != "torch.nn.modules.lazy" for hook in hooks)


def run_own_code(
    model: torch.nn.Module,
    tensors: Mapping[str, tuple[LazyTensor, bool]],
    metadata: Mapping[str, Mapping[str, Any]],
) -> Own:
    """Runs it.

    Args:
        model: The model. Nothing is written to its tensors, unless its code does so in another way than `load_state_dict` does.
        tensors: What the file has, in the order of the model's dimensions, and whether that is another than the file's.
        metadata: The versions of modules, as state dicts have them in `_metadata`.

    Raises:
        Exception: What the model's code raises, with a note that names the class.
    """
    own = Own(transposed={lazy.name for lazy, moved in tensors.values() if moved})
    handles: dict[str, Any] = {}
    for name, (lazy, _) in tensors.items():
        if name.rpartition(".")[2] == EXTRA:
            own.tensors[name] = lazy
        else:
            handles[name] = TorchHandle(lazy)
    swapping = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(False)
    try:
        _run(own, model, handles, "", metadata)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swapping)
    return own


def _run(
    own: Own,
    module: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    metadata: Mapping[str, Mapping[str, Any]],
) -> None:
    """One module and those inside of it, as `load` in `Module.load_state_dict` goes through them."""
    if _has_own(module):
        _run_one(own, module, state, prefix, dict(metadata.get(prefix[:-1], {})))
    else:
        for name in [name for name in state if name.startswith(prefix)]:
            head, dot, _ = name[len(prefix) :].partition(".")
            if not dot or head not in module._modules:
                _take(own, name, state[name])
    for name, child in module._modules.items():
        if child is not None:
            inner = f"{prefix}{name}."
            _run(
                own,
                child,
                {key: value for key, value in state.items() if key.startswith(inner)},
                inner,
                metadata,
            )


def _run_one(
    own: Own, module: torch.nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]
) -> None:
    missing: list[str] = []
    unexpected: list[str] = []
    messages: list[str] = []
    kind = type(module).__qualname__
    own.classes.add(kind)
    notes = _Notes(module, prefix)
    try:
        with warnings.catch_warnings(), notes:
            warnings.filterwarnings("ignore", NO_OP, UserWarning)
            module._load_from_state_dict(state, prefix, metadata, True, missing, unexpected, messages)  # noqa: FBT003 - torch's
    except Exception as error:
        error.add_note(f"in the loading code of {kind} at {prefix[:-1] or 'the root'!r}; nothing was loaded")
        raise
    for name, value in notes.copied.items():
        _take(own, name, value)
    for attribute, tensor in _held(module):
        name = prefix + attribute
        if name in notes.copied:
            continue
        if name in state and name not in missing and hasattr(state[name], "shape"):
            # Of another shape, or it would have been copied: the plan finds that too, and words it.
            others = [message for message in messages if not message.startswith(f"size mismatch for {name}:")]
            if len(others) < len(messages):
                messages = others
                _take(own, name, state[name])
                continue
        if name not in missing and not tensor.is_meta:
            own.silent.add(name)
    for name in unexpected:
        if name in state:
            _take(own, name, state[name])
    held = {prefix + attribute for attribute, _ in _held(module)}
    own.missing += [name for name in missing if name not in held and name.rpartition(".")[2] != EXTRA]
    own.messages += [f"{kind}: {message}" for message in messages]


def _take(own: Own, name: str, value: Any) -> None:
    if isinstance(value, TorchHandle):
        own.tensors[name] = value.lazy
    elif isinstance(value, torch.Tensor):
        own.tensors[name] = Made(value, name)
    else:
        own.messages.append(f"{name} is a {type(value).__name__}, not a tensor")


def _held(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The module's own parameters and persistent buffers."""
    held: dict[str, Any] = {**module._parameters, **module._buffers}
    for name, tensor in held.items():
        if tensor is not None and name not in module._non_persistent_buffers_set:
            yield name, tensor


class _Notes(TorchFunctionMode):
    """Notes what is copied into tensors of a module, in place of copying it."""

    def __init__(self, module: torch.nn.Module, prefix: str) -> None:
        super().__init__()
        self._module = module
        self._prefix = prefix
        self.copied: dict[str, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_ and len(args) >= 2:
            name = self._name(args[0])
            if name is not None:
                if args[1] is not args[0]:
                    self.copied[self._prefix + name] = args[1]
                return args[0]
        return func(*args, **(kwargs or {}))

    def _name(self, target: Any) -> str | None:
        """The target's name in the module, its own tensors first."""
        for prefix, module in self._module.named_modules(remove_duplicate=False):
            held: dict[str, Any] = {**module._parameters, **module._buffers}
            for name, tensor in held.items():
                if tensor is target:
                    return f"{prefix}.{name}" if prefix else name
        return None


def after_loading(model: torch.nn.Module, missing: list[str], unexpected: list[str]) -> bool:
    """Calls the hooks that run after a load, as `Module.load_state_dict` does; they may change the lists.

    Returns:
        Whether there were any.
    """
    keys = torch.nn.modules.module._IncompatibleKeys(missing, unexpected)
    found = False
    for module in _inside_out(model):
        for hook in module._load_state_dict_post_hooks.values():
            found = True
            if hook(module, keys) is not None:
                raise _make(
                    "Type",
                    "Type",
                    f"a hook of {type(module).__qualname__} that runs after loading gave a value, not None",
                )
    return found


def _inside_out(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    for child in module._modules.values():
        if child is not None:
            yield from _inside_out(child)
    yield module
