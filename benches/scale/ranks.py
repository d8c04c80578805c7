"""The ranks of a job: processes under torch's fake process group, which load their part and count what they read."""

from __future__ import annotations

import dataclasses
import multiprocessing
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

import rustload
import rustload.torch
from benches.scale.shapes import Shapes, sharded_model
from benches.scale.stores import CountedObject
from rustload.torch._node_folder import NodeFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclasses.dataclass(frozen=True)
class Layout:
    """The mesh: `ranks / tensor_parallel` data-parallel groups of `tensor_parallel` ranks."""

    ranks: int
    tensor_parallel: int

    def __str__(self) -> str:
        """Its name in the table."""
        data_parallel = self.ranks // self.tensor_parallel
        return (
            f"FSDP {data_parallel} x TP {self.tensor_parallel}"
            if self.tensor_parallel > 1
            else f"FSDP {self.ranks}"
        )


@dataclasses.dataclass(frozen=True)
class Reads:
    """What one rank does: its share, reads and bytes of metadata and of tensors, and seconds of its CPU."""

    share: int
    metadata_requests: int
    metadata_bytes: int
    requests: int
    nbytes: int
    open_seconds: float
    load_seconds: float


def node(shapes: Shapes, layout: Layout, ranks: int, latency: float) -> list[Reads]:
    """What the ranks of the first machine read, which share what they fetch."""
    folder = NodeFolder.made()
    shares = [Shared(folder.path, rank, ranks, folder.window // ranks) for rank in range(ranks)]
    try:
        with multiprocessing.get_context("spawn").Pool(ranks) as pool:
            given = [(shapes, layout, latency, share) for share in shares]
            return pool.starmap(_of_shared, given, chunksize=1)
    finally:
        folder.remove()


class Shared(NamedTuple):
    """What a rank shares, as `Checkpoint.share` of the extension takes it."""

    folder: str
    number: int
    count: int
    window: int


def _of_shared(shapes: Shapes, layout: Layout, latency: float, share: Shared) -> Reads:
    torch.set_num_threads(1)
    source = CountedObject(shapes, latency)
    return simulate(shapes, layout, share.number, source, lambda: (source.requests, source.nbytes), share)


def simulate(
    shapes: Shapes,
    layout: Layout,
    rank: int,
    path: Any,
    count: Callable[[], tuple[int, int]],
    share: Shared | None = None,
) -> Reads:
    """Loads the part of one rank, and returns what it read."""
    with as_rank(rank, layout.ranks):
        mesh = mesh_of(layout)
        model = sharded_model(shapes, mesh)
        of_counting = _difference(*(count() for _ in range(2)))  # reading /proc/self/io is itself a read
        start, at_start = time.process_time(), count()
        ckpt = rustload.open(path, framework="torch")
        opened, at_open = time.process_time(), count()
        if share is not None:
            ckpt._core.share(*share)
        report = rustload.torch.load_into(model, ckpt, copy=True)
        loaded, at_end = time.process_time(), count()
        of_metadata = _difference(of_counting, _difference(at_start, at_open))
        of_tensors = _difference(of_counting, _difference(at_open, at_end))
        return Reads(
            share=report.bytes_read,
            metadata_requests=of_metadata[0],
            metadata_bytes=of_metadata[1],
            requests=of_tensors[0],
            nbytes=of_tensors[1],
            open_seconds=opened - start,
            load_seconds=loaded - opened,
        )


def _difference(before: tuple[int, int], after: tuple[int, int]) -> tuple[int, int]:
    return after[0] - before[0], after[1] - before[1]


def mesh_of(layout: Layout) -> Any:
    """The mesh of a layout: "dp", or "dp" and "tp"."""
    from torch.distributed.device_mesh import init_device_mesh

    if layout.tensor_parallel == 1:
        return init_device_mesh("cpu", (layout.ranks,), mesh_dim_names=("dp",))
    sizes = (layout.ranks // layout.tensor_parallel, layout.tensor_parallel)
    return init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))


@contextmanager
def as_rank(rank: int, world_size: int) -> Iterator[None]:
    """Makes this process a rank of a group that sends nothing."""
    import torch.distributed as dist
    from torch.distributed.tensor.debug import _clear_sharding_prop_cache
    from torch.testing._internal.distributed.fake_pg import FakeStore

    _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]  # torch's
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()
