"""A writer of what one process of a distributed program saves: parts of DTensors and ShardedTensors, for several torch versions."""

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from attacks.pickles import (
    FALSE,
    NONE,
    call,
    contiguous,
    integer,
    ints,
    listed,
    made,
    many,
    name,
    named,
    pickle,
    storage,
    tensor,
    text,
)
from attacks.streams import safetensors
from attacks.zips import Zip

TENSOR = "torch.distributed.tensor"
OLD_TENSOR = "torch.distributed._tensor"
"""Where torch before 2.5 had DTensor."""
SHARDED = "torch.distributed._shard"

SIX_BY_TWO = struct.pack("<6f", *range(6))


def local(
    shape: Sequence[int], key: str = "0", strides: tuple[int, ...] | None = None, kind: str = "Float"
) -> bytes:
    """A part: the tensor of storage `key`."""
    numel = 1
    for size in shape:
        numel *= size
    return tensor(tuple(shape), strides, on=storage(f"torch.{kind}Storage", key=key, numel=numel))


def wrapper(cls: str, shape: Sequence[int], state: bytes, dtype: str = "float32") -> bytes:
    """`_rebuild_from_type_v2(_rebuild_wrapper_subclass, ...)`: how `Tensor.__reduce_ex__` writes a wrapper."""
    args = many(
        name(cls),
        name(f"torch.{dtype}"),
        ints(*shape),
        ints(*contiguous(tuple(shape))),
        integer(0),
        call("torch.serialization._get_layout", text("torch.strided")),
        call("torch.device", text("cpu")),
        FALSE,
    )
    return call(
        "torch._tensor._rebuild_from_type_v2",
        name("torch._utils._rebuild_wrapper_subclass"),
        name(cls),
        args,
        state,
    )


def shard(dim: int, module: str = f"{TENSOR}.placement_types") -> bytes:
    return made(f"{module}.Shard", state=named({"dim": integer(dim)}))


def mesh_213(sizes: Sequence[int], coordinate: Sequence[int]) -> bytes:
    """The mesh of torch 2.12 and later: a layout of axes."""
    axes = [
        made(
            "torch.distributed._mesh_layout._FlatLayout",
            state=named({"shape": ints(size), "stride": ints(1)}),
        )
        for size in sizes
    ]
    layout = made("torch.distributed._mesh_layout._MeshLayout", state=named({"axes": many(*axes)}))
    fields = {"_device_type": text("cpu"), "_layout": layout, "_coordinate_on_dim": ints(*coordinate)}
    return made("torch.distributed.device_mesh.DeviceMesh", state=named(fields))


def mesh_29(sizes: Sequence[int], coordinate: Sequence[int]) -> bytes:
    """The mesh of torch 2.9: a layout with a shape, of which a dimension may consist of several."""
    state = named(
        {"shape": ints(*sizes[:-1]).removesuffix(b"t") + ints(sizes[-1], 1) + b"t", "stride": ints(1)}
    )
    layout = made("torch.distributed._mesh_layout._MeshLayout", state=state)
    fields = {
        "_device_type": text("cpu"),
        "_layout": layout,
        "_coordinate_on_dim": listed(*map(integer, coordinate)),
    }
    return made("torch.distributed.device_mesh.DeviceMesh", state=named(fields))


def mesh_24(sizes: Sequence[int], coordinate: Sequence[int]) -> bytes:
    """The mesh of torch 2.1 to 2.8: a tensor of ranks, in storage `9`."""
    ranks = local(sizes, "9", kind="Int")
    fields = {
        "device_type": text("cpu"),
        "mesh": ranks,
        "mesh_dim_names": NONE,
        "_coordinate_on_dim": listed(*map(integer, coordinate)),
        "_dim_group_infos": listed(many(text(""), listed(integer(0), integer(1)))),
    }
    return made("torch.distributed.device_mesh.DeviceMesh", state=named(fields))


def dtensor(
    part: bytes,
    shape: Sequence[int] = (2, 3),
    *,
    mesh: bytes | None = None,
    rank: int = 0,
    placements: Sequence[bytes] | None = None,
    cls: str = f"{TENSOR}.DTensor",
    spec: str = f"{TENSOR}._dtensor_spec.DTensorSpec",
    dtype: str = "float32",
    more: dict[str, bytes] | None = None,
) -> bytes:
    """A DTensor, by default of rows on a mesh of two processes."""
    given = (shard(0),) if placements is None else placements
    fields = {"mesh": mesh or mesh_213((2,), (rank,)), "placements": many(*given), **(more or {})}
    slots = {"_local_tensor": part, "_spec": made(spec, state=named(fields))}
    return wrapper(cls, shape, many(NONE, named(slots)), dtype)


def sharded(
    part: bytes,
    offsets: Sequence[int],
    sizes: Sequence[int],
    shape: Sequence[int] = (2, 3),
    *,
    slots: bool = True,
    count: int = 1,
) -> bytes:
    """A ShardedTensor of one local shard, or of that `count` times; `slots` is whether its classes have slots, as in torch from 2.0 on."""

    def state(fields: dict[str, bytes]) -> bytes:
        return many(NONE, named(fields)) if slots else named(fields)

    where = {
        "shard_offsets": listed(*map(integer, offsets)),
        "shard_sizes": listed(*map(integer, sizes)),
        "placement": NONE,
    }
    metadata = made(f"{SHARDED}.metadata.ShardMetadata", state=state(where))
    one = made(f"{SHARDED}.sharded_tensor.shard.Shard", state=state({"tensor": part, "metadata": metadata}))
    return wrapper(
        f"{SHARDED}.sharded_tensor.api.ShardedTensor",
        shape,
        many(listed(*[one] * count), NONE, NONE, NONE, FALSE),
    )


def rank_file(values: dict[str, bytes], storages: dict[str, bytes] | None = None) -> bytes:
    """What `torch.save` writes for a state dict; storage `0` has 0 to 5 unless others are given."""
    return Zip(pickle(named(values)), storages or {"0": SIX_BY_TWO}).bytes()


def row(number: int) -> dict[str, bytes]:
    """The storages of a file with one row of the six numbers."""
    return {"0": SIX_BY_TWO[12 * number : 12 * number + 12]}


def files(*data: bytes, suffix: str = ".pt") -> Callable[[Path], list[Path]]:
    """A function that writes one file for each process, and returns their paths."""

    def write(folder: Path) -> list[Path]:
        paths = [folder / f"rank{number}{suffix}" for number in range(len(data))]
        for path, content in zip(paths, data, strict=True):
            path.write_bytes(content)
        return paths

    return write


def sharding(offsets: object) -> dict[str, str]:
    """The metadata that torch.distributed.checkpoint writes into safetensors files, with `saved_offsets` by tensor."""
    return {
        "DCP_VERSION": "1.0",
        "DCP_SHARDING_INFO": offsets if isinstance(offsets, str) else json.dumps(offsets),
        "format": "pt",
    }


def hf_part(
    offsets: object, shape: Sequence[int] = (1, 3), dtype: str = "F32", data: bytes = SIX_BY_TWO[:12]
) -> bytes:
    """A safetensors file with the tensor `w`, which lies at `offsets` of a larger one."""
    info = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, len(data)]}
    where = {"w": {"saved_offsets": offsets}} if isinstance(offsets, (list, tuple)) else offsets
    return safetensors({"__metadata__": sharding(where), "w": info}, data)
