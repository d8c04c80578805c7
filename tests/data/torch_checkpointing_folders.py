"""Writes folders as torch_checkpointing 0.1 does, without it: `metadata.pkl`, and a file for each item and rank.

The boxes of ranks are those of `torch.distributed.tensor`, and DTensors are real ones on a mesh without other processes.
"""

import contextlib
import json
import math
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

__all__ = [
    "Placed",
    "box",
    "described",
    "dtensor_group",
    "layout",
    "metadata",
    "process",
    "stated_box",
    "write",
]


class Placed(NamedTuple):
    """A tensor and how it is distributed over ranks.

    Attributes:
        whole: All of it.
        mesh: The shape of the mesh, of ranks 0, 1, ...
        placements: One for each dimension of the mesh.
    """

    whole: torch.Tensor
    mesh: tuple[int, ...]
    placements: tuple[Any, ...]


@contextlib.contextmanager
def process(rank: int, world: int) -> Iterator[None]:
    """As if this was one of several processes, of which the others do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def box(placed: Placed, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The size and the offset of what a rank has, as torch computes them."""
    position, coordinate = rank, []
    for size in reversed(placed.mesh):
        coordinate.insert(0, position % size)
        position //= size
    return _compute_local_shape_and_global_offset(
        placed.whole.shape, placed.mesh, coordinate, list(placed.placements)
    )


def part(placed: Placed, rank: int) -> torch.Tensor:
    sizes, offsets = box(placed, rank)
    return placed.whole[tuple(slice(at, at + size) for at, size in zip(offsets, sizes, strict=True))].clone()


def _placement(placement: Any) -> dict[str, Any]:
    if isinstance(placement, _StridedShard):
        return {"type": "StridedShard", "dim": placement.dim, "split_factor": placement.split_factor}
    if isinstance(placement, Shard):
        return {"type": "Shard", "dim": placement.dim}
    assert isinstance(placement, Replicate)
    return {"type": "Replicate"}


def dtensor_group(placed: Placed) -> dict[str, Any]:
    """What the metadata states of a DTensor."""
    ranks = tuple(range(math.prod(placed.mesh)))
    mesh = {
        "device_type": "cpu",
        "mesh_shape": placed.mesh,
        "mesh_data": ranks,
        "mesh_dim_names": None,
    }
    data = {
        "global_shape": list(placed.whole.shape),
        "dtype": str(placed.whole.dtype),
        "stride": list(placed.whole.stride()),
        "mesh_spec": mesh,
        "placements": [_placement(placement) for placement in placed.placements],
    }
    return {"sharding_metadata": {"type": "DTensorShardingMetadata", "data": data}, "ranks": ranks}


def stated_box(
    whole: torch.Tensor, rank: int, *boxes: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
) -> dict[str, Any]:
    """What the metadata states of a tensor that says itself which boxes it has.

    Args:
        boxes: Of each the offset in the whole tensor, that in the tensor of the rank, and the size.
    """
    data: dict[str, Any] = {"global_shape": list(whole.shape), "dtype": str(whole.dtype)}
    for key, at in {"global_offsets": 0, "local_offsets": 1, "local_sizes": 2}.items():
        data[key] = [list(one[at]) for one in boxes]
    return {"sharding_metadata": {"type": "default_tensor_v1", "data": data}, "ranks": (rank,)}


def layout(path: str, kind: str = "SafetensorsSerialization", **more: Any) -> dict[str, Any]:
    return {"file_path": path, "serialization_format": {"type": kind, **more}}


def described(value: Any, path: tuple[Any, ...] = ()) -> dict[tuple[Any, ...], Placed]:
    """The distributed tensors of a tree by path."""
    if isinstance(value, Placed):
        return {path: value}
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {name: one for key, inner in pairs for name, one in described(inner, (*path, key)).items()}


def metadata(
    items: dict[str, Any],
    world: int,
    layouts: dict[str, dict[int, dict[str, Any]]] | None = None,
    version: str = "2.0",
) -> dict[str, Any]:
    """The metadata of items."""
    layouts = layouts or {}
    key = lambda path: json.dumps(list(path), separators=(",", ":"))  # noqa: E731
    groups = {
        item: {path: [dtensor_group(one)] for path, one in described(value).items()}
        for item, value in items.items()
    }
    by_rank = lambda item: {rank: layouts.get(item, {}).get(rank) for rank in range(world)}  # noqa: E731
    if version == "1.0":
        return {
            "metadata": {
                key((item, *path)): one for item, inner in groups.items() for path, one in inner.items()
            },
            "world_size": world,
            "rank_to_layout_info_mappings": {
                str(rank): {item: by_rank(item)[rank] for item in items} for rank in range(world)
            },
        }
    stated = {
        item: {
            "nested_path_to_metadata": {key(path): one for path, one in inner.items()},
            "rank_to_layout_info": by_rank(item),
        }
        for item, inner in groups.items()
    }
    return {"metadata": stated, "world_size": world, "version": version}


def _of_rank(value: Any, rank: int, dtensors: bool) -> Any:
    """What a rank saves of a tree."""
    if isinstance(value, dict):
        return {key: _of_rank(one, rank, dtensors) for key, one in value.items()}
    if isinstance(value, list):
        return [_of_rank(one, rank, dtensors) for one in value]
    if not isinstance(value, Placed):
        return value
    local = part(value, rank)
    if not dtensors:
        return local
    mesh = DeviceMesh("cpu", torch.arange(math.prod(value.mesh)).reshape(value.mesh), _init_backend=False)
    shape, stride = value.whole.shape, value.whole.stride()
    return DTensor.from_local(local, mesh, value.placements, run_check=False, shape=shape, stride=stride)


def _flat(value: Any, path: tuple[str, ...] = ()) -> dict[str, torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return {".".join(path): value.contiguous()}
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: one for key, inner in pairs for name, one in _flat(inner, (*path, str(key))).items()}


def write(
    folder: Path,
    items: dict[str, Any],
    world: int,
    *,
    layouts: dict[str, dict[int, dict[str, Any]]] | None = None,
    others: dict[str, Any] | None = None,
    version: str = "2.0",
    stated: object = None,
) -> Path:
    """Writes a folder of `items` with metadata and of `others` without.

    Args:
        layouts: The layouts by item and rank, for the items that have one.
        stated: What `metadata.pkl` holds, in place of what is true.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(world):
        with process(rank, world):
            for item, value in (items | (others or {})).items():
                place = (layouts or {}).get(item, {}).get(rank) or layout(
                    f"{item}_{rank}.pt", "TorchSerialization"
                )
                path = folder / place["file_path"]
                path.parent.mkdir(parents=True, exist_ok=True)
                if place["serialization_format"]["type"] == "SafetensorsSerialization":
                    save_file(_flat(_of_rank(value, rank, dtensors=False)), path)
                else:
                    torch.save(_of_rank(value, rank, dtensors=True), path)
    pickled = metadata(items, world, layouts, version) if stated is None else stated
    (folder / "metadata.pkl").write_bytes(pickle.dumps(pickled, protocol=4))
    return folder
