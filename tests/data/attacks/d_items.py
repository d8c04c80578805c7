"""D: folders of torch_checkpointing whose metadata lies about tensors and files, or names what is imported."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.d_distributed import add
from attacks.parts import SIX_BY_TWO, row
from attacks.pickles import SYSTEM
from attacks.registry import Opens, Refused
from attacks.s_safetensors import st

GROUPS = {
    "sharding_metadata": {
        "type": "DTensorShardingMetadata",
        "data": {
            "global_shape": [2, 3],
            "dtype": "torch.float32",
            "stride": [3, 1],
            "mesh_spec": {
                "device_type": "cpu",
                "mesh_shape": (2,),
                "mesh_data": (0, 1),
                "mesh_dim_names": None,
            },
            "placements": [{"type": "Shard", "dim": 0}],
        },
    },
    "ranks": (0, 1),
}


def layouts(*paths: str, form: dict[str, Any] | None = None) -> dict[int, Any]:
    form = form or {"type": "SafetensorsSerialization"}
    return {rank: {"file_path": path, "serialization_format": form} for rank, path in enumerate(paths)}


TRUE = {
    "metadata": {
        "model": {
            "nested_path_to_metadata": {'["w"]': [GROUPS]},
            "rank_to_layout_info": layouts("model_0.safetensors", "model_1.safetensors"),
        }
    },
    "world_size": 2,
    "version": "2.0",
}


def folder(
    change: Callable[[dict[str, Any]], Any] | None = None, body: bytes | None = None
) -> Callable[[Path], Path]:
    """A function that writes a folder of two ranks."""

    def write(place: Path) -> Path:
        stated = copy.deepcopy(TRUE)
        if change is not None:
            change(stated)
        for rank in range(2):
            tensor = {"w": {"dtype": "F32", "shape": [1, 3], "data_offsets": [0, 12]}}
            (place / f"model_{rank}.safetensors").write_bytes(st(tensor, row(rank)["0"])())
        (place / "metadata.pkl").write_bytes(pickle.dumps(stated, protocol=4) if body is None else body)
        return place

    return write


def group(stated: dict[str, Any]) -> dict[str, Any]:
    return stated["metadata"]["model"]["nested_path_to_metadata"]['["w"]'][0]


def data(stated: dict[str, Any], **more: Any) -> None:
    group(stated)["sharding_metadata"]["data"].update(more)


def placed_at(stated: dict[str, Any], path: str) -> None:
    stated["metadata"]["model"]["rank_to_layout_info"] = layouts("model_0.safetensors", path)


def joined(ckpt) -> None:
    assert ckpt["model.w"].materialize(framework="dlpack").tobytes() == SIX_BY_TWO


form, grid, lies = (Refused(f"Dcp{kind}") for kind in ("Metadata", "Grid", "Chunk"))

add(
    "D30",
    "`os.system` in the metadata of torch_checkpointing",
    {"": folder(body=pickle.dumps(TRUE, protocol=3)[:-1] + SYSTEM + b"0.")},
    form,
    "DisallowedGlobal",
    runs=("posix.system",),
)


def boxes(stated: dict[str, Any], count: int) -> None:
    """Every rank has very many boxes in one shared list."""
    shared = [[0, 0]] * count
    group(stated)["sharding_metadata"]["type"] = "default_tensor_v1"
    data(stated, global_offsets=shared, local_offsets=shared, local_sizes=shared)
    ranks = [group(stated)] * count
    stated["metadata"]["model"]["nested_path_to_metadata"]['["w"]'] = ranks


add(
    "D31",
    "parts that the metadata of torch_checkpointing leaves out, doubles or puts elsewhere",
    {
        "hole": folder(lambda stated: group(stated).update(ranks=(0,))),
        "none": folder(lambda stated: group(stated).update(ranks=())),
        "shape": folder(lambda stated: data(stated, global_shape=[2**62, 3])),
        "dtype": folder(lambda stated: data(stated, dtype="torch.int32")),
        "mesh": folder(
            lambda stated: data(stated, mesh_spec={"mesh_shape": (2**63 - 1, 4), "mesh_data": (0, 1)})
        ),
        "dim": folder(lambda stated: data(stated, placements=[{"type": "Shard", "dim": 2}])),
        "rank": folder(lambda stated: group(stated).update(ranks=(0, 2**62))),
        "many": folder(lambda stated: boxes(stated, 3_000)),
        "world": folder(lambda stated: stated.update(world_size=2**62)),
        "path": folder(
            lambda stated: stated["metadata"]["model"]["nested_path_to_metadata"].update({"[" * 100_000: []})
        ),
    },
    {
        "hole": grid,
        "none": grid,
        "shape": lies,
        "dtype": lies,
        "mesh": form,
        "dim": form,
        "rank": form,
        "many": form,
        "world": form,
        "path": form,
    },
    "",
)
add(
    "D32",
    "a layout of torch_checkpointing that leaves the folder, or names the metadata itself",
    {
        "up": folder(lambda stated: placed_at(stated, "../model_1.safetensors")),
        "absolute": folder(lambda stated: placed_at(stated, "/etc/passwd")),
        "inside": folder(lambda stated: placed_at(stated, "a/../model_1.safetensors")),
        "null": folder(lambda stated: placed_at(stated, "a\0")),
        "itself": folder(lambda stated: placed_at(stated, "metadata.pkl")),
        "twice": folder(lambda stated: placed_at(stated, "model_0.safetensors")),
        "missing": folder(lambda stated: placed_at(stated, "model_9.safetensors")),
    },
    {
        "up": Refused("DcpPath"),
        "absolute": Refused("DcpPath"),
        "inside": Refused("DcpPath"),
        "null": Refused("DcpPath"),
        "itself": lies,
        "twice": form,
        "missing": Refused("ShardMissing"),
    },
    "",
)


def classes(stated: dict[str, Any]) -> None:
    """A layout whose class a reader imports; the item has no tensors."""
    form = {"type": "JsonSerialization", "cls": "os.system"}
    item = {"nested_path_to_metadata": {}, "rank_to_layout_info": layouts("a.json", "b.json", form=form)}
    stated["metadata"]["config"] = item


add(
    "D33",
    "a class in a layout of torch_checkpointing, whose module its reader imports",
    {"": folder(classes)},
    Opens("opens, joined", joined),
    "Import",
    verdict="would execute",
)
