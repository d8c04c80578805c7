"""Custom loading code of a model: hooks of `load_state_dict`, and overridden `_load_from_state_dict` methods.

It runs module by module, as in `Module.load_state_dict`, before any tensor is read, on a state dict of lazy handles. So renaming
reads nothing, and only tensors that the code computes with are read. Copies into parameters are recorded and not executed. The
plan is made from the recorded copies, and is executed like every other plan: one error for everything that does not fit, then one
tensor at a time.
"""

from __future__ import annotations

import dataclasses
import operator
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from rustload._frameworks.torch import torch_dtype
from rustload.errors import _error
from rustload.torch._dcp_contents import is_plain
from rustload.torch._handle import TorchHandle
from rustload.torch._report import NAMES_SHOWN_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rustload._tensor.handle import LazyTensor

EXTRA = "_extra_state"
NO_OP_WARNING = "for .*: copying from a non-meta parameter in the checkpoint to a meta"


class ComputedTensor:
    """A tensor that custom loading code computed; it has the interface of `LazyTensor` that a plan uses."""

    quantization = None
    _is_kept_as_stored = False

    def _is_scaled(self) -> bool:
        return False

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        """Wraps it; `name` is its name in the model."""
        self.tensor = tensor.detach()
        self.name = name
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        self.shape = tuple(tensor.shape)
        self.ndim = tensor.ndim

    def __getitem__(self, key: Any) -> ComputedTensor:
        """A part."""
        return ComputedTensor(self.tensor[key], self.name)

    def numel(self) -> int:
        """The number of elements."""
        return self.tensor.numel()

    def join(self, parts: list[ComputedTensor], dim: int) -> ComputedTensor:
        """The concatenation of parts of it."""
        return ComputedTensor(torch.cat([part.tensor for part in parts], dim), self.name)

    def permute(self, dims: Any) -> ComputedTensor:
        """The same elements with the dimensions in another order."""
        return ComputedTensor(self.tensor.permute(dims), self.name)

    def materialize(
        self, *, dtype: Any = None, out: torch.Tensor | None = None, **_options: Any
    ) -> torch.Tensor:
        """A copy in another dtype, or into `out`."""
        if out is not None:
            return out.copy_(self.tensor)
        kind = torch_dtype(dtype) if isinstance(dtype, str) else dtype
        return self.tensor.to(dtype=kind, copy=True)


@dataclasses.dataclass
class CustomLoading:
    """The result of the custom loading code on a state dict.

    Attributes:
        tensors: The tensors to load, by name in the model; also the unexpected ones.
        transposed: Names in the file of tensors that were transposed before the code ran.
        silent: Names of tensors in the model that are not loaded, and that the code does not report as missing.
        missing: Names that the code reports as missing and that are not tensors of the model.
        messages: The error messages of the code.
        classes: The classes whose code ran.
        values: Names of values of the file that are not tensors, which the code may ignore.
        written: Names of tensors in the model that were loaded while the code ran, as it used them.
    """

    tensors: dict[str, Any] = dataclasses.field(default_factory=dict)
    transposed: set[str] = dataclasses.field(default_factory=set)
    silent: set[str] = dataclasses.field(default_factory=set)
    missing: list[str] = dataclasses.field(default_factory=list)
    messages: list[str] = dataclasses.field(default_factory=list)
    classes: set[str] = dataclasses.field(default_factory=set)
    values: set[str] = dataclasses.field(default_factory=set)
    written: list[str] = dataclasses.field(default_factory=list)


def loaded_by_code(custom: CustomLoading | None) -> str | None:
    """Says which tensors were loaded while the custom loading code ran; None if there are none."""
    if custom is None or not custom.written:
        return None
    names = list(dict.fromkeys(custom.written))
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" * (len(names) > NAMES_SHOWN_MAX)
    return (
        f"nothing was loaded but {', '.join(names[:NAMES_SHOWN_MAX])}{more}, which the model's own code uses"
    )


def has_custom_loading(model: torch.nn.Module) -> bool:
    """Whether the model has custom loading code. That of torch.nn does not count: the plan handles it."""
    return any(_has_custom_loading(module) for module in model.modules())


def _has_custom_loading(module: torch.nn.Module) -> bool:
    method = module._load_from_state_dict
    overridden = getattr(method, "__func__", method) is not torch.nn.Module._load_from_state_dict
    theirs = getattr(method, "__module__", None) or ""
    if overridden and not theirs.startswith("torch.nn."):
        return True
    hooks = [getattr(hook, "hook", hook) for hook in module._load_state_dict_pre_hooks.values()]
    return any(getattr(hook, "__module__", None) != "torch.nn.modules.lazy" for hook in hooks)


def run_custom_loading(
    model: torch.nn.Module,
    tensors: Mapping[str, tuple[LazyTensor, bool]],
    metadata: Mapping[str, Mapping[str, Any]],
    others: Mapping[str | None, Any],
) -> CustomLoading:
    """Runs the custom loading code.

    Args:
        model: The model. Its tensors are not written to, unless its code writes by other means than `Tensor.copy_`.
        tensors: The tensors of the file by name, in the model's order of dimensions, and whether they were transposed for that.
        metadata: The versions of modules, as in a state dict's `_metadata`.
        others: The values of the file that are not tensors. The code gets those without tensors in them, and may ignore them.

    Raises:
        Exception: An error of the model's code, with a note that names the class.
    """
    custom = CustomLoading(transposed={lazy.name for lazy, moved in tensors.values() if moved})
    handles: dict[str, Any] = {}
    for name, (lazy, _) in tensors.items():
        if name.rpartition(".")[2] == EXTRA:
            custom.tensors[name] = lazy
        else:
            handles[name] = TorchHandle(lazy)
    for new, value in others.items():
        if new is not None and new.rpartition(".")[2] != EXTRA and is_plain(value):
            handles.setdefault(new, value)
            custom.values.add(new)
    swapping = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(False)
    try:
        _run(custom, model, handles, "", metadata)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(swapping)
        _read_kept(model)
    return custom


def _read_kept(model: torch.nn.Module) -> None:
    """Puts tensors in the place of handles that code has assigned to a module, as observers and torchmetrics do."""
    for _, module in _modules(model):
        places: list[dict[str, Any]] = [module._parameters, module._buffers, vars(module)]
        for held in places:
            for name, value in list(held.items()):
                if isinstance(value, TorchHandle):
                    held[name] = value.clone()


def _modules(module: torch.nn.Module, prefix: str = "") -> Iterator[tuple[str, torch.nn.Module]]:
    """The module and those in it, with the prefixes of names; hashes none, as torchmetrics hash their elements."""
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _modules(child, f"{prefix}{name}.")


def _run(
    custom: CustomLoading,
    module: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    metadata: Mapping[str, Mapping[str, Any]],
) -> None:
    """Runs one module and its submodules, in the order of `load` in `Module.load_state_dict`."""
    if _has_custom_loading(module):
        _run_one(custom, module, state, prefix, dict(metadata.get(prefix[:-1], {})))
    else:
        for name in [name for name in state if name.startswith(prefix)]:
            head, dot, _ = name[len(prefix) :].partition(".")
            if not dot or head not in module._modules:
                _add(custom, name, state[name])
    for name, child in module._modules.items():
        if child is not None:
            inner = f"{prefix}{name}."
            _run(
                custom,
                child,
                {key: value for key, value in state.items() if key.startswith(inner)},
                inner,
                metadata,
            )


def _run_one(
    custom: CustomLoading,
    module: torch.nn.Module,
    state: dict[str, Any],
    prefix: str,
    metadata: dict[str, Any],
) -> None:
    missing: list[str] = []
    unexpected: list[str] = []
    messages: list[str] = []
    kind = type(module).__qualname__
    custom.classes.add(kind)
    recorder = _RecordCopies(module, prefix)
    try:
        with warnings.catch_warnings(), recorder:
            warnings.filterwarnings("ignore", NO_OP_WARNING, UserWarning)
            module._load_from_state_dict(state, prefix, metadata, True, missing, unexpected, messages)  # noqa: FBT003 - torch's
        recorder.follow_targets()
    except Exception as error:
        custom.written += recorder.written
        done = loaded_by_code(custom) or "nothing was loaded"
        error.add_note(f"in the loading code of {kind} at {prefix[:-1] or 'the root'!r}; {done}")
        if type(module).__module__.startswith("torch.ao.nn."):
            error.add_note(
                "quantized modules pack what they load: give model.load_state_dict what rustload.torch.load(path) gives"
            )
        raise
    custom.written += recorder.written
    for name, value in recorder.copied.items():
        _add(custom, name, value)
    for attribute, tensor in _own_tensors(module):
        name = prefix + attribute
        if name in recorder.copied:
            continue
        if name in state and name not in missing and hasattr(state[name], "shape"):
            # Not copied because its shape differs: the plan reports the mismatch, so the code's message is dropped.
            others = [message for message in messages if not message.startswith(f"size mismatch for {name}:")]
            if len(others) < len(messages):
                messages = others
                _add(custom, name, state[name])
                continue
        if name not in missing and not tensor.is_meta:
            custom.silent.add(name)
    for name in unexpected:
        if name in state:
            _add(custom, name, state[name])
    own = {prefix + attribute for attribute, _ in _own_tensors(module)}
    custom.missing += [name for name in missing if name not in own and name.rpartition(".")[2] != EXTRA]
    custom.messages += [f"{kind}: {message}" for message in messages]


def _add(custom: CustomLoading, name: str, value: Any) -> None:
    if isinstance(value, TorchHandle):
        custom.tensors[name] = value.lazy
    elif isinstance(value, torch.Tensor):
        custom.tensors[name] = ComputedTensor(value, name)
    elif name not in custom.values:
        custom.messages.append(f"{name} is a {type(value).__name__}, not a tensor")


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The module's own parameters and persistent buffers."""
    own: dict[str, Any] = {**module._parameters, **module._buffers}
    for name, tensor in own.items():
        if tensor is not None and name not in module._non_persistent_buffers_set:
            yield name, tensor


class _RecordCopies(TorchFunctionMode):
    """Records `Tensor.copy_` into tensors of a module instead of executing it.

    A copy is executed after all, if the target has memory, before other code uses that memory; a computed source that is about
    to be changed is cloned. Targets are tensors, not names: the code may go on to move or replace them.
    """

    def __init__(self, module: torch.nn.Module, prefix: str) -> None:
        super().__init__()
        self._module = module
        self._prefix = prefix
        self.copied: dict[str, Any] = {}
        self.written: list[str] = []
        self._targets: dict[str, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.copy_ and len(args) >= 2:
            name, source = self._name(args[0]), self._name(args[1])
            if name is not None:
                if name != source:
                    self.copied[name] = args[1] if source is None else self._value(source, args[1])
                    self._targets[name] = args[0]
                return args[0]
        if self.copied and not _reads_metadata(func):
            used = list(_tensors([*args, *kwargs.values()]))
            changes = _is_in_place(func) or "out" in kwargs
            self._execute_copies(used, changes=changes)
            if changes:
                self._keep_sources(used)
        return func(*args, **kwargs)

    def follow_targets(self) -> None:
        """Gives each copy the name that its target has after the code has run, which may have moved or replaced it."""
        copied, self.copied = self.copied, {}
        for name, target in self._targets.items():
            now = self._name(target)
            if now is not None:
                self.copied[now] = copied[name]
            elif not target.is_meta:  # another tensor may share its memory
                self._execute(name, target, copied[name])

    def _execute_copies(self, used: list[torch.Tensor], *, changes: bool) -> None:
        """Executes the recorded copies into tensors whose memory a function is about to use.

        Raises:
            UnsupportedError: The function would change a tensor on the meta device (code `DtypeUnsupported`).
        """
        storages = {_storage(one) for one in used}
        for name, target in list(self._targets.items()):
            value = self.copied[name]
            if _storage(target) not in storages or tuple(value.shape) != tuple(target.shape):
                continue
            if not target.is_meta:
                self._execute(name, target, self.copied.pop(name))
                del self._targets[name]
            elif changes:
                text = f"the model's own loading code changes {name!r} after it is copied, and it is on the meta device"
                raise _error(
                    "DtypeUnsupported", text, "build the model with memory: not under torch.device('meta')"
                )

    def _execute(self, name: str, target: torch.Tensor, value: Any) -> None:
        with torch.no_grad():
            target.copy_(value)
        self.written.append(name)

    def _keep_sources(self, used: list[torch.Tensor]) -> None:
        """Clones the computed sources whose memory a function may be about to change."""
        changed = {_storage(one) for one in used}
        for name, value in self.copied.items():
            if isinstance(value, torch.Tensor) and _storage(value) in changed:
                self.copied[name] = value.detach().clone()

    def _value(self, name: str, tensor: torch.Tensor) -> Any:
        """What one of the module's tensors has now: what is to be copied into it, or a clone."""
        return self.copied[name] if name in self.copied else tensor.detach().clone()

    def _name(self, target: Any) -> str | None:
        """The name in the model of a tensor, or else of one that is a view of all of it; the module's own tensors first."""
        for is_same in (operator.is_, _is_view_of_all) if isinstance(target, torch.Tensor) else ():
            for prefix, module in _modules(self._module, self._prefix):
                for name, tensor in _own_tensors(module):
                    if is_same(tensor, target):
                        return prefix + name
        return None


_METADATA = frozenset(
    (
        "size",
        "dim",
        "numel",
        "nelement",
        "stride",
        "element_size",
        "is_floating_point",
        "is_complex",
        "is_contiguous",
    )
)
_ALIASES = frozenset(("data", "T", "mT", "H", "mH", "real", "imag"))
_IN_PLACE = frozenset(("__setitem__", "__set__"))


def _reads_metadata(func: Any) -> bool:
    """Whether a function of torch neither gives nor changes elements of its arguments."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        return getattr(getattr(func, "__self__", None), "__name__", None) not in _ALIASES
    return name in _METADATA


def _is_in_place(func: Any) -> bool:
    """Whether a function of torch may change its first argument."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name in _IN_PLACE or (
            name.startswith("__i") and name not in ("__invert__", "__index__", "__int__")
        )
    return name.endswith("_") and name not in ("requires_grad_", "detach_")


def _tensors(values: list[Any] | tuple[Any, ...]) -> Iterator[torch.Tensor]:
    """The tensors among arguments, also in lists, as `torch.cat` takes them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _storage(tensor: torch.Tensor) -> int:
    """The identity of the tensor's storage, on the meta device too; the tensor's own if it has none."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, ValueError):  # sparse; uninitialized
        return id(tensor)


def _is_view_of_all(one: Any, other: torch.Tensor) -> bool:
    """Whether two tensors are the same elements in the same order."""
    is_tensor = isinstance(one, torch.Tensor)  # not a handle
    return is_tensor and _storage(one) == _storage(other) and _elements(one) == _elements(other)


def _elements(tensor: torch.Tensor) -> tuple[Any, ...]:
    places = (tensor.shape, tensor.stride(), tensor.storage_offset())
    return *places, tensor.dtype, tensor.is_conj(), tensor.is_neg()


def check_scaled(tensors: Mapping[str, LazyTensor | ComputedTensor]) -> None:
    """Raises if the model's own code computed with fp8 numbers, which are then not multiplied by their scales.

    Raises:
        UnsupportedError: It did (code `DtypeUnsupported`).
    """
    for name, one in tensors.items():
        if isinstance(one, ComputedTensor) and one.dtype.startswith("float8"):
            text = f"the model's own loading code computes {name!r} of fp8 numbers without their scales"
            raise _error("DtypeUnsupported", text, "convert the file with dequantize=True first")


def run_post_hooks(model: torch.nn.Module, missing: list[str], unexpected: list[str]) -> bool:
    """Calls the post hooks of `load_state_dict`, which may change the lists, as `Module.load_state_dict` does.

    A hook gets the names of its module and of those before it, so one that clears the lists hides none of later modules.

    Returns:
        Whether there were any hooks.
    """
    keys = torch.nn.modules.module._IncompatibleKeys([], [])
    left: list[dict[str, list[str]]] = [{}, {}]
    for names, by_module in zip((missing, unexpected), left, strict=True):
        for name in names:
            by_module.setdefault(_module_of(model, name), []).append(name)
    found = False

    def visit(module: torch.nn.Module, prefix: str) -> None:
        nonlocal found
        for given, by_module in zip(keys, left, strict=True):
            given.extend(by_module.pop(prefix, []))
        for name, child in module._modules.items():
            if child is not None:
                visit(child, f"{prefix}{name}.")
        for hook in module._load_state_dict_post_hooks.values():
            found = True
            if hook(module, keys) is not None:
                raise _error(
                    "Type",
                    f"a hook of {type(module).__qualname__} that runs after loading gave a value, not None",
                )

    visit(model, "")
    if found:
        missing[:], unexpected[:] = keys
    return found


def _module_of(model: torch.nn.Module, name: str) -> str:
    """The prefix of the names of the innermost module that a name belongs to."""
    prefix, module = "", model
    for part in name.split("."):
        inner = module._modules[part] if part in module._modules else None  # noqa: SIM401 - a scripted module's have no `get`
        if inner is None:
            break
        prefix, module = f"{prefix}{part}.", inner
    return prefix
