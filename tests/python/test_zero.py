"""Folders of DeepSpeed ZeRO: whole tensors of all ranks' partitions."""

import pickle
from typing import Any

import pytest
import torch
from process_memory import read
from zero_folders import Run, model_name, optimizer_name, write, write_universal

import rustload
import rustload.torch

WORLDS = (1, 2, 3, 8, 12)
MOMENTS = ("exp_avg", "exp_avg_sq")


def tensors(sizes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in sizes.items()}


def run(stage: int, world: int, groups: int = 2, **more: Any) -> Run:
    """Parameters of every size around the number of ranks: none, one, and one more or fewer than ranks."""
    sizes = [
        {"a.weight": (7, 5), "a.bias": (world,), "one": (1,), "scalar": ()},
        {"b.weight": (3, 2, 13), "fewer": (max(world - 1, 0),), "more": (world + 1,)},
        {"c.weight": (1, 31), "c.bias": (17,)},
    ]
    if stage in (1, 2):
        sizes[0]["none"] = (0, 4)
    all_groups = [tensors(sizes[number], number) for number in range(groups)]
    moments = [
        {key: tensors(sizes[number], 10 + number + 100 * at) for at, key in enumerate(MOMENTS)}
        for number in range(groups)
    ]
    return Run(
        groups=all_groups,
        stage=stage,
        world=world,
        moments=moments,
        buffers={"norm.mean": torch.arange(5, dtype=torch.float16), "ids": torch.arange(3)},
        frozen=tensors({"frozen.weight": (5, 3), "frozen.bias": (1,)}, 50),
        shared={"head.weight": "a.weight"},
        **more,
    )


def expected(run: Run) -> dict[str, torch.Tensor]:
    found = run.masters() | run.buffers | run.frozen
    found |= {name: found[target] for name, target in run.shared.items()}
    for group, moments in zip(run.groups + run.experts, run.moments, strict=False):
        for key, moment in moments.items():
            found |= {f"optimizer.state.{name}.{key}": moment[name] for name in group}
    if run.stage != 3:
        groups = run.groups + run.experts
        weights = {name: tensor.to(run.compute) for group in groups for name, tensor in group.items()}
        weights |= run.frozen | {name: weights[target] for name, target in run.shared.items()}
        found |= {f"module.{name}": tensor for name, tensor in weights.items()}
    return found


def same(ckpt: rustload.Checkpoint, whole: dict[str, torch.Tensor]) -> None:
    assert sorted(ckpt) == sorted(whole)
    for name, tensor in whole.items():
        found = ckpt[name].materialize(framework="torch")
        assert found.dtype == tensor.dtype, name
        assert torch.equal(found, tensor), name


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_whole_tensors_of_every_stage(tmp_path, stage, world):
    for groups in (1, 2, 3):
        made = run(stage, world, groups)
        root = write(tmp_path / str(groups), made)
        with rustload.open(root) as ckpt:
            same(ckpt, expected(made))


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_parameters_outside_the_optimizer_have_their_own_names(tmp_path, stage):
    """No file states their shapes, as none does those of frozen ones in stage 1."""
    outside = torch.arange(6.0).half()

    def change(_: str, content: dict[str, Any]) -> None:
        if "module" in content:
            content["module"]["outside"] = outside

    made = run(stage, 2, change=change)
    root = write(tmp_path / "run", made)
    same(rustload.open(root), expected(made) | {"outside": outside, "module.outside": outside})
    rustload.convert(root, tmp_path / "out.safetensors", rename={"optimizer": None, "module": None})
    assert {"outside", "frozen.weight"} <= set(rustload.open(tmp_path / "out.safetensors"))


def test_stage_3_says_what_it_does_not_have(tmp_path):
    def change(_: str, content: dict[str, Any]) -> None:
        if "module" in content:
            content["module"]["outside"] = torch.empty(0)

    made = run(3, 2, change=change)
    ckpt = rustload.open(write(tmp_path, made))
    same(ckpt, expected(made))
    assert any("no elements" in note and '"outside"' in note for note in ckpt.notes)


@pytest.mark.parametrize(
    "more",
    [{"align": 4}, {"elastic": True}, {"mappings": False}, {"align": 8, "world": 3}, {"round_robin": True}],
)
@pytest.mark.parametrize("stage", [1, 2])
def test_other_forms_of_flat_groups(tmp_path, stage, more):
    made = run(stage, **({"world": 4} | more))  # type: ignore[arg-type]
    same(rustload.open(write(tmp_path, made)), expected(made))


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(
    "names",
    [("a", "module.a"), ("module.a", "module_.b"), ("optimizer.state.a.exp_avg", "a"), ("optimizer.a",)],
)
def test_parameters_that_are_named_as_copies_and_states_are(tmp_path, names, stage):
    group = tensors(dict.fromkeys(names, (4, 3)))
    made = Run(
        [group], stage, 2, moments=[{key: tensors(dict.fromkeys(names, (4, 3)), 1) for key in MOMENTS}]
    )
    module = "module__." if names[1:] == ("module_.b",) else "module_." if "module.a" in names else "module."
    optimizer = "optimizer." if any("module" in name for name in names) else "optimizer_."
    whole = dict(group)
    whole |= {f"{module}{name}": one.bfloat16() for name, one in group.items() if stage != 3}
    for key, moment in made.moments[0].items():
        whole |= {f"{optimizer}state.{name}.{key}": one for name, one in moment.items()}
    root = write(tmp_path / "run", made)
    ckpt = rustload.open(root)
    same(ckpt, whole)
    assert optimizer in ckpt.notes[-1]
    assert stage == 3 or module in ckpt.notes[-1]
    out = tmp_path / "out.safetensors"
    leave = {optimizer[:-1]: None} | ({} if stage == 3 else {module[:-1]: None})
    rustload.convert(root, out, rename=leave)
    same(rustload.open(out), group)


@pytest.mark.parametrize("world", WORLDS)
def test_the_last_rank_may_state_all_of_the_padding(tmp_path, world):
    made = Run(
        [tensors({"one": (1,)}), tensors({"few": (world + 1,)})], 2, world, last_states_all_padding=True
    )
    same(rustload.open(write(tmp_path, made)), expected(made))


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes_are_those_of_the_file(tmp_path, stage, dtype):
    made = run(stage, 3, compute=dtype, master=dtype)
    same(rustload.open(write(tmp_path, made)), expected(made))


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_root_a_tag_folder_and_a_list_agree(tmp_path, stage):
    made = run(stage, 12)
    folder = write(tmp_path, made) / "global_step7"
    files = sorted(folder.iterdir(), key=lambda path: hash(path.name))
    with rustload.open(tmp_path) as root, rustload.open(folder) as tag, rustload.open(files) as listed:
        assert list(root) == list(tag) == list(listed)
        for ckpt in (root, tag, listed):
            same(ckpt, expected(made))


@pytest.mark.parametrize("stage", [2, 3])
def test_the_rest_of_the_package(tmp_path, stage):
    made = run(stage, 4)
    root = write(tmp_path / "run", made)
    ckpt = rustload.open(root, framework="torch")
    assert ["a.weight", "head.weight"] in ckpt.tied
    whole = expected(made)
    assert torch.equal(ckpt["b.weight"][1:, :, ::3].materialize(), whole["b.weight"][1:, :, ::3])
    assert torch.equal(ckpt["a.weight"][5].materialize(), whole["a.weight"][5])
    with ckpt.stream() as stream:
        assert {name for name, _ in stream} == set(whole)
    states = ckpt.objects[optimizer_name(made, 3)[:-3]]["optimizer_state_dict"]
    assert states["partition_count"] in (4, [4, 4])
    assert any("ZeRO stage" in note for note in ckpt.notes)
    again = pickle.loads(pickle.dumps(ckpt["optimizer.state.a.weight.exp_avg"]))
    assert torch.equal(again.materialize(), whole["optimizer.state.a.weight.exp_avg"])
    for inside in (None, root / "model.safetensors"):
        with pytest.raises(ValueError, match="would be opened in place of the checkpoint"):
            rustload.convert(root, inside)
    out = tmp_path / "out.safetensors"
    rustload.convert(root, out, rename={"optimizer": None, "module": None})
    weights = {name: one for name, one in whole.items() if not name.startswith(("optimizer.", "module."))}
    same(rustload.open(out), weights)
    model = torch.nn.Linear(5, 7, bias=False)
    rustload.torch.load_into(model, root, rename={"a.weight": "weight"}, strict=False)
    assert torch.equal(model.weight, whole["a.weight"])
    assert rustload.diff(root, root, data=True).equal


@pytest.mark.parametrize("count", [2, 3])
def test_ranks_of_tensor_parallelism_are_not_joined(tmp_path, count):
    whole = {}
    for rank in range(count):
        made = run(3, 2)
        made.groups = [tensors({"w": (4, rank + 2)}, rank)]
        made.moments, made.shared, made.frozen = [], {}, {}
        write(tmp_path, made, tensor_rank=rank)
        whole |= {f"mp_rank_{rank:02d}.{name}": one for name, one in expected_plain(made).items()}
    ckpt = rustload.open(tmp_path)
    same(ckpt, whole)
    assert any("not joined" in note for note in ckpt.notes)


def expected_plain(made: Run) -> dict[str, torch.Tensor]:
    return made.masters() | made.buffers


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("copies", [False, True])
def test_universal_checkpoints(tmp_path, stage, copies):
    made = run(stage, 12, round_robin=copies)
    for group in (made.groups[0], *made.moments[0].values()):
        group.pop("none", None)
    root = write_universal(tmp_path, made, copies=copies)
    with rustload.open(root) as ckpt, rustload.open(root / "global_step7_universal") as tag:
        assert list(ckpt) == list(tag)
        same(ckpt, expected(made))
        assert ["a.weight", "head.weight"] in ckpt.tied
        assert any("mixes up" in note for note in ckpt.notes) == (copies and stage != 3)
    (root / "global_step7_universal" / model_name(stage, 0)).unlink()
    if stage == 3:
        with pytest.raises(rustload.FormatError, match="zero_pp_rank_0_mp_rank_00_model_states"):
            rustload.open(root)
    else:
        assert ("norm.mean" in rustload.open(root)) == copies


def test_older_places_of_the_shapes(tmp_path):
    """One dict of shapes beside the optimizer's states, and no keys that later versions added."""
    shapes = {}

    def move(_: str, content: dict[str, Any]) -> None:
        if "module" in content:
            for key in ("shared_params", "frozen_param_shapes", "frozen_param_fragments"):
                del content[key]
            (group,) = content.pop("param_shapes")
            shapes.update({key: list(shape) for key, shape in group.items()})
        else:
            content["param_shapes"] = shapes
            content["optimizer_state_dict"].update(zero_stage=2, partition_count=3)

    made = run(2, 3, groups=1, change=move, mappings=False)
    made.frozen, made.shared = {}, {}
    same(rustload.open(write(tmp_path, made)), expected(made))


def test_a_file_alone_opens_as_before(tmp_path):
    made = run(3, 2)
    folder = write(tmp_path, made) / "global_step7"
    alone = rustload.open(folder / optimizer_name(made, 1))
    assert "optimizer_state_dict.fp32_flat_groups.0" in alone
    assert "module.norm.mean" in rustload.open(folder / model_name(3, 1))
    assert alone.opaque


def test_weights_beside_the_folder_are_the_checkpoint(tmp_path):
    root = write(tmp_path, run(3, 2))
    rustload.save({"w": torch.ones(2)}, root / "model.safetensors")
    ckpt = rustload.open(root)
    assert list(ckpt) == ["w"]
    assert any("also has latest" in note for note in ckpt.notes)


def test_a_run_without_zero_opens_from_its_root(tmp_path):
    folder = tmp_path / "global_step7"
    folder.mkdir()
    (tmp_path / "latest").write_text("global_step7")
    torch.save({"module": {"w": torch.ones(2)}}, folder / model_name(0, 0))
    assert list(rustload.open(tmp_path)) == list(rustload.open(folder)) == ["module.w"]
    (folder / model_name(0, 0)).unlink()
    with pytest.raises(rustload.FormatError, match="holds no checkpoint"):
        rustload.open(tmp_path)


@pytest.mark.parametrize("stage", [1, 3])
def test_what_is_read(tmp_path, stage):
    """A slice reads itself, and a conversion the weights once and no moments."""
    whole = tensors({"w": (4096, 1024), "b": (1001,)})
    made = Run([whole], stage, 5, moments=[dict.fromkeys(MOMENTS, whole)])
    root = write(tmp_path / "run", made)
    with rustload.open(root, framework="torch") as ckpt:
        before = read()
        rows = ckpt["w"][1000:2000].materialize(copy=True)
        assert read() - before <= 1.05 * rows.nbytes
        assert torch.equal(rows, whole["w"][1000:2000])
        before = read()
        columns = ckpt["w"][:, :512].materialize(copy=True)
        assert read() - before <= 2.1 * columns.nbytes
    before = read()
    leave: dict[str, str | None] = {"optimizer": None} | ({} if stage == 3 else {"module": None})
    rustload.convert(root, tmp_path / "out.safetensors", rename=leave)
    assert read() - before <= 1.05 * sum(tensor.nbytes for tensor in whole.values())
    same(rustload.open(tmp_path / "out.safetensors"), whole)


@pytest.mark.parametrize("stage", [2, 3])
def test_each_rank_of_a_mesh_reads_its_own_elements(tmp_path, stage):
    """What torch itself puts on a rank, of ZeRO's other number of ranks; and no more bytes than a rank's share needs."""
    from test_dtensor import as_rank, module_of, select
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard

    whole = tensors({"w": (2048, 512), "v": (1001,), "u": (3, 5, 7)})
    root = write(tmp_path, Run([whole], stage, 5))
    ways = {"w": (Shard(0), Shard(1)), "v": (Shard(0), Replicate()), "u": (Replicate(), Shard(2))}
    for rank in range(4):
        with as_rank(rank, 4):
            mesh = init_device_mesh("cpu", (2, 2))
            expected = {name: select(one, mesh, ways[name]) for name, one in whole.items()}
            model = module_of(
                {name: select(torch.zeros_like(one), mesh, ways[name]) for name, one in whole.items()}
            )
            before = read()
            report = rustload.torch.load_into(model, root, rename={"optimizer": None, "module": None})
            assert not report.missing
            assert not report.unexpected
            # A column share of rows of 2 KiB is read with what is between its parts.
            assert read() - before <= 1.2 * whole["w"].nbytes / 2 + (1 << 20)
            for name, tensor in model.named_parameters():
                assert torch.equal(tensor.to_local(), expected[name].to_local()), name


@pytest.mark.parametrize("stage", [1, 3])
def test_dcp_loads_whole_tensors(tmp_path, stage):
    import torch.distributed.checkpoint as dcp

    from rustload.torch.distributed import Planner, Reader

    made = run(stage, 3)
    root, whole = write(tmp_path, made), expected(made)
    state: dict[str, Any] = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    steps = f"{model_name(stage, 0)[:-3]}.global_steps"
    state[steps] = 0
    dcp.load(state, storage_reader=Reader(root), planner=Planner(), no_dist=True)
    assert state.pop(steps) == made.step
    assert all(torch.equal(state[name], tensor) for name, tensor in whole.items())
    found = Reader(root).read_metadata().state_dict_metadata
    assert {name for name, one in found.items() if hasattr(one, "size")} == set(whole)


def test_commands_take_the_folder(tmp_path, capsys):
    from rustload._cli import main

    root = write(tmp_path, run(3, 2))
    assert main(["info", str(root)]) == 0
    shown = capsys.readouterr().out
    assert "b.weight" in shown
    assert "exp_avg_sq" in shown
    assert main(["diff", str(root), str(root / "global_step7"), "--data"]) == 0
    assert main(["stats", str(root), "--select", "a.*"]) == 0
    assert main(["scan", str(root)]) in (0, 1)
