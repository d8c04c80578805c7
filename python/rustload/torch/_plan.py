"""Plans a load: which tensor of the file goes into which tensor of the model, with which conversion, and what does not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from rustload._checkpoint.names import below
from rustload._common.request import dims_of
from rustload._frameworks.torch import torch_dtype
from rustload._tensor.handle import LazyTensor
from rustload.errors import _error
from rustload.torch._dcp_contents import with_tensors
from rustload.torch._hooks import ComputedTensor
from rustload.torch._report import PART_OF, Mismatch
from rustload.torch._shards import is_dtensor, local_of, local_runs, local_tensor, runs_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._common.patterns import Key
    from rustload._common.request import Cast
    from rustload._common.rules import Rules
    from rustload.torch._hooks import CustomLoading
    from rustload.torch._slots import Slot

EXTRA = "_extra_state"


@dataclasses.dataclass(frozen=True)
class LoadOptions:
    """Arguments of `load_into` that apply to every tensor."""

    rules: Rules
    device_of: Callable[[Slot], torch.device | None]
    assign: Literal["auto"] | bool
    copy: bool | None
    allow_lossy: bool
    window: int
    dequantize: bool = False
    cast: Cast = "auto"


@dataclasses.dataclass
class Step:
    """One tensor to load.

    Attributes:
        slot: The destination in the model.
        lazy: What to read: the tensor of the file, in the model's order of dimensions; of a DTensor, the part of this rank.
        whole: The whole tensor of the file, in the model's order of dimensions.
        dtype: The dtype of the result.
        device: The device of the result.
        is_new: Whether the slot gets new storage; otherwise it is written in place.
        is_lazy: Whether the slot is the parameter of a lazy module, which takes the shape of the file.
        copy: As `copy=` of `materialize`: None allows new storage to be a view of the file, True does not.
        also: Other slots that become the same tensor, because they are tied in the file.
        others: Other tensors of the file for the same slot, which must be equal.
        dequantize: Whether its integers are dequantized.
    """

    slot: Slot
    lazy: LazyTensor
    whole: LazyTensor
    dtype: str
    device: torch.device
    is_new: bool
    is_lazy: bool
    copy: bool | None
    also: list[Slot] = dataclasses.field(default_factory=list)
    others: list[LazyTensor] = dataclasses.field(default_factory=list)
    dequantize: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return self.lazy.numel() * torch_dtype(self.dtype).itemsize

    @property
    def nbytes_read(self) -> int:
        """Bytes that are read or mapped for it, in the file's dtype."""
        sources: list[Any] = [self.lazy, *self.others]
        return sum(one.nbytes for one in sources if not isinstance(one, ComputedTensor))


@dataclasses.dataclass
class Plan:
    """The steps of a load, and everything that does not fit."""

    steps: list[Step] = dataclasses.field(default_factory=list)
    missing: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    unexpected: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    mismatched: list[Mismatch] = dataclasses.field(default_factory=list)
    extra: list[tuple[torch.nn.Module, Any]] = dataclasses.field(default_factory=list)
    unfilled: list[Slot] = dataclasses.field(default_factory=list)
    messages: list[str] = dataclasses.field(default_factory=list)

    def notes(self) -> list[str]:
        """Remarks that are not errors."""
        parts = [step for step in self.steps if _is_lone_part(step)]
        if not parts:
            return []
        first = parts[0]
        what = f"{first.slot.names[0]!r} is {_part_text(first.whole)}"
        return [f"{len(parts)} tensor(s) of the model were loaded from parts of larger ones: {what}"]

    def faults(self) -> bool:
        """Whether anything does not fit."""
        return bool(self.missing or self.unexpected or self.mismatched or self.messages)

    def groups(self) -> list[list[str]]:
        """For each step, the names that its tensor has in the model."""
        return [
            [*step.slot.names, *(name for slot in step.also for name in slot.names)] for step in self.steps
        ]


def make_plan(
    model: torch.nn.Module,
    slots: list[Slot],
    tensors: dict[str, LazyTensor],
    options: LoadOptions,
    *,
    checkpoint: Checkpoint,
    key: Key,
    new_name: Callable[[str], str | None],
    custom: CustomLoading | None = None,
) -> Plan:
    """Matches the model's tensors with the file's, or with the result of the model's custom loading code; reads no tensor.

    `tensors` have their new names already; `new_name` gives those of other values below `key`.
    """
    plan = Plan()
    silent: set[str] = set()
    if custom is not None:
        tensors, silent = custom.tensors, custom.silent
        plan.messages = custom.messages
        plan.missing = dict.fromkeys(custom.missing, ())
    left = dict(tensors)
    position = {name: number for number, name in enumerate(tensors)}
    placed: list[tuple[int, Step]] = []
    new_by_source: dict[Any, Step] = {}
    for slot in slots:
        names = [name for name in slot.names if name in left] if slot.persistent else []
        if not names:
            plan.unfilled.append(slot)
            if slot.persistent and not is_batch_counter(slot) and silent.isdisjoint(slot.names):
                plan.missing[slot.names[0]] = _shape(slot.tensor) or ()
            continue
        if custom is None:
            sources = [apply_transpose(left.pop(name), options.rules) for name in names]
        else:
            sources = [(lazy, lazy.name in custom.transposed) for lazy in map(left.pop, names)]
        step = _step(slot, sources, options, plan.mismatched)
        if step is None:
            plan.unfilled.append(slot)
            continue
        if step.is_new and (slot.on_meta or options.assign is True) and step.whole.numel():
            kind = (step.dtype, step.device, slot.is_parameter, type(slot.tensor), slot.tensor.requires_grad)
            tied = new_by_source.setdefault((_identity(step.whole), kind, _sharding(slot.tensor)), step)
            if tied is not step:
                tied.also.append(slot)
                tied.others += step.others
                continue
        placed.append((position[names[0]], step))
    plan.steps = [step for _, step in sorted(placed, key=lambda one: one[0])]
    _extra_states(model, left, checkpoint, key, new_name, plan)
    plan.unexpected = {name: lazy.shape for name, lazy in left.items()}
    return plan


def check_casts(plan: Plan, checkpoint: Checkpoint) -> None:
    """Raises for codes of a quantization that would be cast into the model without the scales that the checkpoint has.

    Raises:
        UnsupportedError: There are such codes (code `QuantUnknown`).
    """
    unscaled = [step for step in plan.steps if not step.dequantize and step.whole._is_scaled()]
    cast = [step for step in unscaled if step.dtype != step.whole.dtype]
    if not cast:
        return
    loaded = {step.whole.name for step in plan.steps}
    scaled = {lazy._core.companion_of for name, lazy in checkpoint.items() if name not in loaded}
    for step in cast:
        if step.whole.name in scaled:
            codes = f"the codes of a quantized weight ({step.whole.dtype})"
            text = f"{step.slot.names[0]!r} would get {codes} as {step.dtype} numbers"
            raise _error(
                "QuantUnknown",
                text,
                "dequantize=True, with a path or in open(), multiplies them by their scales",
            )


def _step(
    slot: Slot, sources: Sequence[tuple[LazyTensor, bool]], options: LoadOptions, faults: list[Mismatch]
) -> Step | None:
    """The step for a slot; None if the tensor does not fit, which is added to `faults`."""
    shape = _shape(slot.tensor)
    fitting = [(_as_scalar(lazy, shape), moved) for lazy, moved in sources]
    is_own = all(_is_own_part(slot, lazy) for lazy, _ in fitting)
    for lazy, _ in fitting:
        if shape is not None and lazy.shape != shape and not is_own:
            part = getattr(lazy, "part", None)
            faults.append(Mismatch(slot.names[0], _part_text(lazy) if part else lazy.shape, shape))
            return None
    lazy, moved = fitting[0]
    current = str(slot.tensor.dtype).removeprefix("torch.")
    dequantize = options.dequantize and lazy._is_scaled()
    dtype = _dtype(slot, lazy, current, options, dequantize=dequantize)
    if lazy.quantization is not None and dtype != lazy.dtype and not dequantize:
        # Integers without their scale are not weights; torch rejects such a copy too.
        faults.append(Mismatch(slot.names[0], f"quantized ({lazy.quantization.dtype})", dtype))
        return None
    if not options.allow_lossy and _is_lossy("float32" if dequantize else lazy.dtype, dtype):
        faults.append(Mismatch(slot.names[0], lazy.dtype, dtype))
        return None
    device = options.device_of(slot) or (torch.device("cpu") if slot.on_meta else slot.tensor.device)
    is_new = (
        options.assign is True
        or slot.on_meta
        or dtype != current
        or not _same_device(device, slot.tensor.device)
    )
    if is_new and options.assign is False:
        existing = f"{current} on {slot.tensor.device}"
        raise _error(
            "Value",
            f"assign=False writes into what is there, but {slot.names[0]!r} is {existing}, not {dtype} on {device}",
        )
    held = local_tensor(slot.tensor) if is_dtensor(slot.tensor) else slot.tensor
    if is_new and type(held).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        kind = type(held).__name__
        note = "load before the model is sharded or quantized, or write in place"
        raise _error(
            "DtypeUnsupported",
            f"{slot.names[0]!r} is a {kind}, whose storage is not plain",
            note,
        )
    others = [other for other, _ in fitting[1:] if _identity(other) != _identity(lazy)]
    copy = True if moved else options.copy
    is_lazy = torch.nn.parameter.is_lazy(slot.tensor)
    here, *others = [lazy, *others] if is_own else _held_here(slot, [lazy, *others])
    return Step(slot, here, lazy, dtype, device, is_new, is_lazy, copy, others=others, dequantize=dequantize)


def _part_text(lazy: LazyTensor) -> str:
    """The shape of a part of a tensor, and what it is a part of."""
    part = lazy.part
    whole = "a larger tensor" if part is None or part.shape is None else list(part.shape)
    return f"{list(lazy.shape)}{PART_OF}{whole}"


def _is_lone_part(step: Step) -> bool:
    """Whether a plain tensor of the model gets a part of a larger one."""
    part = getattr(step.whole, "part", None)
    is_all = part is not None and part.shape in (None, step.whole.shape) and not any(part.offsets or ())
    return part is not None and not is_all and not is_dtensor(step.slot.tensor)


def _is_own_part(slot: Slot, lazy: LazyTensor) -> bool:
    """Whether the file has just what this rank holds of a DTensor."""
    part = getattr(lazy, "part", None)
    if part is None or part.offsets is None or not is_dtensor(slot.tensor):
        return False
    runs = local_runs(slot.tensor, slot.names[0])
    if runs is None or part.shape not in (None, tuple(slot.tensor.shape)):
        return False
    held = [(start, start + size) for start, size in zip(part.offsets, lazy.shape, strict=True)]
    return runs_shape(runs) == lazy.shape and all(
        not run or run == [box] for run, box in zip(runs, held, strict=True)
    )


def _held_here(slot: Slot, tensors: list[LazyTensor]) -> list[LazyTensor]:
    """Of each tensor the part that this rank holds, if the slot is a DTensor."""
    if not is_dtensor(slot.tensor):
        return tensors
    name = slot.names[0]
    runs = local_runs(slot.tensor, name)
    if runs is None:  # this rank is not in the mesh: its local tensor is empty
        shape = slot.tensor._local_tensor.shape  # type: ignore[attr-defined]
        empty = torch.empty(shape, dtype=torch_dtype(tensors[0].dtype), device="cpu")
        return [ComputedTensor(empty, name)]  # type: ignore[list-item]  # it has the interface that a plan uses
    return [local_of(lazy, runs, name) for lazy in tensors]


def _sharding(tensor: torch.Tensor) -> Any:
    """A key that is equal for two tensors that are sharded in the same way; None for a plain tensor."""
    return (tensor.device_mesh, tensor.placements) if is_dtensor(tensor) else None  # type: ignore[attr-defined]


def apply_transpose(lazy: LazyTensor, rules: Rules) -> tuple[LazyTensor, bool]:
    """Applies the transpose rule to a tensor; returns it and whether it was transposed."""
    order = rules.transpose(lazy)
    return (lazy.permute(*dims_of(order, lazy.ndim)), True) if order else (lazy, False)


def _dtype(slot: Slot, lazy: LazyTensor, current: str, options: LoadOptions, *, dequantize: bool) -> str:
    found = options.rules.dtype(lazy, is_float=dequantize)
    if found is not None and not (options.rules._is_plain_dtype and not slot.tensor.dtype.is_floating_point):
        return found
    own = "float32" if dequantize else lazy.dtype
    return own if options.assign is True else current


def _is_lossy(source: str, target: str) -> bool:
    """Whether the cast is lossy in the sense of `allow_lossy` of `LazyTensor.materialize`."""
    one, two = torch_dtype(source), torch_dtype(target)
    if source == target:
        return False
    if target == "bool":
        return True
    if one.is_complex:
        return not two.is_complex
    return one.is_floating_point and not (two.is_floating_point or two.is_complex)


def _shape(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The shape; None for the parameter of a lazy module, which takes the shape of the file."""
    return None if torch.nn.parameter.is_lazy(tensor) else tuple(tensor.shape)


def _as_scalar(lazy: LazyTensor, shape: tuple[int, ...] | None) -> LazyTensor:
    """Converts shape (1,) to (), because torch 0.3 and older saved scalars so; `Module.load_state_dict` does the same."""
    return lazy[0] if shape == () and lazy.shape == (1,) else lazy


def _same_device(one: torch.device, two: torch.device) -> bool:
    return one == two or (one.type == two.type and None in (one.index, two.index) and one.type != "meta")


def _identity(lazy: LazyTensor | ComputedTensor) -> Any:
    """A key that is equal for two tensors of a file with the same elements and scales."""
    return id(lazy.tensor) if isinstance(lazy, ComputedTensor) else lazy._place()


def is_batch_counter(slot: Slot) -> bool:
    """Whether it is `num_batches_tracked` of a batch norm; files from before torch 0.4 lack it, and it then keeps its value."""
    return any(
        attribute == "num_batches_tracked" and isinstance(module, torch.nn.modules.batchnorm._NormBase)
        for module, attribute in slot.owners
    )


def _extra_states(
    model: torch.nn.Module,
    left: dict[str, LazyTensor],
    checkpoint: Checkpoint,
    key: Key,
    new_name: Callable[[str], str | None],
    plan: Plan,
) -> None:
    """Adds the extra state (`set_extra_state`) of modules to the plan."""
    others: dict[str | None, Any] | None = None
    for prefix, module in model.named_modules(remove_duplicate=False):
        if type(module).set_extra_state is torch.nn.Module.set_extra_state:
            continue
        name = f"{prefix}.{EXTRA}" if prefix else EXTRA
        if name in left:
            plan.extra.append((module, left.pop(name).materialize(framework="torch", copy=True)))
            continue
        if others is None:
            saved = saved_values(checkpoint, key)
            others = {new_name(old): value for old, value in saved if old.rpartition(".")[2] == EXTRA}
        if name in others:
            plan.extra.append((module, with_tensors(others[name])))
            for inner in [one for one in left if one.startswith(f"{name}.")]:
                del left[inner]
        else:
            plan.missing[name] = ()


def saved_values(checkpoint: Checkpoint, key: Key) -> Iterator[tuple[str, Any]]:
    """The values below a key of the file that are not tensors, by their names there."""
    tree = below(checkpoint.objects, key)
    for name in tree if isinstance(tree, Mapping) else ():
        if isinstance(name, str) and not isinstance(tree[name], LazyTensor):
            yield name, tree[name]
