"""What several gloo processes save of DTensors and ShardedTensors, in every form that torch has.

`python rank_files.py FOLDER COUNT` writes, with whole tensors beside the parts:

- `rank{n}.pt`, `whole.pt`: the state of FSDP2 and of tensor parallelism, by one `torch.save` for each process
- `st{n}.pt`, `st-whole.pt`: a ShardedTensor
- `dcp`, `dcp.pt`: the same state by torch.distributed.checkpoint, and what `dcp.load` reads of it
- `hf`, `hf/sharded`, `hf.pt`: its tensors by `HuggingFaceStorageWriter`, consolidated and not, and what its reader reads
"""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module


def gathered(value: object) -> object:
    """A tree with whole tensors."""
    if isinstance(value, dict):
        return {key: gathered(one) for key, one in value.items()}
    if isinstance(value, list):
        return [gathered(one) for one in value]
    if isinstance(value, DTensor) and value.dtype == torch.float8_e4m3fn:
        torch.manual_seed(0)
        return fp8(torch.randn(5, 3))
    return value.full_tensor() if isinstance(value, DTensor) else value


def leaves(value: object, path: tuple = ()) -> dict[str, object]:
    """The values of a tree by dotted name."""
    if isinstance(value, dict):
        return {
            name: one for key, inner in value.items() for name, one in leaves(inner, (*path, key)).items()
        }
    return {".".join(map(str, path)): value}


def loaded(reader: dcp.StorageReader) -> dict:
    """Everything in a folder, by torch's own loader."""
    state: dict = {}
    _load_state_dict(state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def fp8(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float8_e4m3fn)


def state(rank: int, count: int) -> dict[str, object]:
    """What each process saves, in its own part: tensors in many placements, and models with optimizers."""
    mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("dp",))
    grid = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    w, cube = torch.randn(5, 3), torch.randn(4, 6, 5)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 6)).sum().backward()
    optimizer.step()
    torch.manual_seed(2)
    both = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 4))
    parallelize_module(both, grid["tp"], {"0": ColwiseParallel()})
    fully_shard(both, mesh=grid["dp"])
    return {
        "rows": distribute_tensor(w, mesh, [Shard(0)]),
        "columns": distribute_tensor(w, mesh, [Shard(1)]),
        "copied": distribute_tensor(w, mesh, [Replicate()]),
        "parameter": torch.nn.Parameter(distribute_tensor(w, mesh, [Shard(0)])),
        "grid": distribute_tensor(cube, grid, [Shard(0), Shard(1)]),
        "same": distribute_tensor(cube, grid, [Shard(1), Shard(1)]),
        "replicated": distribute_tensor(cube, grid, [Replicate(), Shard(2)]),
        "half": distribute_tensor(w.bfloat16(), mesh, [Shard(0)]),
        "bytes": distribute_tensor(torch.arange(15, dtype=torch.uint8).view(5, 3), mesh, [Shard(0)]),
        "scalar": distribute_tensor(torch.tensor(3.5), mesh, [Replicate()]),
        "empty": distribute_tensor(torch.zeros(0, 3), mesh, [Shard(0)]),
        # gloo cannot send this dtype.
        "fp8": DTensor.from_local(
            fp8(w)[2 * rank : 2 * rank + 2].clone(), mesh, [Shard(0)], shape=w.shape, stride=w.stride()
        ),
        "plain": torch.arange(4.0),
        "nested": {"list": [distribute_tensor(w, mesh, [Shard(0)]), 3, {"x": torch.ones(2)}], "text": "a"},
        "step": 7,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "both": both.state_dict(),
    }


def work(rank: int, folder: Path, count: int) -> None:
    """One process."""
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    saved = state(rank, count)
    torch.save(saved, folder / f"rank{rank}.pt")
    whole = gathered(saved)
    dcp.save(saved, checkpoint_id=folder / "dcp")
    tensors = {
        name: one
        for name, one in leaves(saved).items()
        if isinstance(one, torch.Tensor) and one.is_floating_point()
    }
    writer = HuggingFaceStorageWriter(str(folder / "hf"), save_distributed=True, enable_consolidation=True)
    dcp.save(tensors, storage_writer=writer)
    spec = ChunkShardingSpec(dim=0, placements=[f"rank:{one}/cpu" for one in range(count)])
    torch.manual_seed(3 + rank)
    made = sharded_tensor.rand(spec, 5, 3)
    torch.save({"st": made, "n": 1}, folder / f"st{rank}.pt")
    shards: list[torch.Tensor | None] = [None] * count
    local = made.local_shards()
    dist.all_gather_object(shards, local[0].tensor if local else torch.zeros(0, 3))
    if rank == 0:
        torch.save(loaded(dcp.FileSystemReader(folder / "dcp")), folder / "dcp.pt")
        torch.save(loaded(HuggingFaceStorageReader(str(folder / "hf" / "sharded"))), folder / "hf.pt")
        torch.save(whole, folder / "whole.pt")
        torch.save(torch.cat(shards), folder / "st-whole.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    # Forks have the modules that are imported here.
    mp.start_processes(
        work, (Path(sys.argv[1]), int(sys.argv[2])), nprocs=int(sys.argv[2]), start_method="fork"
    )
