"""Writes checkpoints as DeepSpeed ZeRO does, without it: the files of all ranks, with partitions by the rules of its optimizers.

The classes that its pickles name are stand-ins of the same names, which exist only while a file is written.
"""

import contextlib
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

__all__ = ["EXPERTS", "Run", "expert_name", "model_name", "optimizer_name", "write", "write_universal"]

EXPERTS = ".deepspeed_moe.experts.deepspeed_experts."
"""What stands before the number of an expert in the name of its parameter."""


class ZeroStageEnum(IntEnum):
    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3


@dataclass
class fragment_address:  # noqa: N801 (the name in DeepSpeed)
    numel: int
    start: int


class DynamicLossScaler:
    def __init__(self) -> None:
        self.cur_scale = 65536.0


CLASSES: dict[str, type] = {
    "deepspeed.runtime.zero.config": ZeroStageEnum,
    "deepspeed.utils.tensor_fragment": fragment_address,
    "deepspeed.runtime.fp16.loss_scaler": DynamicLossScaler,
}


@contextlib.contextmanager
def deepspeed() -> Iterator[None]:
    """The stand-ins under their names."""
    made = {}
    for module, cls in CLASSES.items():
        names = module.split(".")
        for count in range(1, len(names) + 1):
            name = ".".join(names[:count])
            made.setdefault(name, types.ModuleType(name))
        setattr(made[module], cls.__name__, cls)
        cls.__module__ = module
    missing = {name: module for name, module in made.items() if name not in sys.modules}
    sys.modules.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del sys.modules[name]


@dataclass
class Run:
    """What a run has, and how it is saved.

    Attributes:
        groups: By group, or by sub-group in stage 3, the fp32 parameters by name.
        stage: 0 for `BF16_Optimizer`.
        world: Ranks of data parallelism.
        moments: By group the states of the optimizer, each of the parameters' shapes.
        align: Pads parameters of stage 1 and 2 to this many elements.
        compute: The dtype that the model has.
        change: Called with each file's name and content before it is saved.
        experts: By group of the optimizer, the parameters of all experts. Their moments follow those of `groups`.
        sets: Into how many sets, each of a part of the experts, ranks are divided.
        data_first: Whether the ranks of a set have consecutive numbers.
        round_robin: Whether ranges are stated in another order than the parameters have.
        shuffled: Whether every other rank has the groups of experts in another order.
    """

    groups: list[dict[str, torch.Tensor]]
    stage: int
    world: int
    moments: list[dict[str, dict[str, torch.Tensor]]] = field(default_factory=list)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    frozen: dict[str, torch.Tensor] = field(default_factory=dict)
    shared: dict[str, str] = field(default_factory=dict)
    align: int = 1
    compute: torch.dtype = torch.bfloat16
    master: torch.dtype = torch.float32
    mappings: bool = True
    elastic: bool = False
    last_states_all_padding: bool = False
    step: int = 7
    client: dict[str, Any] = field(default_factory=dict)
    change: Callable[[str, dict[str, Any]], Any] | None = None
    experts: list[dict[str, torch.Tensor]] = field(default_factory=list)
    sets: int = 1
    data_first: bool = False
    shuffled: bool = False
    round_robin: bool = False

    def masters(self) -> dict[str, torch.Tensor]:
        groups = self.groups + self.experts
        return {name: tensor.to(self.master) for group in groups for name, tensor in group.items()}

    def layers(self) -> dict[str, int]:
        """By what the names of a layer's experts begin with, how many there are."""
        numbers: dict[str, set[str]] = {}
        for name in (name for group in self.experts for name in group):
            head, _, rest = name.partition(EXPERTS)
            numbers.setdefault(head, set()).add(rest.partition(".")[0])
        return {head: len(own) for head, own in numbers.items()}

    def local(self, tensors: dict[str, torch.Tensor], chosen: int) -> dict[str, torch.Tensor]:
        """Those of the experts that a set of ranks has, by their numbers in it."""
        layers, found = self.layers(), {}
        for name, tensor in tensors.items():
            head, _, rest = name.partition(EXPERTS)
            number, dot, tail = rest.partition(".")
            own, local = divmod(int(number), layers[head] // self.sets)
            if own == chosen:
                found[f"{head}{EXPERTS}{local}{dot}{tail}"] = tensor
        return found


def model_name(stage: int, rank: int, tensor_rank: int = 0) -> str:
    head = f"zero_pp_rank_{rank}_" if stage == 3 else ""
    return f"{head}mp_rank_{tensor_rank:02d}_model_states.pt"


def optimizer_name(run: Run, rank: int, tensor_rank: int = 0) -> str:
    head = "bf16_" if run.compute == torch.bfloat16 else ""
    return f"{head}zero_pp_rank_{rank}_mp_rank_{tensor_rank:02d}_optim_states.pt"


def expert_name(layer: int, expert: int) -> str:
    return f"layer_{layer}_expert_{expert}_mp_rank_00_model_states.pt"


def save(run: Run, path: Path, content: dict[str, Any]) -> None:
    if run.change is not None:
        run.change(path.name, content)
    with deepspeed():
        torch.save(content, path)


def write(root: Path, run: Run, *, tag: str = "global_step7", tensor_rank: int = 0) -> Path:
    """Writes the files of all ranks in `root/tag`, and `root/latest`; returns the root."""
    folder = root / tag
    folder.mkdir(parents=True, exist_ok=True)
    (root / "latest").write_text(tag)
    (root / "zero_to_fp32.py").write_text("raise SystemExit('zero_to_fp32.py ran')\n")
    for rank in range(run.world if run.stage == 3 else 1):
        name = model_name(run.stage, rank, tensor_rank)
        save(run, folder / name, model_states(run, rank))
    for rank in range(run.world):
        inner = sharded_states(run, rank) if run.stage == 3 else flat_states(run, rank)
        states = {"optimizer_state_dict": inner, "ds_config": {"stage": run.stage}, "ds_version": "0.19.8"}
        save(run, folder / optimizer_name(run, rank, tensor_rank), states)
    for layer, (head, count) in enumerate(run.layers().items()):
        for expert in range(count):
            own = f"{head}{EXPERTS}{expert}."
            weights = {name: one.to(run.compute) for name, one in run.masters().items() if own in name}
            save(run, folder / expert_name(layer, expert), weights)
    return root


def ceil_div(number: int, by: int) -> int:
    return -(-number // by)


def piece(tensor: torch.Tensor, world: int, rank: int) -> torch.Tensor:
    """The part of a parameter that a rank of stage 3 has, with padding."""
    size = ceil_div(tensor.numel(), world)
    flat = torch.nn.functional.pad(tensor.reshape(-1), (0, size * world - tensor.numel()))
    return flat[rank * size : (rank + 1) * size].clone()


def model_states(run: Run, rank: int) -> dict[str, Any]:
    weights = {name: tensor.to(run.compute) for group in run.groups for name, tensor in group.items()}
    weights.update(run.frozen)
    weights.update({name: weights[target] for name, target in run.shared.items()})
    if run.stage == 3:
        weights = {name: torch.empty(0, dtype=tensor.dtype) for name, tensor in weights.items()}
        fragments = {name: piece(tensor, run.world, rank) for name, tensor in run.frozen.items()}
    else:
        fragments = run.frozen if run.stage == 2 else {}  # which earlier stages leave out, with the shapes
    groups = run.groups + [run.local(group, 0) for group in run.experts]
    moe = {"num_experts": list(run.layers().values()), "ds_autoep_layers": None} if run.experts else {}
    return moe | {
        "module": OrderedDict(weights | run.buffers),
        "buffer_names": list(run.buffers),
        "optimizer": None,
        "param_shapes": [
            OrderedDict((name, tensor.shape) for name, tensor in group.items()) for group in groups
        ],
        "frozen_param_shapes": {name: run.frozen[name].shape for name in fragments} or None,
        "frozen_param_fragments": fragments or None,
        "shared_params": run.shared if rank == 0 else {},
        "lr_scheduler": None,
        "global_steps": run.step,
        "global_samples": run.step * 8,
        "dp_world_size": run.world,
        "mp_world_size": 1,
        "ds_config": {
            "zero_optimization": {"stage": run.stage, "round_robin_gradients": run.round_robin},
            "use_data_before_expert_parallelism": run.data_first,
        },
        "ds_version": "0.19.8",
        **run.client,
    }


def flattened(tensors: Sequence[torch.Tensor], run: Run) -> tuple[torch.Tensor, list[int]]:
    """All parameters one after another, each but the last with padding; and the paddings."""
    parts, paddings, at = [], [], 0
    for number, tensor in enumerate(tensors):
        at += tensor.numel()
        padding = 0 if number == len(tensors) - 1 else -at % run.align
        at += padding
        paddings.append(padding)
        parts += [tensor.reshape(-1), torch.zeros(padding, dtype=tensor.dtype)]
    return torch.cat(parts) if parts else torch.zeros(0), paddings


def flat_states(run: Run, rank: int) -> dict[str, Any]:
    """`DeepSpeedZeroOptimizer.state_dict` and `BF16_Optimizer.state_dict`."""
    is_bf16 = run.stage == 0
    flats, group_paddings, mappings, all_after, states = [], [], [], [], []
    count = run.world // run.sets
    chosen, place = divmod(rank, count) if run.data_first else (rank % run.sets, rank // run.sets)
    groups = [(number, group, rank, run.world) for number, group in enumerate(run.groups)]
    experts = [
        (number, run.local(group, chosen), place, count)
        for number, group in enumerate(run.experts, len(run.groups))
    ]
    groups += experts[::-1] if run.shuffled and rank % 2 else experts
    for number, group, own_rank, world in groups:
        flat, after = flattened([tensor.to(run.master) for tensor in group.values()], run)
        used = flat.numel()
        size = ceil_div(used, 2 * world) * 2
        begin = own_rank * size
        if is_bf16 or run.last_states_all_padding:
            padding = size * world - used if own_rank == world - 1 else 0
        else:
            padding = size - min(max(used - begin, 0), size)

        def own(flat: torch.Tensor, size: int = size, begin: int = begin, world: int = world) -> torch.Tensor:
            padded = torch.nn.functional.pad(flat, (0, size * world - flat.numel()))
            return padded[begin : begin + size].clone()

        cut = size if is_bf16 else size - padding
        flats.append(own(flat)[:cut])
        group_paddings.append(padding)
        all_after.append(after)
        mapping, at = OrderedDict(), 0
        places = list(zip(group.items(), after, strict=True))
        for (name, tensor), behind in reversed(places) if run.round_robin else places:
            first, last = max(at, begin), min(at + tensor.numel(), begin + size)
            if first < last:
                mapping[name] = fragment_address(start=first - begin, numel=last - first)
            at += tensor.numel() + behind
        mappings.append(mapping)
        if run.moments:
            is_expert = number >= len(run.groups)
            state = {
                key: own(flattened([local[name] for name in group], run)[0])
                for key, moment in run.moments[number].items()
                for local in [run.local(moment, chosen) if is_expert else moment]
            }
            if run.elastic:
                state = {key: moment[:cut] for key, moment in state.items()}
            states.append(state | {"step": torch.tensor(7.0)})
    base: Any = {"state": dict(enumerate(states)), "param_groups": [{"lr": 1e-3, "params": [0]}]}
    inner: dict[str, Any] = {
        "clip_grad": 1.0,
        "base_optimizer_state": states if run.elastic else base,
        "single_partition_of_fp32_groups": flats,
        "group_paddings": group_paddings,
        "partition_count": [world for *_, world in groups],
        "ds_version": "0.19.8",
    }
    if run.mappings:
        inner["param_slice_mappings"] = mappings
    if not is_bf16:
        inner |= {
            "loss_scaler": DynamicLossScaler(),
            "overflow": False,
            "zero_stage": ZeroStageEnum(run.stage),
        }
        if run.align > 1:
            inner["param_alignment_paddings"] = all_after
    return inner


def sharded_states(run: Run, rank: int) -> dict[str, Any]:
    """`DeepSpeedZeroOptimizer_Stage3.state_dict`."""

    def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        pieces = [piece(tensor, run.world, rank) for tensor in tensors]
        return torch.cat(pieces) if pieces else torch.zeros(0)

    states = {
        number: {key: flat([moment[name] for name in group]) for key, moment in run.moments[number].items()}
        | {"step": torch.tensor(7.0)}
        for number, group in enumerate(run.groups)
        if run.moments
    }
    return {
        "zero_stage": ZeroStageEnum.weights,
        "loss_scaler": DynamicLossScaler(),
        "dynamic_loss_scale": False,
        "overflow": False,
        "partition_count": run.world,
        "optimizer_state_dict": {"state": states, "param_groups": [{"lr": 1e-3, "params": [0]}]},
        "fp32_flat_groups": [
            flat([tensor.to(run.master) for tensor in group.values()]) for group in run.groups
        ],
    }


def write_universal(
    root: Path, run: Run, tag: str = "global_step7_universal", *, copies: bool = False
) -> Path:
    """As `ds_to_universal.py`: a folder of each parameter; with `copies`, as later versions, of what is whole too."""
    folder = root / tag
    for number, group in enumerate(run.groups):
        for name, tensor in group.items():
            place = folder / "zero" / name
            place.mkdir(parents=True)
            states = {
                key: moment[name] for key, moment in (run.moments[number] if run.moments else {}).items()
            }
            for key, state in {"fp32": tensor, **states}.items():
                flat = {"param": state.reshape(-1)} if run.stage == 3 else {"param": state, "cat_dim": 0}
                torch.save(flat, place / f"{key}.pt")
            torch.save(torch.tensor(7.0), place / "step.pt")
    torch.save({"param_groups": []}, folder / "zero" / "optimizer_state.pt")
    for rank in range(run.world if run.stage == 3 else 1):
        save(run, folder / model_name(run.stage, rank), model_states(run, rank))
    for name, tensor in model_states(run, 0)["module"].items() if copies and run.stage != 3 else ():
        if not (folder / "zero" / name).exists():
            (folder / "zero" / name).mkdir()
            torch.save({"param": tensor.float()}, folder / "zero" / name / "fp32.pt")
    (root / "latest_universal").write_text(tag)
    return root
