"""What a load is going to do: which tensor of the file goes into which tensor of the model, how, and what does not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch

from rustload._frameworks.torch import torch_dtype
from rustload.errors import _make
from rustload.torch._hooks import Made
from rustload.torch._report import Mismatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._checkpoint.names import Key
    from rustload._common.rules import Rules
    from rustload._tensor.handle import LazyTensor
    from rustload.torch._hooks import Own
    from rustload.torch._slots import Slot

__all__ = ["Plan", "Step", "Wish", "is_counter", "ordered", "plan_of"]

EXTRA = "_extra_state"


@dataclasses.dataclass(frozen=True)
class Wish:
    """The arguments that say how."""

    rules: Rules
    place: Callable[[Slot], torch.device | None]
    assign: Literal["auto"] | bool
    copy: bool | None
    allow_lossy: bool
    window: int


@dataclasses.dataclass
class Step:
    """One tensor to be read.

    Attributes:
        slot: Where it goes.
        lazy: What is read, in the order of the model's dimensions.
        dtype: What it is to be.
        device: Where it is to be.
        is_new: Whether it gets new storage.
        is_lazy: Whether it is a lazy module's parameter, which takes the file's shape.
        copy: Whether that may be a view of the file.
        also: Other slots that become the same tensor, being tied in the file.
        others: Other tensors of the file for the same slot, which must be equal.
    """

    slot: Slot
    lazy: LazyTensor
    dtype: str
    device: torch.device
    is_new: bool
    is_lazy: bool
    copy: bool | None
    also: list[Slot] = dataclasses.field(default_factory=list)
    others: list[LazyTensor] = dataclasses.field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        return self.lazy.size * torch_dtype(self.dtype).itemsize


@dataclasses.dataclass
class Plan:
    """What is to be done, and what does not fit."""

    steps: list[Step] = dataclasses.field(default_factory=list)
    missing: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    unexpected: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    mismatched: list[Mismatch] = dataclasses.field(default_factory=list)
    extra: list[tuple[torch.nn.Module, Any]] = dataclasses.field(default_factory=list)
    unfilled: list[Slot] = dataclasses.field(default_factory=list)
    messages: list[str] = dataclasses.field(default_factory=list)

    def faults(self) -> bool:
        """Whether anything does not fit."""
        return bool(self.missing or self.unexpected or self.mismatched or self.messages)

    def groups(self) -> list[list[str]]:
        """For each step, the names that its tensor has in the model."""
        return [
            [*step.slot.names, *(name for slot in step.also for name in slot.names)] for step in self.steps
        ]


def plan_of(
    model: torch.nn.Module,
    slots: list[Slot],
    tensors: dict[str, LazyTensor],
    wish: Wish,
    *,
    checkpoint: Checkpoint,
    key: Key,
    own: Own | None = None,
) -> Plan:
    """Matches the model's tensors with the file's, or with what the model's own code made of them; reads no tensor."""
    plan = Plan()
    silent: set[str] = set()
    if own is not None:
        tensors, silent = own.tensors, own.silent
        plan.messages = own.messages
        plan.missing = dict.fromkeys(own.missing, ())
    left = dict(tensors)
    position = {name: number for number, name in enumerate(tensors)}
    placed: list[tuple[int, Step]] = []
    fresh: dict[Any, Step] = {}
    for slot in slots:
        names = [name for name in slot.names if name in left] if slot.persistent else []
        if not names:
            plan.unfilled.append(slot)
            if slot.persistent and not is_counter(slot) and silent.isdisjoint(slot.names):
                plan.missing[slot.names[0]] = _shape(slot.tensor) or ()
            continue
        if own is None:
            sources = [ordered(left.pop(name), wish.rules) for name in names]
        else:
            sources = [(lazy, lazy.name in own.transposed) for lazy in map(left.pop, names)]
        step = _step(slot, sources, wish, plan.mismatched)
        if step is None:
            plan.unfilled.append(slot)
            continue
        if step.is_new and (slot.on_meta or wish.assign is True) and step.lazy.size:
            kind = (step.dtype, step.device, slot.is_parameter, type(slot.tensor), slot.tensor.requires_grad)
            tied = fresh.setdefault((_identity(step.lazy), kind), step)
            if tied is not step:
                tied.also.append(slot)
                tied.others += step.others
                continue
        placed.append((position[names[0]], step))
    plan.steps = [step for _, step in sorted(placed, key=lambda one: one[0])]
    _extra_states(model, left, checkpoint, key, plan)
    plan.unexpected = {name: lazy.shape for name, lazy in left.items()}
    return plan


def _step(
    slot: Slot, sources: Sequence[tuple[LazyTensor, bool]], wish: Wish, faults: list[Mismatch]
) -> Step | None:
    """How the slot is filled; None where it does not fit, which `faults` then tells."""
    shape = _shape(slot.tensor)
    fitting = [(_unboxed(lazy, shape), moved) for lazy, moved in sources]
    for lazy, _ in fitting:
        if shape is not None and lazy.shape != shape:
            faults.append(Mismatch(slot.names[0], lazy.shape, shape))
            return None
    lazy, moved = fitting[0]
    current = str(slot.tensor.dtype).removeprefix("torch.")
    dtype = _dtype(slot, lazy, current, wish)
    if lazy.quantization is not None and dtype != lazy.dtype:
        # Its integers are no weights without their scale; torch refuses such a copy, too.
        faults.append(Mismatch(slot.names[0], f"quantized ({lazy.quantization.dtype})", dtype))
        return None
    if not wish.allow_lossy and _loses(lazy.dtype, dtype):
        faults.append(Mismatch(slot.names[0], lazy.dtype, dtype))
        return None
    device = wish.place(slot) or (torch.device("cpu") if slot.on_meta else slot.tensor.device)
    is_new = (
        wish.assign is True
        or slot.on_meta
        or dtype != current
        or not _same_device(device, slot.tensor.device)
    )
    if is_new and wish.assign is False:
        where = f"{current} on {slot.tensor.device}"
        raise _make(
            "Value",
            "Value",
            f"assign=False writes into what is there, but {slot.names[0]!r} is {where}, not {dtype} on {device}",
        )
    if is_new and type(slot.tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        kind = type(slot.tensor).__name__
        note = "load before the model is sharded or quantized, or write in place"
        raise _make(
            "Unsupported",
            "DtypeUnsupported",
            f"{slot.names[0]!r} is a {kind}, whose storage is not plain",
            note,
        )
    others = [other for other, _ in fitting[1:] if _identity(other) != _identity(lazy)]
    copy = True if moved else wish.copy
    is_lazy = torch.nn.parameter.is_lazy(slot.tensor)
    return Step(slot, lazy, dtype, device, is_new, is_lazy, copy, others=others)


def ordered(lazy: LazyTensor, rules: Rules) -> tuple[LazyTensor, bool]:
    """The tensor in the order that the rules say, and whether that is another than the file's."""
    order = rules.transpose(lazy)
    if not order:
        return lazy, False
    if order is True:
        if lazy.ndim < 2:
            raise _make(
                "Value", "Value", f"transpose=True for {lazy.name!r}, which has {lazy.ndim} dimension(s)"
            )
        order = [*range(lazy.ndim - 2), lazy.ndim - 1, lazy.ndim - 2]
    return lazy.permute(order), True  # type: ignore[arg-type]  # a list is as good as a tuple


def _dtype(slot: Slot, lazy: LazyTensor, current: str, wish: Wish) -> str:
    found = wish.rules.dtype(lazy)
    if found is not None and not (wish.rules._plain and not slot.tensor.dtype.is_floating_point):
        return found
    return lazy.dtype if wish.assign is True else current


def _loses(source: str, target: str) -> bool:
    """Whether the cast changes the kind of number, as `LazyTensor.materialize` has it."""
    one, two = torch_dtype(source), torch_dtype(target)
    if source == target:
        return False
    if target == "bool":
        return True
    if one.is_complex:
        return not two.is_complex
    return one.is_floating_point and not (two.is_floating_point or two.is_complex)


def _shape(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """None for a parameter of a lazy module, which takes the file's."""
    return None if torch.nn.parameter.is_lazy(tensor) else tuple(tensor.shape)


def _unboxed(lazy: LazyTensor, shape: tuple[int, ...] | None) -> LazyTensor:
    """Scalars that torch 0.3 and older saved with one dimension, as `Module.load_state_dict` takes them."""
    return lazy[0] if shape == () and lazy.shape == (1,) else lazy


def _same_device(one: torch.device, two: torch.device) -> bool:
    return one == two or (one.type == two.type and None in (one.index, two.index) and one.type != "meta")


def _identity(lazy: LazyTensor | Made) -> Any:
    """What two tensors of a file have in common if they are the same elements."""
    if isinstance(lazy, Made):
        return id(lazy.tensor)
    return lazy._core.storage, lazy._core.offset, lazy.dtype, lazy.shape, lazy.strides


def is_counter(slot: Slot) -> bool:
    """Whether it is the counter of a batch norm, which files from before torch 0.4 do not have, and which then stays as it is."""
    return any(
        attribute == "num_batches_tracked" and isinstance(module, torch.nn.modules.batchnorm._NormBase)
        for module, attribute in slot.places
    )


def _extra_states(
    model: torch.nn.Module, left: dict[str, LazyTensor], checkpoint: Checkpoint, key: Key, plan: Plan
) -> None:
    """What modules keep beside tensors, for those that can take it."""
    for prefix, module in model.named_modules():
        if type(module).set_extra_state is torch.nn.Module.set_extra_state:
            continue
        name = f"{prefix}.{EXTRA}" if prefix else EXTRA
        tree = checkpoint.objects
        for part in key if isinstance(key, tuple) else key.split(".") if key else ():
            tree = tree.get(part) if isinstance(tree, Mapping) else None
        if name in left:
            plan.extra.append((module, left.pop(name).materialize(framework="torch")))
        elif isinstance(tree, Mapping) and name in tree:
            plan.extra.append((module, tree[name]))
        else:
            plan.missing[name] = ()
