"""Simulates ranks of a large job that loads Llama-3.1-405B, and prints what each reads. No network, no GPU, no data.

Each rank is this process, under torch's fake process group. It opens a checkpoint and calls `rustload.torch.load_into` on a model
that FSDP and tensor parallelism have cut, so the planner is the real one. The checkpoint has real headers and no data: sparse
files, whose reads the system counts, or one object of a store that counts requests.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import rustload
import rustload.torch
from benches.scale.shapes import LLAMA_405B, Shapes, sharded_model
from benches.scale.stores import CountedObject, system_calls, write_folder

MIB = 1 << 20


HEADS = """
The largest of the sampled ranks: its share, what it reads and in how many reads; then its metadata, what all ranks read, and
seconds of CPU to open and to load here; then seconds by the assumptions for metadata, requests, the rate of the rank, the rate of
the store.
layout           store  share MB  read MB   reads metadata KB reads    all GB   open   load | metadata requests    rank  store"""


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


def main() -> None:
    """Parses the command line and prints the tables."""
    parser = argparse.ArgumentParser(prog="python -m benches.scale", description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--tp", default="1,8", help="sizes of tensor parallelism, separated by commas")
    parser.add_argument(
        "--sample", default="0,1,511,1023", help="the ranks that are simulated, separated by commas"
    )
    parser.add_argument("--layers", type=int, default=LLAMA_405B.layers)
    parser.add_argument(
        "--file-latency-ms", type=float, default=1, help="assumed time of a small read of a file"
    )
    parser.add_argument("--object-latency-ms", type=float, default=30, help="the time of each request")
    parser.add_argument(
        "--in-flight", type=int, default=16, help="requests that a rank has under way (rustload's default)"
    )
    parser.add_argument("--rank-mb-s", type=float, default=1000, help="assumed rate of one rank in MB/s")
    parser.add_argument(
        "--total-gb-s", type=float, default=500, help="assumed rate of the store for all ranks in GB/s"
    )
    options = parser.parse_args()
    shapes = dataclasses.replace(LLAMA_405B, layers=options.layers)
    sample = [int(rank) for rank in options.sample.split(",") if int(rank) < options.ranks]
    print(
        f"{len(shapes.tensors())} tensors, {shapes.nbytes() / 1e9:.1f} GB in bfloat16, {options.ranks} ranks"
    )
    with tempfile.TemporaryDirectory() as folder:
        count = write_folder(Path(folder), shapes)
        print(f"files: {count} shards and an index, which each rank opens; object: one file")
        print(HEADS)
        latency = options.object_latency_ms / 1000
        for tensor_parallel in map(int, options.tp.split(",")):
            layout = Layout(options.ranks, tensor_parallel)
            for store, load in (
                ("files", _of_files(Path(folder))),
                ("object", _of_object(shapes, latency)),
            ):
                found = [load(shapes, layout, rank) for rank in sample]
                print(row(layout, store, found, shapes.nbytes(), options), flush=True)


def row(layout: Layout, store: str, found: list[Reads], model_bytes: int, options: argparse.Namespace) -> str:
    """A line of the table: the largest of the sampled ranks, and what all ranks read together."""
    most = max(found, key=lambda one: one.nbytes)
    # Sizes do not divide, so ranks differ; but together they hold the model once, and read more than that by the same factor.
    factor = sum(one.nbytes for one in found) / max(1, sum(one.share for one in found))
    everything = factor * model_bytes + layout.ranks * most.metadata_bytes
    milliseconds = options.file_latency_ms if store == "files" else options.object_latency_ms
    own_rate, total_rate = options.rank_mb_s * 1e6, options.total_gb_s * 1e9
    seconds = (
        most.metadata_requests * milliseconds / 1000,  # one after another
        most.requests / options.in_flight * milliseconds / 1000,
        (most.nbytes + most.metadata_bytes) / own_rate,
        everything / total_rate,
    )
    return (
        f"{layout!s:16} {store:6} {most.share / 1e6:8.1f} {most.nbytes / 1e6:8.1f} {most.requests:7}"
        f" {most.metadata_bytes / 1e3:11.1f} {most.metadata_requests:5} {everything / 1e9:9.1f}"
        f" {most.open_seconds:6.2f} {most.load_seconds:6.2f} | "
        + "{:8.2f} {:8.2f} {:7.2f} {:6.2f}".format(*seconds)
    )


Load = Callable[[Shapes, Layout, int], Reads]


def _of_files(folder: Path) -> Load:
    def load(shapes: Shapes, layout: Layout, rank: int) -> Reads:
        return simulate(shapes, layout, rank, folder, system_calls)

    return load


def _of_object(shapes: Shapes, latency: float) -> Load:
    def load(_shapes: Shapes, layout: Layout, rank: int) -> Reads:
        source = CountedObject(shapes, latency)
        return simulate(shapes, layout, rank, source, lambda: (source.requests, source.nbytes))

    return load


def simulate(
    shapes: Shapes, layout: Layout, rank: int, path: Any, count: Callable[[], tuple[int, int]]
) -> Reads:
    """Loads the part of one rank, and returns what it read."""
    with as_rank(rank, layout.ranks):
        mesh = mesh_of(layout)
        model = sharded_model(shapes, mesh)
        of_counting = _difference(*(count() for _ in range(2)))  # reading /proc/self/io is itself a read
        start, at_start = time.process_time(), count()
        ckpt = rustload.open(path, framework="torch")
        opened, at_open = time.process_time(), count()
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
