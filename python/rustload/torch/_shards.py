"""DTensor parameters: which elements of the whole tensor this rank holds, by the placements alone, without collectives."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload._tensor.handle import LazyTensor
from rustload._tensor.joined import concat
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

LocalRuns: TypeAlias = list[list[tuple[int, int]]]
"""What a rank holds of a tensor: for each dimension, ranges `(start, stop)` of indices, in the order of the local tensor."""


def is_dtensor(tensor: torch.Tensor) -> bool:
    """Whether it is a `torch.distributed.tensor.DTensor`; does not import that module."""
    found = getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", None)
    return found is not None and isinstance(tensor, found)


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor on this rank, detached: the local tensor of a DTensor, the tensor itself otherwise."""
    return tensor._local_tensor.detach() if is_dtensor(tensor) else tensor.detach()  # type: ignore[attr-defined]


def like(old: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """A DTensor with the mesh, placements and global shape of `old`, and `local` as this rank's part."""
    from torch.distributed.tensor import DTensor

    spec = old._spec  # type: ignore[attr-defined]  # a DTensor has it
    if spec.tensor_meta.dtype != local.dtype:
        spec = copy.copy(spec)
        spec.tensor_meta = spec.tensor_meta._replace(dtype=local.dtype)
    # Not `DTensor.from_local`, which moves a local tensor that FSDP keeps on the CPU (CPUOffloadPolicy) to the mesh's device.
    made: torch.Tensor = DTensor(local, spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return made


def local_runs(tensor: Any, name: str) -> LocalRuns | None:
    """The runs of a DTensor that this rank holds; None if this rank is not part of its mesh.

    Raises:
        UnsupportedError: A placement is neither `Shard`, `_StridedShard` nor `Replicate`, or the result contradicts the shape of
            the local tensor (code `DTensorPlacement`).
    """
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    runs = cut(tuple(tensor.shape), tuple(mesh.shape), coordinate, tensor.placements, name)
    held = tuple(tensor._local_tensor.shape)
    if runs_shape(runs) != held:
        shapes = f"{list(runs_shape(runs))} on this rank, and its local tensor has {list(held)}"
        text = f"{name!r} with placements {tensor.placements} should have shape {shapes}"
        raise _error("DTensorPlacement", text)
    return runs


def runs_shape(runs: LocalRuns) -> tuple[int, ...]:
    """The shape of a local tensor."""
    return tuple(sum(stop - start for start, stop in run) for run in runs)


def cut(
    shape: Sequence[int],
    mesh_shape: Sequence[int],
    coordinate: Sequence[int],
    placements: Sequence[Any],
    name: str = "",
) -> LocalRuns:
    """The runs of a tensor that a rank holds.

    `Shard` cuts a dimension into ceil-sized chunks, as `torch.chunk` does, from the first mesh dimension to the last. FSDP over
    tensor parallelism cuts the other way round: its `_StridedShard` has the number of chunks right of it as `split_factor`, and
    cuts what those have left. Any other `split_factor` is a weight of that many parts, such as a fused gate and up projection:
    each part is cut by itself.

    Args:
        shape: The shape of the whole tensor.
        mesh_shape: The size of each mesh dimension.
        coordinate: The rank's coordinate in the mesh.
        placements: One for each mesh dimension.
        name: The tensor's name, for the error.

    Raises:
        UnsupportedError: A placement is of another kind (code `DTensorPlacement`).
    """
    from torch.distributed.tensor import Replicate, Shard

    cuts: list[list[tuple[int, int, int | None]]] = [[] for _ in shape]
    for count, index, placement in zip(mesh_shape, coordinate, placements, strict=True):
        if isinstance(placement, Replicate):
            continue
        # Only `_StridedShard` has it, in some versions no subclass of `Shard`.
        factor = getattr(placement, "split_factor", None)
        if factor is None and not isinstance(placement, Shard):
            raise _error(
                "DTensorPlacement",
                f"{name!r} has placement {placement}, which says nothing of elements",
            )
        cuts[placement.dim].append((count, index, None if factor is None else int(factor)))
    return [_cut_dimension(size, there) for size, there in zip(shape, cuts, strict=True)]


def _cut_dimension(size: int, cuts: Sequence[tuple[int, int, int | None]]) -> list[tuple[int, int]]:
    """Applies cuts of one dimension, each a count of chunks, the index of this rank's, and a `split_factor` or None."""
    steps: list[tuple[int, int, int]] = []
    to_the_right = 1
    for count, index, factor in reversed(cuts):
        if factor == to_the_right:  # FSDP over tensor parallelism: after all cuts to its right
            steps.append((count, index, 1))
        else:
            steps.insert(0, (count, index, factor or 1))
        to_the_right *= count
    runs = [(0, size)]
    for count, index, parts in steps:
        total = sum(stop - start for start, stop in runs)
        taken = []
        for part in range(parts):
            first, last = _chunk(total, parts, part)
            start, stop = _chunk(last - first, count, index)
            taken += _select(runs, first + start, first + stop)
        runs = taken
    return _merged(runs)


def _chunk(size: int, count: int, index: int) -> tuple[int, int]:
    """Start and stop of a chunk as `torch.chunk` makes them; the last ones may be empty."""
    step = -(-size // count)
    return min(step * index, size), min(step * (index + 1), size)


def _select(runs: Sequence[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """The elements from `start` to `stop` of the concatenated runs."""
    found = []
    position = 0
    for first, last in runs:
        one, two = max(start - position, 0), min(stop - position, last - first)
        if one < two:
            found.append((first + one, first + two))
        position += last - first
    return found


def _merged(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in runs:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        elif start < stop:
            merged.append((start, stop))
    return merged


def local_of(lazy: Any, runs: LocalRuns, name: str) -> Any:
    """The part of a `LazyTensor` or `ComputedTensor` that a rank holds, as one of these. Reads nothing.

    Raises:
        UnsupportedError: The part has several runs in two dimensions (code `DTensorPlacement`).
    """
    several = [dim for dim, run in enumerate(runs) if len(run) > 1]
    if len(several) > 1:
        text = f"{name!r} is cut into several runs in dimensions {several}"
        raise _error("DTensorPlacement", text)
    whole = [slice(*run[0]) if run else slice(0, 0) for run in runs]
    if not several:
        return lazy[tuple(whole)]
    parts = []
    for start, stop in runs[several[0]]:
        whole[several[0]] = slice(start, stop)
        parts.append(lazy[tuple(whole)])
    dim = several[0]
    return concat(parts, dim) if isinstance(lazy, LazyTensor) else lazy.join(parts, dim)
