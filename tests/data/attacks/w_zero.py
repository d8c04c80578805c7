"""W: folders of DeepSpeed ZeRO whose partitions, shapes and files lie, or that hide a call."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.d_distributed import add
from attacks.pickles import (
    NONE,
    SYSTEM,
    get,
    integer,
    ints,
    listed,
    made,
    mapped,
    named,
    ordered,
    pickle,
    put,
    storage,
    tensor,
    text,
)
from attacks.registry import Opens, Refused
from attacks.zips import torch_zip

Fields = dict[str, bytes]

W, BIAS = 5, 2
"""The elements of the two parameters: 7, in partitions of 4 and 3."""
PARTS = (4, 3)
SHARDED = (4, 4)
"""What a rank has in stage 3: 3 elements of one and 1 of the other."""

KINDS = {2: "single_partition_of_fp32_groups", 3: "fp32_flat_groups"}


def shapes(**sizes: tuple[int, ...]) -> bytes:
    return ordered(*((text(name), ints(*size)) for name, size in sizes.items()))


def flat(numel: int, **more: Any) -> bytes:
    return tensor((numel,), on=storage(numel=numel), **more)


def address(start: int, numel: int) -> bytes:
    state = named({"numel": integer(numel), "start": integer(start)})
    return made("deepspeed.utils.tensor_fragment.fragment_address", state=state)


def model(stage: int) -> Fields:
    return {
        "module": named({}),
        "buffer_names": listed(),
        "param_shapes": listed(shapes(w=(W,), b=(BIAS,))),
        "frozen_param_shapes": NONE,
        "shared_params": named({}),
        "global_steps": integer(7),
        "stage": integer(stage),
    }


def optimizer(stage: int, rank: int) -> Fields:
    numel = SHARDED[rank] if stage == 3 else PARTS[rank]
    own: Fields = {
        "zero_stage": integer(stage),
        "partition_count": integer(2),
        "loss_scaler": NONE,
        KINDS[stage]: listed(flat(numel)),
    }
    if stage == 2:
        mapping = {0: {"w": address(0, 4)}, 1: {"w": address(0, 1), "b": address(1, 2)}}[rank]
        own |= {
            "group_paddings": listed(integer(rank)),
            "param_slice_mappings": listed(named(mapping)),
        }
    return own


def folder(
    change: Callable[[Fields], Any] | None = None,
    *,
    stage: int = 2,
    rank: int = 0,
    of_model: bool = False,
    after: Callable[[Path], Any] | None = None,
) -> Callable[[Path], Path]:
    """A function that writes a folder of two ranks, of which one file is different."""

    def write(place: Path) -> Path:
        tag = place / "step"
        tag.mkdir(exist_ok=True)
        (place / "latest").write_text("step")
        for own in range(2):
            fields = model(stage)
            if of_model and own == rank and change is not None:
                change(fields)
            head = f"zero_pp_rank_{own}_"
            if stage == 3 or own == 0:
                name = f"{head if stage == 3 else ''}mp_rank_00_model_states.pt"
                (tag / name).write_bytes(torch_zip(pickle(named(fields)), {}))
            states = optimizer(stage, own)
            if not of_model and own == rank and change is not None:
                change(states)
            numel = SHARDED[own] if stage == 3 else PARTS[own]
            body = pickle(named({"optimizer_state_dict": named(states)}))
            data = struct.pack(f"<{numel}f", *range(own * 4, own * 4 + numel))
            (tag / f"{head}mp_rank_00_optim_states.pt").write_bytes(torch_zip(body, {"0": data}))
        if after is not None:
            after(tag)
        return place

    return write


def states(stage: int = 2, rank: int = 0, **changes: bytes) -> Callable[[Path], Path]:
    return folder(lambda fields: fields.update(changes), stage=stage, rank=rank)


def stated(stage: int = 2, rank: int = 0, **changes: bytes) -> Callable[[Path], Path]:
    return folder(lambda fields: fields.update(changes), stage=stage, rank=rank, of_model=True)


def joined(ckpt: Any) -> None:
    """`w` is 0 to 4, and `b` 5 and 6."""
    assert ckpt["w"].materialize(framework="dlpack").tobytes() == struct.pack("<5f", *range(5))
    assert ckpt["b"].materialize(framework="dlpack").tobytes() == struct.pack("<2f", 5, 6)


def removed(name: str) -> Callable[[Path], None]:
    return lambda tag: (tag / name).unlink()


def copied(name: str, new: str) -> Callable[[Path], Any]:
    return lambda tag: (tag / new).write_bytes((tag / name).read_bytes())


def latest(name: str) -> Callable[[Path], Any]:
    return lambda tag: (tag.parent / "latest").write_text(name)


partition, conflict, state, unsupported, missing, unknown = (
    Refused(code)
    for code in (
        "ZeroPartition",
        "ZeroConflict",
        "ZeroState",
        "ZeroUnsupported",
        "ShardMissing",
        "UnknownFormat",
    )
)
EXPERT = "layer_0_expert_0_mp_rank_00_model_states.pt"
MODEL = "mp_rank_00_model_states.pt"
OPTIMIZER = "mp_rank_00_optim_states.pt"
SECOND = "zero_pp_rank_1_mp_rank_00_optim_states.pt"


add(
    "W01",
    "`os.system` in the loss scaler, and in what the user saved",
    {
        "scaler": states(loss_scaler=SYSTEM),
        "client": stated(client=SYSTEM),
    },
    Opens("kept as data, joined", joined),
    "DisallowedGlobal",
    verdict="would execute",
)
add(
    "W02",
    "partitions with an element more or less than the shapes and paddings say",
    {
        "short": states(single_partition_of_fp32_groups=listed(tensor((3,), on=storage(numel=4)))),
        "last": states(rank=1, single_partition_of_fp32_groups=listed(tensor((2,), on=storage(numel=3)))),
        "sharded": states(stage=3, rank=1, fp32_flat_groups=listed(tensor((3,), on=storage(numel=4)))),
        "padding": states(rank=1, group_paddings=listed(integer(0))),
        "paddings": states(group_paddings=listed(integer(2**62), integer(2**62))),
        "more": stated(param_shapes=listed(shapes(w=(W,), b=(BIAS,), c=(9,)))),
        "less": stated(param_shapes=listed(shapes(b=(BIAS,)))),
    },
    partition,
    "",
)
add(
    "W03",
    "`param_slice_mappings` that put a parameter elsewhere, or are of another class",
    {
        "start": states(param_slice_mappings=listed(named({"w": address(1, 4)}))),
        "less": states(param_slice_mappings=listed(named({}))),
        "more": states(param_slice_mappings=listed(named({"w": address(0, 4), "b": address(0, 2)}))),
        "class": states(
            param_slice_mappings=listed(named({"w": made("other.fragment_address", state=named({}))}))
        ),
        "field": states(
            param_slice_mappings=listed(
                named({"w": made("deepspeed.fragment_address", state=named({"start": integer(0)}))})
            )
        ),
        "negative": states(param_slice_mappings=listed(named({"w": address(-1, 4)}))),
    },
    {
        "start": conflict,
        "less": conflict,
        "more": conflict,
        "class": state,
        "field": state,
        "negative": state,
    },
    "",
)
add(
    "W04",
    "shapes whose elements are negative, or do not fit 64 bits, one alone or together",
    {
        "negative": stated(param_shapes=listed(shapes(w=(-5,), b=(BIAS,)))),
        "huge": stated(param_shapes=listed(shapes(w=(2**40, 2**40), b=(BIAS,)))),
        "sum": stated(param_shapes=listed(shapes(w=(2**63 - 1,), b=(2**63 - 1,), c=(4,)))),
        "sharded": stated(stage=3, param_shapes=listed(shapes(w=(2**63 - 1,), b=(BIAS,)))),
        "rank": stated(param_shapes=listed(shapes(w=(1,) * 1000, b=(BIAS,)))),
    },
    {
        "negative": state,
        "huge": state,
        "sum": partition,
        "sharded": conflict,
        "rank": Refused("Limit", "rank"),
    },
    "",
)


def repeated(count: int) -> bytes:
    """A list of very many references to one dict of very many names."""
    many = ordered(*((text(f"n{at}"), ints(0)) for at in range(count)))
    return listed(many + put(900_000), *([get(900_000)] * count))


def many_states(count: int) -> bytes:
    flat_tensor = flat(4)
    own = named({f"s{at}": flat_tensor for at in range(count)})
    return named({"state": mapped((integer(0), own))})


add(
    "W05",
    "few values that state very many parameters, or states of the optimizer",
    {
        "shapes": stated(param_shapes=repeated(3_000)),
        "states": states(base_optimizer_state=many_states(400)),
    },
    state,
    "",
)


def experts(tag: Path) -> None:
    """Both ranks state that a second group has fewer ranks."""
    for rank in range(2):
        own = optimizer(2, rank) | {"partition_count": listed(integer(2), integer(1))}
        body = pickle(named({"optimizer_state_dict": named(own)}))
        file = tag / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        file.write_bytes(torch_zip(body, {"0": bytes(4 * PARTS[rank])}))


add(
    "W06",
    "a number of ranks that is not that of the files, or differs between groups",
    {
        "more": states(partition_count=integer(2**62)),
        "none": states(partition_count=integer(0)),
        "text": states(partition_count=text("2")),
        "experts": folder(after=experts),
        "stage": states(zero_stage=integer(3), fp32_flat_groups=listed(flat(4))),
        "no-stage": states(zero_stage=integer(-1)),
    },
    {
        "more": conflict,
        "none": conflict,
        "text": state,
        "experts": conflict,
        "stage": conflict,
        "no-stage": state,
    },
    "",
)
add(
    "W07",
    "two tensors of one name: of two groups, a buffer, a tie",
    {
        "tie": stated(shared_params=named({"b": text("w")})),
        "buffer": stated(
            module=named({"b": tensor((0,), on=storage(numel=0))}), buffer_names=listed(text("b"))
        ),
        "frozen": stated(
            frozen_param_shapes=named({"w": ints(0)}),
            frozen_param_fragments=named({"w": tensor((0,), on=storage(numel=0))}),
        ),
    },
    conflict,
    "",
)
add(
    "W08",
    "a `latest` that names a folder elsewhere, or none",
    {
        "up": folder(after=latest("..")),
        "absolute": folder(after=latest("/etc")),
        "below": folder(after=latest("step/../step")),
        "null": folder(after=latest("step\0")),
        "none": folder(after=latest("")),
        "gone": folder(after=latest("gone")),
        "long": folder(after=latest("x" * 100_000)),
    },
    unknown,
    "",
)
add(
    "W09",
    "files that are missing, or of another save, rank or kind",
    {
        "missing": folder(after=removed(SECOND)),
        "model": folder(after=removed(MODEL)),
        "extra": folder(after=copied(SECOND, SECOND.replace("rank_1", "rank_2"))),
        "far": folder(after=copied(SECOND, SECOND.replace("rank_1", "rank_999999"))),
        "twice": folder(after=copied(SECOND, f"bf16_{SECOND}")),
        "stages": folder(after=copied(MODEL, f"zero_pp_rank_0_{MODEL}")),
        "expert": folder(after=copied(MODEL, EXPERT)),
        "step": stated(stage=3, rank=1, global_steps=integer(8)),
    },
    {
        "missing": missing,
        "model": missing,
        "extra": conflict,
        "far": missing,
        "twice": conflict,
        "stages": conflict,
        "expert": conflict,
        "step": conflict,
    },
    "",
)
add(
    "W10",
    "partitions that are not flat tensors, or not of one dtype",
    {
        "matrix": states(single_partition_of_fp32_groups=listed(tensor((2, 2), on=storage(numel=4)))),
        "scalar": states(single_partition_of_fp32_groups=listed(tensor((), on=storage(numel=4)))),
        "strides": states(single_partition_of_fp32_groups=listed(tensor((4,), (0,), on=storage(numel=4)))),
        "value": states(single_partition_of_fp32_groups=listed(integer(4))),
        "dtype": states(
            single_partition_of_fp32_groups=listed(tensor((4,), on=storage("torch.IntStorage", numel=4)))
        ),
    },
    {
        "matrix": state,
        "scalar": state,
        "strides": Refused("DcpChunk"),
        "value": state,
        "dtype": conflict,
    },
    "",
)


LIST = "m.deepspeed_moe.experts.deepspeed_experts"
"""What the names of experts' parameters begin with: two experts of 3 elements, one in each rank."""


def mixture(change: Callable[[str, Fields], Any]) -> Callable[[Path], Path]:
    """A function that writes a folder of two ranks, each with an expert of its own; `change` gets each file's name and fields."""

    def write(place: Path) -> Path:
        tag = folder()(place) / "step"

        def one(name: str, fields: Fields, storages: dict[str, bytes]) -> None:
            change(name, fields)
            if name.endswith("_optim_states.pt"):
                fields = {"optimizer_state_dict": named(fields)}
            (tag / name).write_bytes(torch_zip(pickle(named(fields)), storages))

        groups = [shapes(w=(W,), b=(BIAS,)), shapes(**{f"{LIST}.0.w": (3,)})]
        one(MODEL, model(2) | {"param_shapes": listed(*groups), "num_experts": listed(integer(2))}, {})
        for rank in range(2):
            numel = PARTS[rank]
            own = struct.pack("<3f", *range(3))
            states = optimizer(2, rank) | {
                "partition_count": listed(integer(2), integer(1)),
                KINDS[2]: listed(flat(numel), tensor((3,), on=storage(key="1", numel=3))),
                "group_paddings": listed(integer(rank), integer(1)),
            }
            del states["param_slice_mappings"]
            one(f"zero_pp_rank_{rank}_{OPTIMIZER}", states, {"0": bytes(4 * numel), "1": own})
            one(EXPERT.replace("expert_0", f"expert_{rank}"), {f"{LIST}.{rank}.w": flat(3)}, {"0": own})
        return place

    return write


def mixed(name: str, **changes: bytes) -> Callable[[Path], Path]:
    return mixture(lambda own, fields: fields.update(changes) if own == name else None)


def counts(*numbers: int) -> Callable[[Path], Path]:
    """All ranks state these numbers of ranks."""

    def change(name: str, fields: Fields) -> None:
        if name.endswith(OPTIMIZER):
            fields["partition_count"] = listed(*map(integer, numbers))

    return mixture(change)


def expert_shapes(number: str) -> bytes:
    return listed(shapes(w=(W,), b=(BIAS,)), shapes(**{f"{LIST}.{number}.w": (3,)}))


add(
    "W11",
    "experts whose numbers, shapes, ranks or files lie",
    {
        "gap": mixed(MODEL, param_shapes=expert_shapes("7")),
        "long": mixed(MODEL, param_shapes=expert_shapes("9" * 40)),
        "many": mixed(MODEL, num_experts=listed(integer(2**62))),
        "more": mixed(MODEL, num_experts=listed(integer(3))),
        "layers": mixed(MODEL, num_experts=listed(integer(2), integer(2))),
        "negative": mixed(MODEL, num_experts=listed(integer(-1))),
        "zero": counts(2, 0),
        "few": counts(2, 1, 1),
        "weight": mixed(EXPERT, **{f"{LIST}.1.w": flat(3)}),
        "shape": mixed(EXPERT, **{f"{LIST}.0.w": tensor((2,), on=storage(numel=3))}),
        "short": mixed(SECOND, **{KINDS[2]: listed(flat(3), tensor((2,), on=storage(key="1", numel=3)))}),
    },
    {
        "gap": state,
        "long": unsupported,
        "many": missing,
        "more": missing,
        "layers": missing,
        "negative": state,
        "zero": conflict,
        "few": conflict,
        "weight": conflict,
        "shape": partition,
        "short": partition,
    },
    "",
)


def underscored(tag: Path) -> None:
    """A model whose names begin as those of the copies of its weights would, with up to 6,000 underscores."""
    weights = {f"module{'_' * count}.": flat(1) for count in reversed(range(6000))}
    fields = model(2) | {"module": named(weights)}
    (tag / MODEL).write_bytes(torch_zip(pickle(named(fields)), {"0": bytes(4)}))


add(
    "W12",
    "many names that rule out prefixes",
    {"": folder(after=underscored)},
    Opens(check=joined),
    "",
    metadata=6000**2 // 2,
)
