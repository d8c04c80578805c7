"""`rustload.torch.distributed`: `Reader`, `Planner` and `Writer` in `torch.distributed.checkpoint` (DCP).

The steps of DCP that need no other rank run in one process, as each rank in turn; the rest in one group of four processes.
"""

import json
import os
from pathlib import Path

import pytest
import torch
from ranged import Ranges
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support import assert_same_bits, contents, divided, gloo_ranks, saved, write_shards
from test_dtensor import as_rank, module_of, select, tensor_parallel, values
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    _EmptyStateDictLoadPlanner,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import rustload
from rustload.torch._share import share_of
from rustload.torch.distributed import Planner, Reader, Writer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    return model, optimizer


def run() -> dict[str, object]:
    """A training run: tensors in dicts and lists, and plain values."""
    model, optimizer = trained()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": [torch.arange(3), {"seed": 7}],
        "epoch": 3,
        "names": ["a", ("b", 2.5)],
        "pair": (torch.arange(4.0), "x"),
    }


def emptied(value):
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: emptied(one) for key, one in value.items()}
    return (
        [emptied(one) for one in value] if isinstance(value, list) else None if not callable(value) else value
    )


def assert_equal(found, expected) -> None:
    assert type(found) is type(expected) or isinstance(expected, dict)
    if isinstance(expected, torch.Tensor):
        assert_same_bits(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, two in zip(found, expected, strict=True):
            assert_equal(one, two)
    else:
        assert found == expected


def save_run(kind: str, value, folder: Path) -> Path:
    """Saves a training run as a file of torch, or as DCP's folder."""
    path = folder / kind
    if kind == "dcp":
        dcp.save(value, checkpoint_id=path, no_dist=True)
    else:
        torch.save(value, path, _use_new_zipfile_serialization=kind == "archive")
    return path


KINDS = ["archive", "legacy", "dcp"]


@pytest.mark.parametrize("planner", [Planner, DefaultLoadPlanner])
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_run_is_loaded_without_unpickling_it(planner, kind, tmp_path, monkeypatch):
    expected = run()
    path = save_run(kind, expected, tmp_path)
    if planner is Planner:
        monkeypatch.setattr(torch, "load", None)
    found = emptied(expected)
    dcp.load(found, storage_reader=Reader(path), planner=planner())
    assert_equal(found["model"], expected["model"])
    assert_equal(found["optimizer"]["state"], expected["optimizer"]["state"])
    group = expected["optimizer"]["param_groups"][0]
    assert found["optimizer"]["param_groups"][0] == group
    assert (found["epoch"], found["names"]) == (3, ["a", ("b", 2.5)])
    assert_same_bits(found["rng"][0], torch.arange(3))
    assert found["rng"][1] == {"seed": 7}
    assert_equal(found["pair"], expected["pair"])


@pytest.mark.parametrize("kind", KINDS)
def test_metadata_is_that_of_dcps_own_checkpoint(kind, tmp_path):
    expected = run()
    theirs = dcp.FileSystemReader(save_run("dcp", expected, tmp_path)).read_metadata()
    ours = Reader(tmp_path / "dcp" if kind == "dcp" else save_run(kind, expected, tmp_path)).read_metadata()
    assert ours.state_dict_metadata.keys() == theirs.state_dict_metadata.keys()
    for name, one in ours.state_dict_metadata.items():
        other = theirs.state_dict_metadata[name]
        assert type(one) is type(other)
        if hasattr(one, "size"):
            assert (one.size, one.properties.dtype) == (other.size, other.properties.dtype)
            assert one.chunks == other.chunks
    assert ours.planner_data == theirs.planner_data


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_dict_is_made_from_the_metadata_alone(kind, tmp_path):
    """As `dcp_to_torch_save` does, which needs the paths in the metadata."""
    expected = run()
    found: dict[str, object] = {}
    _load_state_dict(
        found,
        storage_reader=Reader(save_run(kind, expected, tmp_path)),
        planner=_EmptyStateDictLoadPlanner(),
        no_dist=True,
    )
    assert found.keys() == expected.keys()
    assert_equal(found["model"], expected["model"])
    assert_equal(found["rng"], expected["rng"])
    assert_same_bits(
        found["optimizer"]["state"]["0"]["exp_avg"], expected["optimizer"]["state"][0]["exp_avg"]
    )


def test_values_of_a_dcp_folder_are_read_only_if_asked_for(tmp_path):
    dcp.save({"w": torch.ones(2), "epoch": 3}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    (file,) = (tmp_path / "dcp").glob("*.distcp")
    index = dcp.FileSystemReader(tmp_path / "dcp").read_metadata().storage_data
    (place,) = (info for index, info in index.items() if index.fqn == "epoch")
    data = bytearray(file.read_bytes())
    data[place.offset : place.offset + place.length] = bytes(place.length)
    file.write_bytes(data)
    found = {"w": torch.zeros(2)}
    dcp.load(found, storage_reader=Reader(tmp_path / "dcp"))
    assert_same_bits(found["w"], torch.ones(2))
    with pytest.raises(CheckpointException, match="FormatError"):
        dcp.load({**found, "epoch": 0}, storage_reader=Reader(tmp_path / "dcp"), planner=Planner())


def test_our_planner_reads_dcps_own_files_without_unpickling_values(tmp_path, monkeypatch):
    dcp.save({"w": torch.arange(4.0), "epoch": [3, "x"]}, checkpoint_id=tmp_path / "dcp")
    found = {"w": torch.zeros(4), "epoch": None}
    loads = torch.load

    def only_tensors(*args, **options):
        assert options.get("weights_only"), "a value was unpickled"
        return loads(*args, **options)

    monkeypatch.setattr(torch, "load", only_tensors)
    dcp.load(found, checkpoint_id=tmp_path / "dcp", planner=Planner())
    assert found["epoch"] == [3, "x"]
    assert_same_bits(found["w"], torch.arange(4.0))


def test_an_opaque_value_is_refused_for_planners_that_unpickle_and_inert_for_ours(save):
    path = save({"w": torch.ones(2), "made_by": Path("x")}, "run.pt")
    with pytest.raises(CheckpointException, match=r"made_by.*not plain data"):
        dcp.load({"w": torch.zeros(2), "made_by": None}, storage_reader=Reader(path))
    found = {"w": torch.zeros(2), "made_by": None}
    dcp.load(found, storage_reader=Reader(path), planner=Planner())
    assert isinstance(found["made_by"], rustload.Opaque)
    assert_same_bits(found["w"], torch.ones(2))
    only = {"w": torch.zeros(2)}
    dcp.load(only, storage_reader=Reader(path))  # what is not asked for is not an error
    assert_same_bits(only["w"], torch.ones(2))


def test_selection_casts_and_errors_are_those_of_rustload_and_dcp(save):
    path = save({"state_dict": {"module.w": torch.arange(6.0).reshape(2, 3)}, "epoch": 1}, "run.pt")
    found = {"model": {"w": torch.zeros(2, 3, dtype=torch.bfloat16)}}
    reader = Reader(path, key="state_dict", strip="module.", rename=lambda name: "model." + name)
    dcp.load(found, storage_reader=reader, planner=Planner())
    assert_same_bits(found["model"]["w"], torch.arange(6.0).reshape(2, 3).bfloat16())
    metadata = Reader(path, key="state_dict", dtype="float16").read_metadata()
    assert metadata.state_dict_metadata["module.w"].properties.dtype == torch.float16
    whole = {"w": torch.zeros(2, 3, dtype=torch.int32)}
    options = {"key": "state_dict", "strip": "module."}
    with pytest.raises(CheckpointException, match=r"float32.*int32"):
        dcp.load(whole, storage_reader=Reader(path, **options))
    dcp.load(whole, storage_reader=Reader(path, **options, allow_lossy=True))
    assert_same_bits(whole["w"], torch.arange(6, dtype=torch.int32).reshape(2, 3))
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict: absent"):
        dcp.load({"absent": torch.zeros(1)}, storage_reader=Reader(path))
    with pytest.raises(CheckpointException, match="Size mismatch between saved"):
        dcp.load({"w": torch.zeros(3)}, storage_reader=Reader(path, **options))
    transposed = {"w": torch.zeros(3, 2).T}
    dcp.load(transposed, storage_reader=Reader(path, **options))
    assert_same_bits(transposed["w"].contiguous(), torch.arange(6.0).reshape(2, 3))


def test_a_tree_with_more_paths_than_values_ends_in_a_limit(save):
    inner: list[object] = [{}]
    for _ in range(40):
        inner = [inner, inner]
    path = save({"deep": inner}, "bomb.pt")
    with pytest.raises(rustload.LimitError, match="more than 10000 paths"):
        Reader(path, limits=rustload.Limits(export_nodes=10_000)).read_metadata()


LAYOUTS = {
    "Shard(0)": ((4,), [Shard(0)]),
    "Shard(1)": ((4,), [Shard(1)]),
    "Shard(2)": ((2,), [Shard(2)]),
    "replicated": ((2,), [Replicate()]),
    "HSDP": ((2, 2), [Replicate(), Shard(0)]),
    "0 and 1": ((2, 2), [Shard(0), Shard(1)]),
    "1 and 0": ((2, 2), [Shard(1), Shard(0)]),
    "0 twice": ((2, 2), [Shard(0), Shard(0)]),
    "2 twice": ((2, 2), [Shard(2), Shard(2)]),
    "last replicated": ((2, 2), [Shard(1), Replicate()]),
    "three": ((2, 2, 2), [Shard(0), Shard(1), Shard(2)]),
    "three with a replica": ((2, 2, 2), [Shard(0), Replicate(), Shard(0)]),
}
SIZES = (1, 2, 5, 8)


def save_from_ranks(state, mesh_shape, placements, folder: Path) -> None:
    """The folder that `dcp.save` writes from several ranks, by its own steps, one rank after another."""
    world, planners, plans = torch.Size(mesh_shape).numel(), [], []
    writer = dcp.FileSystemWriter(folder)
    for rank in range(world):
        with as_rank(rank, world):
            mesh = init_device_mesh("cpu", mesh_shape)
            planners.append(DefaultSavePlanner())
            mine = {name: select(one, mesh, placements) for name, one in state.items() if one.ndim}
            planners[-1].set_up_planner({**state, **mine}, is_coordinator=rank == 0)
            writer.set_up_storage_writer(rank == 0)
            plans.append(writer.prepare_local_plan(planners[-1].create_local_plan()))
    plans, metadata = planners[0].create_global_plan(plans)
    results = []
    for rank, (planner, plan) in enumerate(zip(planners, writer.prepare_global_plan(plans), strict=True)):
        with as_rank(rank, world):
            results.append(writer.write_data(planner.finish_plan(plan), planner).wait())
    writer.finish(metadata, results)


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> dict[str, object]:
    """One state dict in every form; `dcp` is DCP's own, in one chunk per tensor."""
    folder = tmp_path_factory.mktemp("sources")
    state = {f"w{n}": values((n, 7, 3), n) for n in SIZES} | {"plain": torch.tensor(2.5)}
    torch.save(state, folder / "m.bin")
    torch.save(state, folder / "legacy.bin", _use_new_zipfile_serialization=False)
    save_file(state, folder / "m.safetensors")
    dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    save_from_ranks(state, (4,), [Shard(0)], folder / "dcp-rows")
    save_from_ranks(state, (2, 2), [Shard(1), Shard(2)], folder / "dcp-grid")
    paths = [folder / name for name in ("m.bin", "legacy.bin", "m.safetensors")]
    parts = divided(dict(sorted(state.items())), 2)
    paths += [write_shards(folder / suffix, parts, suffix) for suffix in ("bin", "safetensors")]
    paths += [folder / name for name in ("dcp", "dcp-rows", "dcp-grid")]
    return {"state": state, "paths": paths, "dcp": folder / "dcp"}


def load_as_rank(reader, found, rank: int) -> None:
    """`dcp.load` as one of several ranks: its steps without those that send."""
    planner = DefaultLoadPlanner()
    metadata = reader.read_metadata()
    planner.set_up_planner(found, metadata, is_coordinator=rank == 0)
    reader.set_up_storage_reader(metadata, rank == 0)
    reader.read_data(reader.prepare_local_plan(planner.create_local_plan()), planner).wait()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_ranks_plan_reads_what_dcps_own_reader_reads(layout, sources):
    assert len(LAYOUTS) == 12
    mesh_shape, placements = LAYOUTS[layout]
    state = sources["state"]
    world = torch.Size(mesh_shape).numel()
    for rank in range(world):
        with as_rank(rank, world):
            mesh = init_device_mesh("cpu", mesh_shape)
            expected = {name: select(one, mesh, placements) for name, one in state.items() if one.ndim}
            expected["plain"] = state["plain"]
            for reader in (*map(Reader, sources["paths"]), dcp.FileSystemReader(sources["dcp"])):
                found = {name: torch.zeros_like(one) for name, one in expected.items()}
                load_as_rank(reader, found, rank)
                for name, one in expected.items():
                    local = getattr(found[name], "_local_tensor", found[name])
                    assert_same_bits(local, getattr(one, "_local_tensor", one))


@pytest.mark.parametrize("size", [4, 8, 12])
def test_fsdp_over_tensor_parallelism_reads_what_dcps_own_reader_reads(size, tmp_path, save):
    """torch computes the chunk of a `_StridedShard` itself: right where every rank holds as many rows."""
    state = {"w": values((size, 3))}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    readers = [Reader(save(state, "m.bin")), Reader(tmp_path / "dcp"), dcp.FileSystemReader(tmp_path / "dcp")]
    for rank in range(4):
        with as_rank(rank, 4):
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            module = module_of({"w": tensor_parallel(torch.zeros(size, 3), mesh["tp"])})
            model = fully_shard(module, mesh=mesh["dp"])
            (parameter,) = model.parameters()
            assert isinstance(parameter.placements[0], _StridedShard)
            for reader in readers:
                with torch.no_grad():
                    parameter.to_local().zero_()
                load_as_rank(reader, {"w": parameter.detach()}, rank)
                part = state["w"].chunk(2)[rank % 2].chunk(2)[rank // 2]
                assert_same_bits(parameter.to_local().detach(), part)


@pytest.mark.parametrize("legacy", [False, True])
def test_two_ranks_read_half_of_the_file_each(legacy):
    state = {f"w{n}": values((512, 512), n) for n in range(4)}
    data = saved(state, _use_new_zipfile_serialization=not legacy)
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            source = Ranges(data)
            reader = Reader(source)
            found = {name: select(torch.zeros_like(one), mesh, [Shard(0)]) for name, one in state.items()}
            planner = Planner()
            planner.set_up_planner(found, reader.read_metadata(), is_coordinator=rank == 0)
            of_metadata = source.nbytes
            reader.read_data(planner.create_local_plan(), planner)
            # An archive has a header before each member, which is read as a block of 64 KiB.
            headers = 0 if legacy else len(state) << 16
            assert source.nbytes - of_metadata <= 0.525 * source.size + headers


MODEL = {
    "layers.0.weight": values((9, 6)).bfloat16(),
    "layers.0.bias": values((9,), 1),
    "layers.1.weight": values((4, 5, 6), 2).half(),
    "counts": torch.arange(5),
    "flags": torch.tensor([True, False, True]),
    'é " \\ \x07': values((3, 3), 3),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
}


@pytest.mark.parametrize("max_shard_size", ["50GB", 200, 1])
def test_one_process_writes_the_files_of_save(max_shard_size, tmp_path):
    dcp.save(MODEL, storage_writer=Writer(tmp_path / "ours", max_shard_size=max_shard_size))
    rustload.save(dict(sorted(MODEL.items())), tmp_path / "save", max_shard_size=max_shard_size)
    assert contents(tmp_path / "ours") == contents(tmp_path / "save")
    dcp.save(MODEL, storage_writer=Writer(tmp_path / "again", max_shard_size=max_shard_size))
    assert contents(tmp_path / "again") == contents(tmp_path / "ours")
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_files_are_written_where_python_cannot_reserve_space(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fallocate")  # as on macOS
    dcp.save(MODEL, storage_writer=Writer(tmp_path / "ours"))
    rustload.save(dict(sorted(MODEL.items())), tmp_path / "save")
    assert contents(tmp_path / "ours") == contents(tmp_path / "save")


def test_one_element_may_have_any_stride(tmp_path):
    model = {"w": torch.arange(8.0)[3::8], "m": torch.arange(12.0).reshape(4, 3)[1:2, 1::3]}
    assert [tensor.stride() for tensor in model.values()] == [(8,), (3, 3)]
    dcp.save(model, storage_writer=Writer(tmp_path / "ours"))
    rustload.save(dict(sorted(model.items())), tmp_path / "save")
    assert contents(tmp_path / "ours") == contents(tmp_path / "save")


def test_pairs_of_float4_are_counted_as_in_the_file_of_save(tmp_path):
    tensor = torch.arange(32, dtype=torch.uint8).reshape(4, 8).view(torch.float4_e2m1fn_x2)
    dcp.save({"w": tensor}, storage_writer=Writer(tmp_path / "ours"))
    rustload.save({"w": tensor}, tmp_path / "save")
    assert contents(tmp_path / "ours") == contents(tmp_path / "save")
    loaded = load_file(tmp_path / "ours" / "model.safetensors")["w"]
    assert_same_bits(loaded.view(torch.uint8), tensor.view(torch.uint8))
    with pytest.raises(CheckpointException, match="has no form in a safetensors file"):
        dcp.save({"w": tensor[0, 0]}, storage_writer=Writer(tmp_path / "half a byte"))


@pytest.mark.parametrize("target", ["link", "empty", "."])
def test_a_folder_that_exists_stays_the_same_folder(target, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir(mode=0o711)
    (tmp_path / "link").symlink_to("empty")
    monkeypatch.chdir(tmp_path / "empty" if target == "." else tmp_path)
    before = (tmp_path / "empty").stat()
    dcp.save({"w": torch.ones(2)}, storage_writer=Writer(target))
    after = (tmp_path / "empty").stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert [one.name for one in Path(target).iterdir()] == ["model.safetensors"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["empty", "link"]
    assert (tmp_path / "link").is_symlink()


def test_targets_names_and_texts_that_cannot_be_are_refused_before_anything_is_written(tmp_path):
    (tmp_path / "file").write_text("a file")
    with pytest.raises(CheckpointException, match="Not a directory"):
        dcp.save({"w": torch.ones(2)}, storage_writer=Writer(tmp_path / "file"))
    with pytest.raises(ValueError, match="is not a name of a file"):
        Writer(tmp_path / "saved", name="../model")
    with pytest.raises(TypeError, match="metadata= is texts by texts"):
        Writer(tmp_path / "saved", metadata={"step": 1})  # type: ignore[dict-item]
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_an_existing_checkpoint_is_replaced_only_if_asked(tmp_path):
    target = tmp_path / "saved"
    dcp.save(MODEL, storage_writer=Writer(target, max_shard_size=200))
    (target / "config.json").write_text("{}")
    before = contents(target)
    with pytest.raises(CheckpointException, match="exists, and overwrite=True is not given"):
        dcp.save({"w": torch.ones(2)}, storage_writer=Writer(target))
    assert contents(target) == before
    dcp.save({"w": torch.ones(2)}, storage_writer=Writer(target, overwrite=True, metadata={"a": "b"}))
    assert sorted(contents(target)) == ["config.json", "model.safetensors"]
    with safe_open(target / "model.safetensors", "pt") as file:
        assert file.metadata() == {"a": "b"}
        assert_same_bits(file.get_tensor("w"), torch.ones(2))


def test_what_has_no_form_in_safetensors_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(CheckpointException, match="'epoch' is not a tensor"):
        dcp.save({"w": torch.ones(2), "epoch": 3}, storage_writer=Writer(tmp_path / "saved"))
    with pytest.raises(CheckpointException, match="complex128 has no form"):
        dcp.save({"w": torch.ones(2).cdouble()}, storage_writer=Writer(tmp_path / "saved"))
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_does_not_see_the_coordinators_folder_says_so(tmp_path):
    planner = DefaultSavePlanner()
    planner.set_up_planner({"w": torch.ones(2)}, is_coordinator=True)
    writer = Writer(tmp_path / "saved")
    writer.set_up_storage_writer(True)
    plan = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([plan])
    (plan,) = writer.prepare_global_plan(plans)
    (tmp_path / ".saved.part" / "token").write_text("of another save")
    with pytest.raises(FileNotFoundError, match="all ranks need one shared file system"):
        writer.write_data(planner.finish_plan(plan), planner)
    with pytest.raises(ValueError, match="0 of 8 bytes of 'w' were written"):
        writer.finish(metadata, [[]])
    assert not (tmp_path / "saved").exists()
    # The next save begins anew.
    dcp.save({"w": torch.ones(2)}, storage_writer=Writer(tmp_path / "saved"))
    assert [one.name for one in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_the_shares_of_a_machine_cover_what_its_ranks_need_once(ranks):
    order = ["a", "b", "scalar", "empty", "c"]
    row_bytes = {"a": 40, "b": 3, "scalar": 4, "empty": 0, "c": 100}
    needed = [
        {
            "a": (rank, rank + 3),
            "b": (10 * rank, 10 * rank + 5),
            "scalar": (0, 1),
            "empty": (0, 2),
            "c": (0, 9),
        }
        for rank in range(ranks)
    ]
    wanted = {
        (name, row) for rows in needed for name, (start, stop) in rows.items() for row in range(start, stop)
    }
    shares = [share_of(needed, row_bytes, order, number) for number in range(ranks)]
    rows = [
        (piece.name, row) for share in shares for piece in share for row in range(piece.start, piece.stop)
    ]
    assert len(rows) == len(set(rows))
    assert {row for row in rows if row[0] != "empty"} == {row for row in wanted if row[0] != "empty"}
    total = sum(row_bytes[name] for name, _ in wanted)
    for share in shares:
        nbytes = sum((piece.stop - piece.start) * row_bytes[piece.name] for piece in share)
        assert abs(nbytes - total / ranks) <= 2 * max(row_bytes.values())


def launch(script: str, world: int, folder: Path) -> list[dict]:
    """What each rank of a script prints, from JSON."""
    done = gloo_ranks(script, world, folder)
    for rank in done:
        assert rank.returncode == 0, rank.stderr
    return [json.loads(rank.stdout) for rank in done]


def test_four_processes_load_save_and_fail_together(save, tmp_path):
    """Everything that needs a group of processes, in one launch: `ranks_child.py` has the steps."""
    model = {name: one for name, one in MODEL.items() if one.ndim}
    save(model, "model.bin")
    damaged = bytearray((tmp_path / "model.bin").read_bytes())
    (tmp_path / "broken.bin").write_bytes(damaged[: len(damaged) // 2])
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=24, intermediate_size=36, num_hidden_layers=2, num_attention_heads=2
    )
    llama = transformers.LlamaForCausalLM(config).bfloat16()
    save(llama.state_dict(), "llama.bin")
    outputs = launch("ranks_child.py", 4, tmp_path)
    config.save_pretrained(tmp_path / "llama")
    for rank, found in enumerate(outputs):
        assert found["equal"], rank
        assert found["saved by ranks"] == [True] * (6 if rank < 2 else 3)
        assert "broken.bin" in found["load error"]
        assert "not plain data" not in found["load error"]
        assert "'epoch' is not a tensor" in found["save error"]
        assert "read ahead, as a share of what 4 ranks" in found["note"]
        assert found["warmed"] == "once"
        assert ("broken.bin" if rank == 2 else "rank 2 failed to load: FormatError") in found["share error"]
        assert found["bytes_read"] == outputs[rank]["share"]
        assert not found["left"]
        for step, text in found["failures"].items():
            assert f"planted in {step}" in text, (rank, step, text)
        if rank < 2:
            assert found["llama"]
    saved_by_four = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama", dtype="auto")
    assert_equal(saved_by_four.state_dict(), llama.state_dict())
    rustload.save(dict(sorted(model.items())), tmp_path / "save", max_shard_size=150)
    expected = contents(tmp_path / "save")
    for world in (1, 2, 4):
        assert contents(tmp_path / f"saved{world}") == expected


def test_transformers_tensor_parallelism_reads_each_ranks_part(tmp_path):
    pytest.importorskip("transformers")
    for found in launch("tensor_parallel_child.py", 2, tmp_path):
        assert len(found) == 7, found
        for name, one in found.items():
            assert one["rows"] == 256, name
            assert one["equal"], name
            if name == "folder":
                continue
            assert 0.49 < one["held"] < 0.51, name
            # Small reads, such as the header of a member of an archive, are blocks of 64 KiB.
            blocks = one["tensors"] * (64 << 10) / one["size"]
            # Between parts of rows, gaps of less than a block are read too.
            assert one["read"] <= (1.05 if name.endswith(" rows") else 1.4) * one["held"] + blocks, name
