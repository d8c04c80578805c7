"""Loads one model on all ranks of a machine from a slow network file system, cold, in several ways.

    python -m benches.ranks.node [--ranks 2,4] [--mib 256] [--ms 10] [--rate 200]

The file system is FUSE, served by the tests' `fuse_folder.py` from memory: each read takes some milliseconds, and all of them
share one link. It is mounted anew for each run, so nothing is in the page cache. "rows" is FSDP2, where each rank needs its own
rows; "columns" is tensor parallelism, where each needs a part of each row; "replicated" is a plain module, where each needs all
of it. "fetched" is what the file system sent. Each rank checks its values.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

import rustload
from benches.ranks.__main__ import MIB, broadcast, launch, layers_of, load_into, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benches.ranks.__main__ import Way

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Parses the command line and runs the ways, which take turns."""
    parser = argparse.ArgumentParser(prog="python -m benches.ranks.node", description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, separated by commas")
    parser.add_argument("--mib", type=int, default=256, help="the size of the model in bfloat16")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way; the median is shown")
    parser.add_argument("--ms", type=float, default=10, help="what one read takes, in milliseconds")
    parser.add_argument("--rate", type=float, default=200, help="megabytes per second of the link")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # also so that forks do not inherit a pool of threads
    layers = layers_of(options.mib)
    with tempfile.TemporaryDirectory() as made:
        whole = Path(made, "whole")
        whole.mkdir()
        save(whole, layers, kinds=("model.bin",))
        ideal = (whole / "model.bin").stat().st_size / (options.rate * 1e6)
        print(f"the file in {ideal:.2f} s at the rate of the link")
        print(f"{'model':12}{'ranks':>6}  {'way':38}{'seconds':>9}{'MiB fetched':>13}")
        for world in map(int, options.ranks.split(",")):
            for model, (shards, ways) in MODELS.items():
                runs: dict[str, list[tuple[float, float]]] = {}
                for _ in range(options.rounds):
                    for way, load in ways.items():
                        with slow(whole, options) as (folder, fetched):
                            found = launch(folder, load, world, layers, shards=shards, whole=whole)
                            seconds = max(one["seconds"] for one in found)
                            runs.setdefault(way, []).append((seconds, fetched() / MIB))
                for way, times in runs.items():
                    seconds, mib = (statistics.median(column) for column in zip(*times, strict=True))
                    print(f"{model:12}{world:6}  {way:38}{seconds:9.2f}{mib:13.0f}", flush=True)


@contextlib.contextmanager
def slow(folder: Path, options: argparse.Namespace) -> Iterator[tuple[Path, Callable[[], int]]]:
    """The files of a folder behind a slow file system, and a function that returns the bytes fetched since."""
    server = ROOT / "tests" / "python" / "fuse_folder.py"
    with tempfile.TemporaryDirectory() as mountpoint:
        command = [
            sys.executable,
            str(server),
            mountpoint,
            "slow",
            str(folder),
            str(options.ms / 1e3),
            str(options.rate * 1e6),
        ]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as served:
            assert served.stdin
            assert served.stdout
            if served.stdout.readline() != "ready\n":
                raise SystemExit("no FUSE file system can be mounted")

            def fetched() -> int:
                print(file=served.stdin, flush=True)
                assert served.stdout
                return int(served.stdout.readline().split()[1])

            try:
                yield Path(mountpoint), fetched
            finally:
                served.stdin.close()


def _gather(model: torch.nn.Module, folder: Path) -> None:
    """Each rank reads an equal share of the rows of each tensor, and the ranks exchange them."""
    import torch.distributed as dist

    world, rank = dist.get_world_size(), dist.get_rank()
    model.to_empty(device="cpu")
    ckpt = rustload.open(folder / "model.bin", framework="torch")
    rows = next(iter(ckpt.values())).shape[0] // world
    parts = {name: lazy[rank * rows : (rank + 1) * rows] for name, lazy in ckpt.items()}
    for name, parameter in model.named_parameters():
        # gloo has no bfloat16.
        own = parts[name].materialize(copy=True).view(torch.uint8)
        dist.all_gather_into_tensor(parameter.data.view(torch.uint8), own)


RUSTLOAD: dict[str, Way] = {
    "load_into": load_into("model.bin"),
    'load_into, share="node"': load_into("model.bin", share="node"),
}
MODELS: dict[str, tuple[int | None, dict[str, Way]]] = {
    "rows": (0, {**RUSTLOAD, "rank 0 and broadcast, torch.load mmap": broadcast}),
    "columns": (1, RUSTLOAD),
    "replicated": (None, {**RUSTLOAD, "shares of rows, then all_gather": _gather}),
}


if __name__ == "__main__":
    main()
