"""Simulates ranks of a large job that loads Llama-3.1-405B, and prints what each reads. No network, no GPU, no data.

Each rank is this process, under torch's fake process group. It opens a checkpoint and calls `rustload.torch.load_into` on a model
that FSDP and tensor parallelism have cut, so the planner is the real one. The checkpoint has real headers and no data: sparse
files, whose reads the system counts, or one object of a store that counts requests. For `share="node"`, the ranks of the first
machine are processes that run at once, and share what they read of the object.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from benches.scale.ranks import Layout, Reads, node, simulate
from benches.scale.shapes import LLAMA_405B, Shapes
from benches.scale.stores import CountedObject, system_calls, write_folder

MIB = 1 << 20


HEADS = """
The largest of the sampled ranks: its share, what it reads and in how many reads; then its metadata, what all ranks read, and
seconds of CPU to open and to load here; then seconds by the assumptions for metadata, requests, the rate of the rank, the rate of
the store.
layout           store  share MB  read MB   reads metadata KB reads    all GB   open   load | metadata requests    rank  store"""


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
    parser.add_argument("--node", type=int, default=8, help='ranks of a machine, for share="node"')
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
            found = node(shapes, layout, options.node, latency)
            print(row(layout, "shared", found, shapes.nbytes(), options), flush=True)


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


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
