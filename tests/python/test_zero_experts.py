"""Folders of DeepSpeed ZeRO with experts: each has whole tensors, whichever ranks had it."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_zero import MOMENTS, expected, same, tensors
from test_zero_refused import refused
from zero_folders import EXPERTS, Run, expert_name, model_name, optimizer_name, write

import rustload


def experts(head: str, count: int) -> dict[str, tuple[int, ...]]:
    """Parameters whose elements do not fit ranks evenly."""
    return {
        f"{head}{EXPERTS}{expert}.{name}": shape
        for expert in range(count)
        for name, shape in {"one.weight": (3, 5), "one.bias": (3,)}.items()
    }


def run(stage: int = 2, sets: int = 2, count: int = 2, **more: Any) -> Run:
    """`sets` times `count` ranks, and two layers of experts, in two groups of the optimizer."""
    layers = [experts("a.moe", 4 * sets), experts("b.moe", sets)]
    sizes: list[dict[str, tuple[int, ...]]] = [{"dense": (7, 5)}, *layers]
    return Run(
        groups=[tensors(sizes[0])],
        stage=stage,
        world=sets * count,
        moments=[
            {key: tensors(own, 10 * number + at + 1) for at, key in enumerate(MOMENTS)}
            for number, own in enumerate(sizes)
        ],
        experts=[tensors(layer, 5 + number) for number, layer in enumerate(layers)],
        sets=sets,
        **more,
    )


@pytest.mark.parametrize("sets", [1, 2, 3])
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize("data_first", [False, True])
def test_whole_experts(tmp_path, stage, sets, count, data_first):
    forms: list[dict[str, Any]] = [{}, {"shuffled": True}, {"elastic": True, "shuffled": True}, {"align": 4}]
    for number, more in enumerate(forms if stage else forms[:2]):
        made = run(stage, sets, count, data_first=data_first, **more)
        root = write(tmp_path / str(number), made)
        same(rustload.open(root), expected(made))
        same(rustload.open(sorted((root / "global_step7").iterdir())), expected(made))


def test_the_order_of_groups_has_to_be_stated(tmp_path):
    refused(write(tmp_path, run(shuffled=True, mappings=False)), "ZeroPartition")


def test_a_file_of_the_experts_optimizer_has_nothing(tmp_path):
    root = write(tmp_path, run())
    torch.save({"optimizer": None}, root / "global_step7" / "expp_rank_0_mp_rank_00_optim_states.pt")
    same(rustload.open(root), expected(run()))


@pytest.mark.parametrize("stage", [1, 2])
def test_buffers_and_frozen_weights_of_experts(tmp_path, stage):
    """Those of other ranks are in the files of experts only, and stage 1 states no frozen ones."""

    def change(name: str, content: dict[str, Any]) -> None:
        if name == model_name(2, 0):
            local = [f"b.moe{EXPERTS}0.{kind}" for kind in ("scale", "still")]
            content["buffer_names"] = local[:1]
            if stage == 2:
                content["frozen_param_shapes"] = {local[1]: torch.Size((2,))}
                content["frozen_param_fragments"] = {local[1]: torch.zeros(2)}
        if name.startswith("layer_1_"):
            expert = int(name.split("_")[3])
            head = f"b.moe{EXPERTS}{expert}"
            content |= {f"{head}.scale": torch.full((3,), expert), f"{head}.still": torch.full((2,), expert)}

    made = run(stage, change=change)
    whole = expected(made)
    for expert in range(2):
        whole |= {f"b.moe{EXPERTS}{expert}.scale": torch.full((3,), expert)}
        for head in ("", "module."):
            whole |= {f"{head}b.moe{EXPERTS}{expert}.still": torch.full((2,), expert)}
    same(rustload.open(write(tmp_path, made)), whole)


def test_old_versions_have_one_file_for_the_experts_of_all_layers(tmp_path):
    def change(name: str, content: dict[str, Any]) -> None:
        if name == model_name(2, 0):
            content["num_experts"] = 2

    made = run(change=change)
    made.experts = [tensors(experts("a.moe", 2)), tensors(experts("b.moe", 2))]
    made.moments = []
    root = write(tmp_path, made)
    folder = root / "global_step7"
    for expert in range(2):
        weights: dict[str, Any] = {}
        for layer in range(2):
            weights |= torch.load(folder / expert_name(layer, expert))
            (folder / expert_name(layer, expert)).unlink()
        torch.save(weights, folder / f"expert_{expert}_mp_rank_00_model_states.pt")
    same(rustload.open(root), expected(made))


NAME = f"a.moe{EXPERTS}0.one.bias"
MODEL = model_name(2, 0)
FLAT = "single_partition_of_fp32_groups"


def of_optimizer(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda content: change(content["optimizer_state_dict"])


def all_ranks(**values: Any) -> dict[str, Callable[[dict[str, Any]], Any]]:
    change = of_optimizer(lambda states: states.update(values))
    return {optimizer_name(run(), rank): change for rank in range(4)}


RANK_3 = optimizer_name(run(), 3)
LIES: dict[str, tuple[dict[str, Callable[[dict[str, Any]], Any]], str]] = {
    "short": ({RANK_3: of_optimizer(lambda s: s[FLAT].__setitem__(1, s[FLAT][1][:-1]))}, "ZeroPartition"),
    "padding": ({RANK_3: of_optimizer(lambda s: s.update(group_paddings=[1, 1, 1]))}, "ZeroPartition"),
    "mapping": ({RANK_3: of_optimizer(lambda s: s["param_slice_mappings"][1].popitem())}, "ZeroConflict"),
    "counts": (all_ranks(partition_count=[4, 3, 2]), "ZeroConflict"),
    "counts-zero": (all_ranks(partition_count=[4, 0, 2]), "ZeroConflict"),
    "counts-one": (all_ranks(partition_count=[4, 1, 2]), "ZeroPartition"),
    "counts-fewer": (all_ranks(partition_count=[4, 2]), "ZeroConflict"),
    "counts-dense": (all_ranks(partition_count=[2, 2, 4]), "ZeroPartition"),
    "layout": (
        {MODEL: lambda c: c["ds_config"].update(use_data_before_expert_parallelism=True)},
        "ZeroConflict",
    ),
    "gap": (
        {
            MODEL: lambda c: c["param_shapes"][2].update(
                {f"b.moe{EXPERTS}2.one.bias": c["param_shapes"][2].popitem()[1]}
            )
        },
        "ZeroState",
    ),
    "count": ({MODEL: lambda c: c.update(num_experts=[8, 3])}, "ShardMissing"),
    "count-less": ({MODEL: lambda c: c.update(num_experts=[8])}, "ZeroConflict"),
    "count-huge": ({MODEL: lambda c: c.update(num_experts=[2**62, 2])}, "ShardMissing"),
    "count-none": ({MODEL: lambda c: c.pop("num_experts")}, "ZeroUnsupported"),
    "count-text": ({MODEL: lambda c: c.update(num_experts="8")}, "ZeroState"),
    "tied": ({MODEL: lambda c: c.update(shared_params={"x": NAME})}, "ZeroUnsupported"),
    "autoep": ({MODEL: lambda c: c.update(ds_autoep_layers=[{}])}, "ZeroUnsupported"),
    "weight": ({expert_name(0, 0): lambda c: c.pop(NAME)}, "ZeroConflict"),
    "weight-shape": ({expert_name(0, 0): lambda c: c.update({NAME: torch.zeros(4)})}, "ZeroPartition"),
    "weight-other": ({expert_name(0, 1): lambda c: c.update({NAME: torch.zeros(3)})}, "ZeroConflict"),
    "weight-dense": ({expert_name(0, 1): lambda c: c.update(dense=torch.zeros(3))}, "ZeroConflict"),
}


@pytest.mark.parametrize("case", LIES)
def test_files_that_lie(tmp_path, case):
    changes, code = LIES[case]

    def change(name: str, content: dict[str, Any]) -> None:
        if name in changes:
            changes[name](content)

    error = refused(write(tmp_path, run(change=change)), code)
    assert error.path is not None


def test_files_of_experts(tmp_path):
    root = write(tmp_path, run())
    folder = root / "global_step7"
    kept = tmp_path / "kept"
    (folder / expert_name(1, 1)).rename(kept)
    refused(root, "ShardMissing", "expert 1 of 2 has no file: layer_1_expert_1")
    shutil.copy(folder / expert_name(1, 0), folder / expert_name(1, 1))
    refused(root, "ZeroConflict", "was written as")
    shutil.copy(kept, folder / expert_name(1, 1))
    same(rustload.open(root), expected(run()))
    for path in folder.glob("*_optim_states.pt"):
        path.unlink()
    refused(root, "ZeroUnsupported", "no partitions")


def test_fewer_experts_than_have_files(tmp_path):
    """The files of all experts are there, and the ranks have only some."""
    made, fewer = run(sets=2, count=1), run(sets=2, count=1)
    names = [name for name in made.experts[0] if int(name.partition(EXPERTS)[2].partition(".")[0]) < 4]
    fewer.experts[0] = {name: made.experts[0][name] for name in names}
    fewer.moments = []
    fewer.change = lambda _, content: content.update(num_experts=[8, 2]) if "num_experts" in content else None
    root = write(tmp_path / "some", fewer)
    for path in write(tmp_path / "all", made).rglob("layer_0_expert_*"):
        shutil.copy(path, root / "global_step7")
    refused(root, "ZeroConflict", "2 times 2")


def test_tensor_parallelism_and_stage_3(tmp_path):
    folder = write(tmp_path / "ranks", run()) / "global_step7"
    for path in list(folder.glob("*mp_rank_00*")):
        name = path.name.replace("mp_rank_00", "mp_rank_01")
        torch.save(torch.load(path, weights_only=False), folder / name) if "expert" in name else None
    write(tmp_path / "ranks", Run([tensors({"dense": (7, 5)})], 2, 4), tensor_rank=1)
    refused(tmp_path / "ranks", "ZeroUnsupported", "tensor parallelism")

    def change(_: str, content: dict[str, Any]) -> None:
        if "module" in content:
            content["num_experts"] = [2]

    sharded = Run(groups=[tensors({"dense": (7, 5)})], stage=3, world=2, change=change)
    refused(write(tmp_path / "sharded", sharded), "ZeroUnsupported", "stage 3")
