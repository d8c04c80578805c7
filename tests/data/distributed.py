"""Saves distributed checkpoints with torch, on one process and on two, for the tests of `torch-dcp`.

`python distributed.py FOLDER`: writes `FOLDER/one`, saved by this process, and `FOLDER/two`, saved by two processes, and for each
what `dcp.load` reads of it (`one.pt`, `two.pt`).
"""

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

warnings.simplefilter("ignore")


def plain_state() -> dict:
    """Tensors and values of every kind that one process saves."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 5)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": 7,
        "nested": {
            "list": [torch.arange(6).reshape(2, 3), 3, {"x": torch.ones(2)}],
            "text": "a",
            "none": None,
        },
        "transposed": torch.arange(12.0).reshape(3, 4).t(),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "fp8": torch.tensor([1.0, -2.0, 0.5]).to(torch.float8_e4m3fn),
        "bfloat16": torch.arange(8).bfloat16().reshape(2, 4),
        "bools": torch.tensor([True, False, True]),
        "complex": torch.tensor([1 + 2j, 3 - 4j]),
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "many": {"tuple": (1, 2.5, "x"), "set": {1, 2}, "bytes": b"abc"},
    }


def sharded_state() -> dict:
    """Tensors in several chunks: rows, columns, both, unevenly, and copies."""
    row, grid = init_device_mesh("cpu", (2,)), init_device_mesh("cpu", (1, 2))

    def numbers(*shape: int) -> torch.Tensor:
        return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)

    return {
        "rows": distribute_tensor(numbers(5, 3), row, [Shard(0)]),
        "columns": distribute_tensor(numbers(4, 7).to(torch.float16), row, [Shard(1)]),
        "middle": distribute_tensor(numbers(3, 5, 4), row, [Shard(1)]),
        "grid": distribute_tensor(numbers(6, 5), grid, [Shard(0), Shard(1)]),
        "copied": distribute_tensor(numbers(3), row, [Replicate()]),
        "short": distribute_tensor(numbers(1, 4), row, [Shard(0)]),
        # gloo cannot send this dtype.
        "fp8": DTensor.from_local(
            numbers(4, 2).to(torch.float8_e5m2).chunk(2)[dist.get_rank()], row, [Shard(0)]
        ),
        "large": distribute_tensor(numbers(1025, 513), row, [Shard(1)]),
        "plain": numbers(2, 2),
        "state": {"exp_avg": distribute_tensor(numbers(7), row, [Shard(0)]), "step": torch.tensor(4.0)},
        "epoch": 3,
    }


def loaded(folder: Path) -> dict:
    """Everything in the folder, by torch's own loader."""
    state: dict = {}
    _load_state_dict(
        state, storage_reader=dcp.FileSystemReader(folder), planner=_EmptyStateDictLoadPlanner(), no_dist=True
    )
    return state


def run(rank: int, folder: str, store: str) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"file://{store}")
    dcp.save(sharded_state(), checkpoint_id=str(Path(folder) / "two"))
    dist.destroy_process_group()


if __name__ == "__main__":
    out = Path(sys.argv[1])
    dcp.save(plain_state(), checkpoint_id=out / "one", no_dist=True)
    with tempfile.TemporaryDirectory() as store:
        torch.multiprocessing.spawn(run, (str(out), str(Path(store) / "store")), nprocs=2)
    for name in ("one", "two"):
        torch.save(loaded(out / name), out / f"{name}.pt")
