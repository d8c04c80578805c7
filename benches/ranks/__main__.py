"""Loads an FSDP2 model on several gloo ranks in several ways, and prints time, bytes read and peak memory of each rank.

Bytes read are those that the process asked the system for (`rchar` of /proc/self/io); bytes mapped are the most pages of files
that it had mapped, above the level before (4 MiB of them are libraries). Peaks are anonymous memory above the level before the
load. Each rank is a fork of this process. It checks its values against `distribute_tensor` of the whole, and the model's forward
pass against the whole model's. Files are in the page cache. A star marks a way of rustload that is over its bars: 1.05 of the
rank's share and metadata in bytes, the share and 64 MiB as a peak.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import rustload
import rustload.torch.distributed

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

    Way = Callable[[torch.nn.Module, Path], None]

MIB = 1 << 20
WIDTH = 2048
BYTES_BAR, PEAK_BAR = 1.05, 64 * MIB
METADATA_BYTES, METADATA_PER_TENSOR = MIB, 64 << 10
"""What is read besides data: at most 1 MiB for the pickles of a legacy file; of an archive, a block for each member's header."""


def main() -> None:
    """Parses the command line and runs the ways."""
    parser = argparse.ArgumentParser(prog="python -m benches.ranks", description=__doc__)
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks, separated by commas")
    parser.add_argument("--mib", type=int, default=256, help="the size of the model in bfloat16")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way; the median is shown")
    parser.add_argument("--ways", default="", help="only ways whose names contain this text")
    parser.add_argument("--plot", type=Path, help="draws bytes per rank as this .svg")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # also so that forks do not inherit a pool of threads
    layers = layers_of(options.mib)
    curves: dict[str, dict[int, float]] = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save(folder, layers)
        print(f"{'ranks':>5} {'way':34} {'seconds':>8}   MiB of the largest rank: share, read, mapped, peak")
        for world in map(int, options.ranks.split(",")):
            for way in (way for way in WAYS if options.ways in way):
                runs = [launch(folder, WAYS[way], world, layers) for _ in range(options.rounds)]
                print(row(way, world, runs), flush=True)
                most = max(one["read"] + one["mapped"] for one in runs[0])
                curves.setdefault(way, {})[world] = most / MIB
    if options.plot is not None:
        from benches.ranks.plot import draw

        options.plot.write_text(draw(curves, layers * WIDTH * WIDTH * 2 / MIB), encoding="utf-8")


def row(way: str, world: int, runs: list[list[dict[str, Any]]]) -> str:
    """A line of the table; bytes and peaks are those of the first run."""
    seconds = statistics.median(max(one["seconds"] for one in run) for run in runs)
    most = {key: max(one[key] for one in runs[0]) for key in ("share", "read", "mapped", "peak", "tensors")}
    bytes_bar = BYTES_BAR * most["share"] + METADATA_BYTES + METADATA_PER_TENSOR * most["tensors"]
    over = most["read"] > bytes_bar or most["peak"] > most["share"] + PEAK_BAR
    numbers = " ".join(f"{most[key] / MIB:8.1f}" for key in ("share", "read", "mapped", "peak"))
    star = " *" if over and way.startswith(("load_into", "Reader")) else ""
    return f"{world:5} {way:34} {seconds:8.3f}   {numbers}{star}"


def layers_of(mib: int) -> int:
    """The number of layers of a model of that size."""
    return max(1, mib * MIB // (WIDTH * WIDTH * 2))


def build(layers: int) -> torch.nn.Module:
    """A stack of linear layers."""
    return torch.nn.Sequential(
        *(torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(layers))
    )


def save(
    folder: Path, layers: int, kinds: tuple[str, ...] = ("model.bin", "legacy.bin", "hf", "dcp")
) -> None:
    """Writes the model in these formats."""
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.state_dict_saver import save as save_dcp

    state = build(layers).state_dict()
    torch.save(state, folder / "model.bin")
    if "legacy.bin" in kinds:
        torch.save(state, folder / "legacy.bin", _use_new_zipfile_serialization=False)
    if "hf" in kinds:
        (folder / "hf").mkdir()
        save_file(state, folder / "hf" / "model.safetensors")
    if "dcp" in kinds:
        save_dcp(dict(state), checkpoint_id=folder / "dcp", no_dist=True)


def launch(
    folder: Path, load: Way, world: int, layers: int, *, shards: int | None = 0, whole: Path | None = None
) -> list[dict[str, Any]]:
    """Runs one way in `world` forks; returns what each measured.

    Args:
        folder: The files to load.
        load: Loads them into a model on the meta device.
        world: The number of ranks.
        layers: The number of layers of the model.
        shards: The dimension in which the model is sharded: 0 by FSDP2, 1 by tensor parallelism; None for the whole on each rank.
        whole: The folder to check the values with; None is `folder`.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for number in range(world):
        get, put = fork.Pipe(duplex=False)
        model = layers, shards
        started = fork.Process(
            target=rank, args=(put, number, world, port, folder, load, model, whole or folder)
        )
        started.start()
        put.close()
        pipes.append(get)
        processes.append(started)
    try:
        return [get.recv() for get in pipes]
    except EOFError:
        raise SystemExit(f"a way on {world} ranks failed") from None
    finally:
        for process in processes:
            process.join()


def rank(
    put: Connection,
    number: int,
    world: int,
    port: int,
    folder: Path,
    load: Way,
    model_of: tuple[int, int | None],
    whole: Path,
) -> None:
    """One process: loads, checks the values, sends what it measured."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    layers, shards = model_of
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    with torch.device("meta"):
        model = build(layers)
    if shards == 0:
        fully_shard(model, mesh=mesh)
    elif shards == 1:
        parallelize_module(model, mesh, {"*": RowwiseParallel()})
    dist.barrier()
    peak = Peak()
    before, start = bytes_read(), time.perf_counter()
    load(model, folder)
    dist.barrier()
    seconds, read = time.perf_counter() - start, bytes_read() - before
    anonymous, mapped = peak.stop()
    share = sum(local(one).nbytes for one in model.parameters())
    check(model, mesh, shards, whole)
    found = {"seconds": seconds, "read": read, "mapped": mapped, "peak": anonymous, "share": share}
    put.send({**found, "tensors": layers})
    put.close()
    dist.barrier()
    dist.destroy_process_group()


def local(parameter: torch.Tensor) -> torch.Tensor:
    """This rank's part of a parameter."""
    found: torch.Tensor = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return found


def check(model: torch.nn.Module, mesh: Any, shards: int | None, folder: Path) -> None:
    """Compares the parameters with `distribute_tensor` of the whole ones, and the forward pass with theirs."""
    from torch.distributed.tensor import Shard, distribute_tensor

    x = expected = torch.ones(1, WIDTH, dtype=torch.bfloat16)
    for name, lazy in rustload.open(folder / "model.bin").items():
        whole = lazy.torch()
        part = (
            whole if shards is None else distribute_tensor(whole, mesh, [Shard(shards)], src_data_rank=None)
        )
        if not torch.equal(local(model.get_parameter(name)), local(part)):
            raise SystemExit(f"{name} is wrong")
        expected = torch.nn.functional.linear(expected, whole)
    if shards == 1:  # sums of parts are rounded otherwise
        return
    with torch.no_grad():
        if not torch.equal(model(x), expected):
            raise SystemExit("the forward pass is wrong")


def bytes_read() -> int:
    """Bytes that this process asked for by system calls."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


class Peak:
    """Samples anonymous memory, and mapped pages of files, on a thread."""

    def __init__(self) -> None:
        self._start = self._most = self._now()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _now(self) -> tuple[int, int]:
        _, resident, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
        page = os.sysconf("SC_PAGE_SIZE")
        return (resident - shared) * page, shared * page

    def _sample(self) -> None:
        now = self._now()
        self._most = (max(self._most[0], now[0]), max(self._most[1], now[1]))

    def _run(self) -> None:
        while not self._ended.wait(0.002):
            self._sample()

    def stop(self) -> tuple[int, int]:
        """The growth of both in bytes."""
        self._ended.set()
        self._thread.join()
        self._sample()
        return self._most[0] - self._start[0], self._most[1] - self._start[1]


def load_into(file: str, **options: Any) -> Way:
    """Loads a file by `rustload.torch.load_into`."""

    def load(model: torch.nn.Module, folder: Path) -> None:
        rustload.torch.load_into(model, folder / file, copy=True, **options)

    return load


def _reader(make: Callable[[Path], Any]) -> Way:
    def load(model: torch.nn.Module, folder: Path) -> None:
        from torch.distributed.checkpoint.state_dict_loader import load as load_from

        model.to_empty(device="cpu")
        load_from(model.state_dict(), storage_reader=make(folder))

    return load


def broadcast(model: torch.nn.Module, folder: Path) -> None:
    """Rank 0 maps the file by `torch.load`, and torch sends each rank its part."""
    import torch.distributed as dist
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    state = torch.load(folder / "model.bin", mmap=True) if dist.get_rank() == 0 else {}
    model.to_empty(device="cpu")
    set_model_state_dict(
        model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    )


def _every_rank(model: torch.nn.Module, folder: Path) -> None:
    from torch.distributed.tensor import distribute_tensor

    state = torch.load(folder / "model.bin")
    for name, old in list(model.named_parameters()):
        new = distribute_tensor(state[name], old.device_mesh, old.placements, src_data_rank=None)  # type: ignore[attr-defined]
        owner, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(owner), attribute, torch.nn.Parameter(new))


def _rustload_reader(file: str) -> Callable[[Path], Any]:
    return lambda folder: rustload.torch.distributed.Reader(folder / file)


def _hf_reader(folder: Path) -> Any:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    return HuggingFaceStorageReader(str(folder / "hf"))


def _dcp_reader(folder: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    return FileSystemReader(folder / "dcp")


FILES = {".bin": "model.bin", "legacy": "legacy.bin", "safetensors": "hf", "DCP": "dcp"}
WAYS: dict[str, Way] = {
    **{f"load_into, {kind}": load_into(file) for kind, file in FILES.items()},
    **{f"Reader, {kind}": _reader(_rustload_reader(file)) for kind, file in FILES.items()},
    "HuggingFaceStorageReader": _reader(_hf_reader),
    "FileSystemReader, DCP": _reader(_dcp_reader),
    "rank 0 and broadcast, .bin, mmap": broadcast,
    "torch.load on every rank": _every_rank,
}


if __name__ == "__main__":
    main()
