"""`rustload.torch.distributed`: `Reader`, `Planner` and `Writer` in `torch.distributed.checkpoint` (DCP).

The steps of DCP that need no other rank run in one process, as each rank in turn; the rest in one group of four processes.
"""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support import assert_same_bits
from test_dtensor import Counted, as_rank, select, values
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

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


@pytest.mark.parametrize("planner", [Planner, DefaultLoadPlanner])
@pytest.mark.parametrize("legacy", [False, True])
def test_a_training_run_is_loaded_from_a_pickle_file_without_unpickling_it(
    planner, legacy, save, monkeypatch
):
    expected = run()
    path = save(expected, "run.pt", _use_new_zipfile_serialization=not legacy)
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


def test_metadata_is_that_of_dcps_own_checkpoint(save, tmp_path):
    expected = run()
    dcp.save(expected, checkpoint_id=tmp_path / "dcp")
    theirs = dcp.FileSystemReader(tmp_path / "dcp").read_metadata().state_dict_metadata
    ours = Reader(save(expected, "run.pt")).read_metadata().state_dict_metadata
    assert ours.keys() == theirs.keys()
    for name, one in ours.items():
        assert type(one) is type(theirs[name])
        if hasattr(one, "size"):
            assert (one.size, one.properties.dtype) == (theirs[name].size, theirs[name].properties.dtype)
            assert one.chunks == theirs[name].chunks


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
    dcp.load(only, storage_reader=Reader(path))  # what is not asked for is no error
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


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_ranks_plan_reads_what_dcps_own_reader_reads(layout, save, tmp_path):
    mesh_shape, placements = LAYOUTS[layout]
    state = {f"w{n}": values((n, 7, 3), n) for n in (1, 2, 5, 8)} | {"plain": values((3,))}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    paths = [save(state, "m.bin"), save(state, "m.safetensors")]
    world = torch.Size(mesh_shape).numel()
    for rank in range(world):
        with as_rank(rank, world):
            mesh = init_device_mesh("cpu", mesh_shape)
            expected = {name: select(one, mesh, placements) for name, one in state.items() if one.ndim == 3}
            expected["plain"] = state["plain"]
            for reader in (*map(Reader, paths), dcp.FileSystemReader(tmp_path / "dcp")):
                found = {name: torch.zeros_like(one) for name, one in expected.items()}
                planner = DefaultLoadPlanner()
                metadata = reader.read_metadata()
                planner.set_up_planner(found, metadata, is_coordinator=rank == 0)
                reader.set_up_storage_reader(metadata, rank == 0)
                reader.read_data(reader.prepare_local_plan(planner.create_local_plan()), planner).wait()
                for name, one in expected.items():
                    local = getattr(found[name], "_local_tensor", found[name])
                    assert_same_bits(local, getattr(one, "_local_tensor", one))


@pytest.mark.parametrize("legacy", [False, True])
def test_two_ranks_read_half_of_the_file_each(legacy):
    state = {f"w{n}": values((512, 512), n) for n in range(4)}
    data = io.BytesIO()
    torch.save(state, data, _use_new_zipfile_serialization=not legacy)
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            source = Counted(data.getvalue())
            reader = Reader(source)
            found = {name: select(torch.zeros_like(one), mesh, [Shard(0)]) for name, one in state.items()}
            planner = Planner()
            planner.set_up_planner(found, reader.read_metadata(), is_coordinator=rank == 0)
            of_metadata = source.count
            reader.read_data(planner.create_local_plan(), planner)
            # An archive has a header before each member, which is read as a block of 64 KiB.
            headers = 0 if legacy else len(state) << 16
            assert source.count - of_metadata <= 0.525 * source.size + headers


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


def contents(folder: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in sorted(folder.iterdir())}


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
    with pytest.raises(CheckpointException, match="'epoch' is no tensor"):
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
    (tmp_path / ".saved.partial" / ".rustload").write_text("of another save")
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


def launch(script: str, world: int, *args: object, timeout: float = 110) -> list[str]:
    """Runs a script in `world` processes of one gloo group; returns what each printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    common["PYTHONPATH"] = str(Path(__file__).parent)
    common |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name(script)), *map(str, args)]
    processes = [
        subprocess.Popen(
            command,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        done = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, done, strict=True):
        assert process.returncode == 0, errors
    return [output for output, _ in done]


def test_four_processes_load_save_and_fail_together(save, tmp_path):
    """Everything that needs a group of processes, in one launch: `ranks_child.py` has the steps."""
    model = {name: one for name, one in MODEL.items() if one.ndim}
    save(model, "model.bin")
    damaged = bytearray((tmp_path / "model.bin").read_bytes())
    (tmp_path / "broken.bin").write_bytes(damaged[: len(damaged) // 2])
    outputs = [json.loads(output) for output in launch("ranks_child.py", 4, tmp_path)]
    for rank, found in enumerate(outputs):
        assert found["equal"], rank
        assert "broken.bin" in found["load error"]
        assert "not plain data" not in found["load error"]
        assert "'epoch' is no tensor" in found["save error"]
        assert "read ahead, as a share of what 4 ranks" in found["note"]
        assert found["warmed"] == "once"
        assert ("broken.bin" if rank == 2 else "rank 2 failed to load: FormatError") in found["share error"]
        assert found["bytes_read"] == outputs[rank]["share"]
    rustload.save(dict(sorted(model.items())), tmp_path / "save", max_shard_size=150)
    expected = contents(tmp_path / "save")
    for world in (1, 2, 4):
        assert contents(tmp_path / f"saved{world}") == expected


def test_transformers_tensor_parallelism_reads_each_ranks_part_of_a_legacy_file(tmp_path):
    pytest.importorskip("transformers")
    for output in launch("tensor_parallel_child.py", 2, tmp_path):
        found = json.loads(output)
        assert found["rows"] == 128
        assert found["equal"]
        # Half of the sharded weights and all of the others; small gaps between pieces of rows are read too.
        assert found["read"] < 0.7
