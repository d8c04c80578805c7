"""`load_into` for DTensor parameters: each rank's part of every layout, compared with what torch itself puts there.

torch's fake process group lets one process be each rank in turn: nothing is sent, and what a rank holds is decided locally.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
from ranged import Ranges
from support import assert_same_bits, saved
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import rustload
import rustload.torch
from rustload.torch import load_into
from rustload.torch._shards import cut, runs_shape

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")


@contextlib.contextmanager
def as_rank(rank: int, world_size: int):
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    # Meshes of two ranks are equal, so torch's caches would give this rank the mesh of the one before.
    _clear_sharding_prop_cache()
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def module_of(tensors) -> torch.nn.Module:
    module = torch.nn.Module()
    for name, tensor in tensors.items():
        module.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
    return module


def values(shape, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def select(whole: torch.Tensor, mesh, placements) -> torch.Tensor:
    """What `distribute_tensor` puts on this rank, without sending."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, mesh, placements, src_data_rank=None)


ROWS = {f"w{n}": values((n, 3), n) for n in range(1, 21)}


@pytest.fixture(scope="module")
def rows_files(tmp_path_factory):
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("rows")
    torch.save(ROWS, folder / "rows.bin")
    torch.save(ROWS, folder / "rows.legacy.bin", _use_new_zipfile_serialization=False)
    save_file(ROWS, folder / "rows.safetensors")
    return [folder / name for name in ("rows.bin", "rows.legacy.bin", "rows.safetensors")]


def tensor_parallel(whole: torch.Tensor, mesh) -> DTensor:
    local = Shard(0)._split_tensor(whole, mesh.size(), with_padding=False)[0][mesh.get_local_rank()]
    return DTensor.from_local(
        local.clone(), mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
    )


@pytest.mark.parametrize("mesh_shape", [(2, 2), (4, 2), (2, 4)])
def test_fsdp_over_tensor_parallelism_loads_what_fully_shard_holds_for_every_size(mesh_shape, rows_files):
    seen = {name: [] for name in ROWS}
    for rank in range(mesh_shape[0] * mesh_shape[1]):
        with as_rank(rank, mesh_shape[0] * mesh_shape[1]):
            mesh = init_device_mesh("cpu", mesh_shape, mesh_dim_names=("dp", "tp"))

            def sharded(tensors, mesh=mesh):
                model = module_of(
                    {name: tensor_parallel(whole, mesh["tp"]) for name, whole in tensors.items()}
                )
                return fully_shard(model, mesh=mesh["dp"])

            expected = {name: p.to_local().clone() for name, p in sharded(ROWS).named_parameters()}
            assert any(isinstance(p.placements[0], _StridedShard) for p in sharded(ROWS).parameters())
            for number, file in enumerate(rows_files):
                on_meta = number != 1
                empty = {
                    name: torch.empty_like(whole, device="meta" if on_meta else "cpu")
                    for name, whole in ROWS.items()
                }
                model = sharded(empty)
                before = dict(model.named_parameters())
                report = load_into(model, file)
                for name, parameter in model.named_parameters():
                    assert isinstance(parameter, DTensor)
                    assert isinstance(parameter, torch.nn.Parameter)
                    assert parameter.placements == before[name].placements
                    assert parameter.shape == ROWS[name].shape
                    assert (parameter is before[name]) != on_meta
                    assert_same_bits(parameter.to_local(), expected[name])
                assert report.bytes_read == report.bytes == sum(t.nbytes for t in expected.values())
            for name, local in expected.items():
                seen[name] += local.flatten().tolist()
    for name, whole in ROWS.items():  # the ranks together hold every element exactly once
        assert sorted(seen[name]) == sorted(whole.flatten().tolist())


LAYOUTS = {
    "Shard(0)": ((4,), [Shard(0)]),
    "Shard(1)": ((4,), [Shard(1)]),
    "replicated": ((4,), [Replicate()]),
    "HSDP": ((2, 2), [Replicate(), Shard(0)]),
    "two dimensions": ((2, 2), [Shard(1), Shard(0)]),
    "one dimension twice": ((2, 2), [Shard(0), Shard(0)]),
    "three mesh dimensions": ((2, 2, 2), [Shard(0), Replicate(), Shard(0)]),
    "fused in two": ((4,), [_StridedShard(0, split_factor=2)]),
    "fused in three, second dimension": ((2, 2), [Replicate(), _StridedShard(1, split_factor=3)]),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_rank_loads_what_distribute_tensor_gives_it(layout, tmp_path):
    mesh_shape, placements = LAYOUTS[layout]
    state = {f"w{n}": values((n, 13 - n // 2), n) for n in range(1, 14)}
    torch.save(state, tmp_path / "m.bin")
    world = torch.Size(mesh_shape).numel()
    for rank in range(world):
        with as_rank(rank, world):
            mesh = init_device_mesh("cpu", mesh_shape)
            expected = {name: select(whole, mesh, placements) for name, whole in state.items()}
            model = module_of({name: torch.zeros_like(one) for name, one in expected.items()})
            load_into(model, tmp_path / "m.bin")
            for name, one in expected.items():
                assert_same_bits(model.get_parameter(name).to_local(), one.to_local())


def test_dtypes_transposes_devices_attributes_and_ties_hold_for_shards(tmp_path):
    state = {"a": values((6, 5)), "b": values((4, 6), 1), "c": values((6, 5), 2)}
    state["tied"] = state["a"]
    torch.save(state, tmp_path / "m.bin")
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            targets = {"a": state["a"], "b": state["b"].T, "c": state["c"], "tied": state["a"]}

            def model(device, mesh=mesh, targets=targets):
                made = module_of(
                    {
                        name: select(torch.zeros_like(t, device=device), mesh, [Shard(0)])
                        for name, t in targets.items()
                    }
                )
                made.a.note = "kept"
                return made

            expected = {n: select(t.contiguous(), mesh, [Shard(0)]).to_local() for n, t in targets.items()}
            new = model("meta")
            new.c.requires_grad_(False)
            report = load_into(new, tmp_path / "m.bin", dtype="bfloat16", transpose={"b": True}, device="cpu")
            assert new.a is new.tied
            assert new.a.note == "kept"
            assert [sorted(group) for group in report.tied] == [["a", "tied"]]
            assert (new.a.requires_grad, new.c.requires_grad) == (True, False)
            for name, one in expected.items():
                assert_same_bits(new.get_parameter(name).to_local(), one.bfloat16())
                assert new.get_parameter(name).dtype == torch.bfloat16
            # In existing memory with another dtype: the same object, so that an optimizer that holds it stays valid.
            old = model("cpu")
            old.a.grad = None
            held = dict(old.named_parameters())
            load_into(old, tmp_path / "m.bin", dtype="float64", transpose={"b": True})
            for name, one in expected.items():
                assert old.get_parameter(name) is held[name]
                assert held[name].dtype == held[name].to_local().dtype == torch.float64
                assert_same_bits(held[name].to_local(), one.double())
            # assign=True takes the file's dtype.
            given = model("cpu").bfloat16()
            load_into(given, tmp_path / "m.bin", assign=True, transpose={"b": True})
            assert_same_bits(given.c.to_local(), expected["c"])
            # The optimizer's usual first step runs on what was loaded.
            optimizer = torch.optim.SGD([new.c.requires_grad_()], lr=0.0)
            new.c.grad = torch.zeros_like(new.c)
            optimizer.step()


def test_ties_on_a_rank_that_holds_no_element_are_those_of_the_other_ranks(tmp_path):
    bias = torch.ones(1, 5)
    torch.save({"a": bias, "b": bias}, tmp_path / "m.bin")
    with as_rank(1, 2):
        mesh = init_device_mesh("cpu", (2,))
        model = module_of({name: select(torch.empty(1, 5, device="meta"), mesh, [Shard(0)]) for name in "ab"})
        report = load_into(model, tmp_path / "m.bin")
        assert model.a is model.b
        assert model.a.to_local().shape == (0, 5)
        assert (report.bytes, report.bytes_read) == (0, 0)


def test_a_rank_outside_a_submesh_reads_nothing(tmp_path):
    from torch.distributed.device_mesh import DeviceMesh

    state = {"inside": values((4, 4)), "everywhere": values((3,), 1)}
    torch.save(state, tmp_path / "m.bin")
    for rank in range(4):
        with as_rank(rank, 4):
            part = DeviceMesh("cpu", [0, 1])
            model = module_of({"everywhere": torch.empty(3, device="meta")})
            local = torch.empty((2, 4) if rank < 2 else (0,), device="meta")
            inside = DTensor.from_local(local, part, [Shard(0)], run_check=False, shape=(4, 4), stride=(4, 1))
            model.inside = torch.nn.Parameter(inside)
            report = load_into(model, tmp_path / "m.bin")
            assert not report.missing
            assert report.on_meta == []
            assert report.bytes_read == (32 if rank < 2 else 0) + 12
            assert_same_bits(model.everywhere.detach(), state["everywhere"])
            if rank < 2:
                assert_same_bits(model.inside.to_local(), state["inside"][2 * rank : 2 * rank + 2])
            else:
                assert model.inside.to_local().numel() == 0


def test_what_does_not_fit_is_the_same_error_on_every_rank(tmp_path):
    torch.save({"a": values((3, 2)), "b": values((5, 2)), "extra": values((1,))}, tmp_path / "m.bin")
    texts = set()
    for rank in range(4):
        with as_rank(rank, 4):
            mesh = init_device_mesh("cpu", (4,))
            shapes = {"a": (3, 2), "b": (4, 2), "c": (7,)}
            model = module_of({n: select(torch.ones(shape), mesh, [Shard(0)]) for n, shape in shapes.items()})
            with pytest.raises(rustload.ModelMismatchError) as caught:
                load_into(model, tmp_path / "m.bin")
            texts.add("\n".join([str(caught.value), *caught.value.__notes__]))
            assert (caught.value.missing, caught.value.unexpected) == (["c"], ["extra"])
            assert all((p.to_local() == 1).all() for p in model.parameters())
    assert len(texts) == 1


def test_tied_names_with_different_values_are_found_where_they_differ(tmp_path):
    one = values((4, 2))
    other = one.clone()
    other[3] += 1
    torch.save({"a": one, "b": other}, tmp_path / "m.bin")
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            model = module_of({"a": select(torch.zeros(4, 2), mesh, [Shard(0)])})
            model.b = model.a
            if rank == 0:
                load_into(model, tmp_path / "m.bin")
            else:
                with pytest.raises(ValueError, match="differ in the file and are tied in the model"):
                    load_into(model, tmp_path / "m.bin")


def test_a_partial_placement_and_a_wrong_local_shape_are_errors(tmp_path):
    torch.save({"w": values((4, 2))}, tmp_path / "m.bin")
    with as_rank(0, 2):
        mesh = init_device_mesh("cpu", (2,))
        for placement, rows in ((Partial(), 4), (Shard(0), 3)):
            local = DTensor.from_local(
                torch.ones(rows, 2), mesh, [placement], run_check=False, shape=(4, 2), stride=(2, 1)
            )
            model = module_of({"w": local})
            with pytest.raises(rustload.UnsupportedError) as caught:
                load_into(model, tmp_path / "m.bin")
            assert caught.value.code == "DTensorPlacement"
            assert (model.w.to_local() == 1).all()


def test_several_runs_in_two_dimensions_are_an_error(tmp_path):
    torch.save({"w": values((8, 8))}, tmp_path / "m.bin")
    with as_rank(0, 4):
        mesh = init_device_mesh("cpu", (2, 2))
        placements = [_StridedShard(0, split_factor=2), _StridedShard(1, split_factor=2)]
        local = DTensor.from_local(torch.ones(4, 4), mesh, placements, run_check=False)
        with pytest.raises(rustload.UnsupportedError, match=r"several runs in dimensions \[0, 1\]"):
            load_into(module_of({"w": local}), tmp_path / "m.bin")


def test_a_models_own_loading_code_runs_before_its_shards_are_cut(tmp_path):
    class Renamed(torch.nn.Module):
        def _load_from_state_dict(self, state_dict, prefix, *rest):
            state_dict[prefix + "w"] = state_dict.pop(prefix + "kernel").t()
            state_dict[prefix + "v"] = state_dict[prefix + "v"] * 2
            super()._load_from_state_dict(state_dict, prefix, *rest)

    state = {"kernel": values((4, 6)), "v": values((6, 2), 1)}
    torch.save(state, tmp_path / "m.bin")
    for rank in range(2):
        with as_rank(rank, 2):
            mesh = init_device_mesh("cpu", (2,))
            strided = [_StridedShard(0, split_factor=3)]
            wanted = {"w": state["kernel"].T.contiguous(), "v": state["v"] * 2}
            model = Renamed()
            for name, t in wanted.items():
                meta = select(torch.empty_like(t, device="meta"), mesh, strided)
                model.register_parameter(name, torch.nn.Parameter(meta))
            load_into(model, tmp_path / "m.bin")
            for name, t in wanted.items():
                assert_same_bits(model.get_parameter(name).to_local(), select(t, mesh, strided).to_local())


@pytest.mark.parametrize("world", [1, 2, 4, 8])
@pytest.mark.parametrize("legacy", [False, True])
def test_the_source_sees_only_the_bytes_of_the_ranks_own_rows(world, legacy):
    state = {f"w{n}": values((512, 1024), n) for n in range(4)}
    data = saved(state, _use_new_zipfile_serialization=not legacy)
    whole = sum(one.nbytes for one in state.values())
    total = 0
    for rank in range(world):
        with as_rank(rank, world):
            mesh = init_device_mesh("cpu", (world,))
            meta = {n: select(torch.empty_like(t, device="meta"), mesh, [Shard(0)]) for n, t in state.items()}
            model = module_of(meta)
            # An archive has a header before each member, which is read as a block of 64 KiB.
            headers = 0 if legacy else len(state) << 16
            # Where a busy machine answers late, as a distant one does, gaps are read through: then again.
            for _ in range(3):
                source = Ranges(data)
                opened = rustload.open(source)
                of_metadata = source.nbytes
                report = load_into(model, opened)
                assert report.bytes_read == whole // world
                if source.nbytes - of_metadata <= 1.05 * whole / world + headers:
                    break
            assert source.nbytes - of_metadata <= 1.05 * whole / world + headers
            total += source.nbytes - of_metadata
    assert total <= 1.05 * whole + world * headers


def test_load_state_dict_reads_only_the_ranks_part_of_a_lazy_state_dict():
    state = {f"w{n}": values((512, 512), n) for n in range(4)}
    data = saved(state, _use_new_zipfile_serialization=False)
    for rank in range(4):
        with as_rank(rank, 4):
            mesh = init_device_mesh("cpu", (4,))
            for placement in (Shard(0), _StridedShard(0, split_factor=2)):
                expected = {name: select(one, mesh, [placement]) for name, one in state.items()}
                model = module_of({name: torch.zeros_like(one) for name, one in expected.items()})
                before = dict(model.named_parameters())
                source = Ranges(data)
                lazy = rustload.torch.state_dict(source)
                of_metadata = source.nbytes
                model.load_state_dict(lazy)
                assert source.nbytes - of_metadata <= 1.1 * sum(one.nbytes for one in state.values()) / 4
                for name, one in expected.items():
                    assert model.get_parameter(name) is before[name]
                    assert_same_bits(model.get_parameter(name).to_local(), one.to_local())


def test_runs_of_every_rank_partition_the_tensor():
    strided = _StridedShard(0, split_factor=4)
    for size in range(1, 41):
        for mesh, placements in (
            ((2, 3, 2), [Shard(0), Shard(0), Shard(0)]),
            ((3, 2, 2), [strided, Shard(0), Shard(0)]),
            ((3, 2, 2), [_StridedShard(0, split_factor=4), _StridedShard(0, split_factor=2), Shard(0)]),
            ((3,), [_StridedShard(0, split_factor=5)]),
        ):
            found = []
            for index in range(torch.Size(mesh).numel()):
                coordinate = [int(i) for i in torch.unravel_index(torch.tensor(index), mesh)]
                runs = cut((size,), mesh, coordinate, placements)
                held = [i for start, stop in runs[0] for i in range(start, stop)]
                assert runs_shape(runs) == (len(held),)
                found += held
            assert sorted(found) == list(range(size))


def test_a_model_whose_process_group_has_ended_is_loaded_and_share_node_needs_none(tmp_path):
    """Which part a rank holds is in the mesh, and nothing is sent."""
    state = {"w": values((5, 3))}
    torch.save(state, tmp_path / "m.bin")
    with as_rank(1, 2):
        mesh = init_device_mesh("cpu", (2,))
        model = module_of({"w": select(torch.zeros(5, 3), mesh, [Shard(0)])})
    assert not dist.is_initialized()
    for options in ({}, {"share": "node"}):
        with torch.no_grad():
            model.w.to_local().zero_()
        report = load_into(model, tmp_path / "m.bin", **options)
        assert report.bytes_read == 2 * 3 * 4
        assert_same_bits(model.w.to_local().detach(), state["w"][3:])


def test_a_sharded_model_loads_without_a_process_group(save):
    whole = {"rows": values((8, 3)), "columns": values((3, 8), 1), "everywhere": values((5,), 2)}
    placements = {"rows": [Shard(0)], "columns": [Shard(1)], "everywhere": [Replicate()]}
    path = save(whole)
    for rank in range(2):
        for on_meta in (False, True):
            with as_rank(rank, 2):
                mesh = init_device_mesh("cpu", (2,))
                empty = {
                    name: torch.empty_like(tensor, device="meta" if on_meta else "cpu")
                    for name, tensor in whole.items()
                }
                model = module_of({name: select(empty[name], mesh, placements[name]) for name in whole})
                wanted = {
                    name: select(whole[name], mesh, placements[name]).to_local().clone() for name in whole
                }
            assert not dist.is_initialized()
            report = load_into(model, path, share="node")
            assert not report.missing
            for name, tensor in model.named_parameters():
                assert torch.equal(tensor.to_local(), wanted[name]), name


def test_a_mesh_that_never_had_a_process_group_is_enough(save):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache

    whole = values((7, 3))
    path = save({"w": whole})
    for rank, rows in ((0, slice(0, 4)), (1, slice(4, 7))):
        _clear_sharding_prop_cache()  # as in `as_rank`
        mesh = DeviceMesh("cpu", [0, 1], _init_backend=False, _rank=rank)
        meta = TensorMeta(whole.shape, whole.stride(), whole.dtype)
        local = torch.zeros(whole[rows].shape)
        model = module_of({"w": DTensor(local, DTensorSpec(mesh, (Shard(0),), meta), requires_grad=False)})
        assert not dist.is_initialized()
        load_into(model, path)
        assert torch.equal(model.w.to_local(), whole[rows])
    # Without the rank, torch itself asks for a group.
    with pytest.raises((ValueError, RuntimeError), match="process group"):
        DeviceMesh("cpu", [0, 1], _init_backend=False)
