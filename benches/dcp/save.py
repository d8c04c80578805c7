"""Saves a distributed checkpoint from several gloo processes, each of which imports this module."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = 4096
LAYER_BYTES = 4 * WIDTH * WIDTH
RANKS = 2


def save(folder: Path, layers: int) -> None:
    """Saves the checkpoint from several processes."""
    from torch.multiprocessing.spawn import spawn

    spawn(save_rank, (str(folder), layers), nprocs=RANKS)  # type: ignore[no-untyped-call]


def save_rank(rank: int, folder: str, layers: int) -> None:
    """One of the processes that save."""
    import torch
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict_saver import save as save_state
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    dist.init_process_group("gloo", rank=rank, world_size=RANKS, init_method=f"file://{folder}/store")
    mesh = init_device_mesh("cpu", (RANKS,))
    rows = torch.arange(WIDTH * WIDTH // RANKS, dtype=torch.float32).view(-1, WIDTH)
    state = {
        f"layers.{at}.weight": DTensor.from_local(rows + at + rank, mesh, [Shard(0)], run_check=False)
        for at in range(layers)
    }
    save_state(state, checkpoint_id=f"{folder}/dcp")
    dist.destroy_process_group()
