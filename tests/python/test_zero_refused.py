"""Folders of DeepSpeed ZeRO that are not one checkpoint: each fails at open with a code, and nothing in them runs."""

import os
import shutil
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import Reduced
from zero_folders import Run, fragment_address, model_name, optimizer_name, write, write_universal

import rustload


def run(stage: int, world: int = 3, **more: Any) -> Run:
    """Two groups, whose parameters do not fit the ranks evenly."""
    return Run(
        groups=[
            {"a": torch.arange(35.0).reshape(7, 5), "b": torch.arange(4.0)},
            {"c": torch.arange(13.0) + 100, "d": torch.tensor(3.5)},
        ],
        stage=stage,
        world=world,
        moments=[
            {"exp_avg": {"a": torch.ones(7, 5), "b": torch.ones(4)}},
            {"exp_avg": {"c": torch.ones(13), "d": torch.ones(())}},
        ],
        buffers={"mean": torch.arange(3.0)},
        frozen={"still": torch.arange(8.0)},
        **more,
    )


def refused(path: Path | list[Path], code: str, text: str = ".") -> rustload.RustloadError:
    with pytest.raises(rustload.RustloadError, match=text) as caught:
        rustload.open(path)
    assert caught.value.code == code, caught.value
    return caught.value


def changed(stage: int, rank: int, change: Callable[[Any], Any], *, model: bool = False) -> Run:
    """A run of which one file is different."""
    made = run(stage)
    name = model_name(stage, rank) if model else optimizer_name(made, rank)

    def one(own: str, content: dict[str, Any]) -> None:
        if own == name:
            change(content if model else content["optimizer_state_dict"])

    made.change = one
    return made


def cut(flat: str, group: int, by: int) -> Callable[[Any], None]:
    """Takes the last elements of a partition away, or adds some."""

    def change(states: Any) -> None:
        tensor = states[flat][group]
        states[flat][group] = (
            tensor[:by].clone() if by < 0 else torch.cat([tensor, torch.zeros(by, dtype=tensor.dtype)])
        )

    return change


def shifted(states: Any) -> None:
    """The border between two sub-groups, by one element: the total is the same."""
    one, two = states["fp32_flat_groups"]
    states["fp32_flat_groups"] = [torch.cat([one, two[:1]]), two[1:].clone()]


def mapped(**by: int) -> Callable[[Any], None]:
    def change(states: Any) -> None:
        own = states["param_slice_mappings"][0]["a"]
        states["param_slice_mappings"][0]["a"] = fragment_address(
            numel=own.numel + by.get("numel", 0), start=own.start + by.get("start", 0)
        )

    return change


FLAT = "single_partition_of_fp32_groups"
OPTIMIZER = {
    "short": (2, 1, cut(FLAT, 0, -1), "ZeroPartition"),
    "long": (2, 0, cut(FLAT, 1, 1), "ZeroPartition"),
    "last": (1, 2, cut(FLAT, 0, -1), "ZeroPartition"),
    "bf16": (0, 1, cut(FLAT, 0, -1), "ZeroPartition"),
    "sharded": (3, 1, cut("fp32_flat_groups", 0, -1), "ZeroPartition"),
    "sharded-long": (3, 2, cut("fp32_flat_groups", 1, 1), "ZeroPartition"),
    "border": (3, 1, shifted, "ZeroPartition"),
    "padding": (2, 2, lambda states: states.update(group_paddings=[0, 0]), "ZeroPartition"),
    "paddings": (2, 2, lambda states: states.update(group_paddings=[3]), "ZeroPartition"),
    "overflow": (2, 0, lambda states: states.update(group_paddings=[2**63 - 1] * 2), "ZeroPartition"),
    "mapping": (2, 1, mapped(start=1), "ZeroConflict"),
    "mapping-length": (1, 0, mapped(numel=-1), "ZeroConflict"),
    "mapping-less": (2, 0, lambda states: states["param_slice_mappings"][0].pop("a"), "ZeroConflict"),
    "mappings": (2, 0, lambda states: states["param_slice_mappings"].pop(), "ZeroState"),
    "mapping-class": (2, 0, lambda states: states["param_slice_mappings"][0].update(a=(1, 2)), "ZeroState"),
    "groups": (3, 1, lambda states: states["fp32_flat_groups"].pop(), "ZeroState"),
    "stage": (2, 1, lambda states: states.update(zero_stage=1), "ZeroConflict"),
    "dtype": (
        3,
        2,
        lambda states: states.update(fp32_flat_groups=[one.half() for one in states["fp32_flat_groups"]]),
        "ZeroConflict",
    ),
    "two-dimensions": (3, 1, lambda states: states["fp32_flat_groups"][0].unsqueeze_(0), "ZeroState"),
    "moment": (
        3,
        1,
        lambda states: states["optimizer_state_dict"]["state"][0].pop("exp_avg"),
        "ZeroConflict",
    ),
    "state": (3, 1, lambda states: states["optimizer_state_dict"]["state"].update({9: {}}), "ZeroState"),
    "no-count": (2, 0, lambda states: states.pop("partition_count"), "ZeroState"),
    "no-flats": (3, 0, lambda states: states.pop("fp32_flat_groups"), "ZeroState"),
    "experts": (2, 0, lambda states: states.update(partition_count=[3, 1]), "ZeroConflict"),
    "autoep": (3, 0, lambda states: states.update(ds_zero_partition_groups={}), "ZeroUnsupported"),
}
MODEL = {
    "step": (3, 1, lambda states: states.update(global_steps=8), "ZeroConflict"),
    "shape": (3, 2, lambda states: states["param_shapes"][0].update(a=torch.Size((5, 7))), "ZeroConflict"),
    "order": (3, 1, lambda states: states["param_shapes"][0].move_to_end("a"), "ZeroConflict"),
    "more": (2, 0, lambda states: states["param_shapes"][0].update(e=torch.Size((9,))), "ZeroPartition"),
    "less": (2, 0, lambda states: states["param_shapes"][0].pop("a"), "ZeroPartition"),
    "group": (2, 0, lambda states: states["param_shapes"].append(OrderedDict()), "ZeroConflict"),
    "one-dict": (
        2,
        0,
        lambda states: states.update(param_shapes={**states["param_shapes"][0], **states["param_shapes"][1]}),
        "ZeroUnsupported",
    ),
    "twice": (
        2,
        0,
        lambda states: states.update(
            param_shapes=[states["param_shapes"][0], OrderedDict(a=torch.Size((13,)), d=torch.Size(()))]
        ),
        "ZeroConflict",
    ),
    "buffer": (2, 0, lambda states: states["buffer_names"].append("b"), "ZeroConflict"),
    "alias": (2, 0, lambda states: states.update(shared_params={"b": "a"}), "ZeroConflict"),
    "huge": (2, 0, lambda states: states["param_shapes"][0].update(a=(2**40, 2**40)), "ZeroState"),
    "sum": (
        2,
        0,
        lambda states: states["param_shapes"][0].update(a=(2**63 - 1,), e=(2**63 - 1,), f=(9,)),
        "ZeroPartition",
    ),
    "negative": (2, 0, lambda states: states["param_shapes"][0].update(a=(-7, -5)), "ZeroState"),
    "names": (2, 0, lambda states: states.update(buffer_names={"a": 1}), "ZeroState"),
    "no-names": (2, 0, lambda states: states.pop("buffer_names"), "ZeroState"),
    "no-shapes": (2, 0, lambda states: states.pop("param_shapes"), "ZeroState"),
    "frozen": (3, 1, lambda states: states["frozen_param_fragments"].pop("still"), "ZeroPartition"),
    "frozen-shape": (
        2,
        0,
        lambda states: states["frozen_param_shapes"].update(still=torch.Size((9,))),
        "ZeroPartition",
    ),
    "frozen-short": (
        3,
        2,
        lambda states: states["frozen_param_fragments"].update(still=torch.zeros(2)),
        "ZeroPartition",
    ),
    "pipeline": (2, 0, lambda states: states.update(module=None), "ZeroUnsupported"),
    "experts": (2, 0, lambda states: states.update(num_experts=[8]), "ShardMissing"),
    "autoep": (
        3,
        1,
        lambda states: states.update(ds_autoep_layers=[{"checkpoint_format": "zero3_partitioned"}]),
        "ZeroUnsupported",
    ),
}


@pytest.mark.parametrize("case", OPTIMIZER)
def test_an_optimizer_file_that_lies(tmp_path, case):
    stage, rank, change, code = OPTIMIZER[case]
    made = changed(stage, rank, change)
    error = refused(write(tmp_path, made), code)
    assert error.path is not None
    if case not in ("dtype",):
        assert error.path.endswith("_optim_states.pt"), error


@pytest.mark.parametrize("case", MODEL)
def test_a_model_file_that_lies(tmp_path, case):
    stage, rank, change, code = MODEL[case]
    assert refused(write(tmp_path, changed(stage, rank, change, model=True)), code).path is not None


@pytest.mark.parametrize("counts", [[3, 1], 3, [4, 4], [2, 2], 0, [2**63 - 1] * 2])
def test_the_number_of_ranks(tmp_path, counts):
    def change(_: str, content: dict[str, Any]) -> None:
        if "optimizer_state_dict" in content:
            content["optimizer_state_dict"]["partition_count"] = counts

    root = write(tmp_path, run(2, change=change))
    if counts == 3:
        assert "a" in rustload.open(root)
        return
    if counts in (0, [2, 2]):
        refused(root, "ZeroConflict", "and 3 have a file here")
    else:
        refused(root, "ZeroUnsupported" if counts == [3, 1] else "ShardMissing")


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_missing_and_extra_files(tmp_path, stage):
    made = run(stage)
    root = write(tmp_path, made)
    folder = root / "global_step7"
    first, last = folder / optimizer_name(made, 0), folder / optimizer_name(made, 2)
    last.rename(tmp_path / "kept")
    refused(root, "ShardMissing", "3 ranks|zero_pp_rank_2")
    shutil.copy(tmp_path / "kept", last)
    extra = folder / optimizer_name(made, 3)
    shutil.copy(tmp_path / "kept", extra)
    refused(root, "ShardMissing" if stage == 3 else "ZeroConflict")
    extra.unlink()
    first.rename(tmp_path / "kept")
    refused(root, "ShardMissing", optimizer_name(made, 0)[5:])
    refused(sorted(folder.glob("*.pt")), "ShardMissing")
    shutil.copy(tmp_path / "kept", first)
    (folder / model_name(stage, 0)).unlink()
    refused(root, "ShardMissing", model_name(stage, 0))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_swapped_files(tmp_path, stage):
    made = run(stage, mappings=False)
    root = write(tmp_path, made)
    one, two = (root / "global_step7" / optimizer_name(made, rank) for rank in (0, 1))
    one.rename(tmp_path / "kept")
    two.rename(one)
    (tmp_path / "kept").rename(two)
    refused(root, "ZeroConflict", "was written as")


def test_files_of_two_saves(tmp_path):
    made = run(3)
    root = write(tmp_path, made)
    write(tmp_path / "later", run(3, step=8))
    name = model_name(3, 1)
    shutil.copy(tmp_path / "later" / "global_step7" / name, root / "global_step7" / name)
    refused(root, "ZeroConflict", "another step")
    shutil.copy(root / "global_step7" / name, root / "global_step7" / "mp_rank_00_model_states.pt")
    refused(root, "ZeroConflict", "two saves")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("layer_3_expert_0_mp_rank_00_model_states.pt", "ZeroConflict"),
        ("expert_0_mp_rank_00_model_states.pt", "ZeroConflict"),
        ("expp_rank_0_mp_rank_00_optim_states.pt", "ZeroConflict"),
        ("layer_00-model_00-model_states.pt", "ZeroUnsupported"),
        ("zero_pp_rank_0_mp_rank_00_optim_states.pt", "ZeroConflict"),
    ],
)
def test_files_of_other_kinds_are_refused_by_name(tmp_path, name, code):
    root = write(tmp_path, run(2))
    folder = root / "global_step7"
    shutil.copy(folder / "mp_rank_00_model_states.pt", folder / name)
    error = refused(root, code)
    assert error.path is not None
    assert error.path.endswith(name)


@pytest.mark.parametrize("tag", ["gone", "..", "/etc", "a/b", "", "x" * 5000, "."])
def test_latest_names_a_folder_beside_it(tmp_path, tag):
    root = write(tmp_path, run(2))
    (root / "latest").write_text(tag)
    refused(root, "UnknownFormat", "this names|not the name")


def test_a_universal_checkpoint_that_lacks_files(tmp_path):
    root = write_universal(tmp_path, run(2))
    zero = root / "global_step7_universal" / "zero"
    torch.save({"param": torch.zeros(3)}, zero / "a" / "exp_avg.pt")
    refused(root, "ZeroPartition")
    (zero / "a" / "exp_avg.pt").unlink()
    shutil.rmtree(zero / "c")
    refused(root, "ShardMissing", "no folder")
    (zero / "b" / "fp32.pt").unlink()
    refused(root, "ShardMissing", "no fp32")
    torch.save({"other": torch.zeros(4)}, zero / "b" / "fp32.pt")
    refused(root, "ZeroState")


@pytest.mark.parametrize("elements", [34, 36])
def test_a_flat_parameter_of_a_universal_checkpoint_is_all_of_it(tmp_path, elements):
    root = write_universal(tmp_path, run(3))
    folder = root / "global_step7_universal" / "zero" / "a"
    for file in ("fp32.pt", "exp_avg.pt"):
        torch.save({"param": torch.zeros(elements)}, folder / file)
    refused(root, "ZeroPartition")


def test_nothing_runs(tmp_path):
    fired = tmp_path / "fired"
    canary = Reduced(os.mkdir, (str(fired),))

    def change(_: str, content: dict[str, Any]) -> None:
        if "optimizer_state_dict" in content:
            content["optimizer_state_dict"]["loss_scaler"] = canary
        content["user"] = canary

    root = write(tmp_path / "run", run(2, change=change))
    (root / "zero_to_fp32.py").write_text(f"import os\nos.mkdir({str(fired)!r})\n")
    assert torch.equal(
        rustload.open(root)["a"].materialize(framework="torch"), torch.arange(35.0).reshape(7, 5)
    )
    report = rustload.scan(root)
    assert report.verdict == "would execute"
    scripts = [one.path for one in report.files if any(f.code == "CheckpointScript" for f in one.findings)]
    assert scripts == [str(root / "zero_to_fp32.py")]
    assert not fired.exists()
