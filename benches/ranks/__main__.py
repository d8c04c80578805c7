"""Loads an FSDP2 model on several gloo ranks in several ways, and prints time, bytes read and peak memory of each rank.

Bytes are those that the process asked the system for (`rchar` of /proc/self/io). Pages of a mapping do not count: rustload is
asked for owned memory, and the figures of ways that map the file (safetensors, `mmap=True`) are too low. Peaks are anonymous
memory above the level before the load. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
WIDTH = 2048


def main() -> None:
    """Parses the command line; runs the ranks, or is one."""
    parser = argparse.ArgumentParser(prog="python -m benches.ranks", description=__doc__)
    parser.add_argument("--ranks", default="1,2", help="numbers of ranks, separated by commas")
    parser.add_argument("--mib", type=int, default=256, help="the size of the model in bfloat16")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way; the median is shown")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        rank(options.folder, options.way, layers_of(options.mib))
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save(folder, layers_of(options.mib))
        print(f"{'ranks':>5} {'way':34} {'seconds':>8} {'MiB read per rank':>24} {'peak MiB per rank':>24}")
        for world in map(int, options.ranks.split(",")):
            for way in WAYS:
                runs = [launch(folder, way, world, options.mib) for _ in range(options.rounds)]
                seconds = statistics.median(max(one["seconds"] for one in run) for run in runs)
                read = " ".join(f"{one['read'] / MIB:.1f}" for one in runs[0])
                peak = " ".join(f"{one['peak'] / MIB:.0f}" for one in runs[0])
                print(f"{world:5} {way:34} {seconds:8.3f} {read:>24} {peak:>24}", flush=True)


def layers_of(mib: int) -> int:
    """The number of layers of a model of that size."""
    return max(1, mib * MIB // (WIDTH * WIDTH * 2))


def build(layers: int) -> torch.nn.Module:
    """A stack of linear layers."""
    return torch.nn.Sequential(
        *(torch.nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16) for _ in range(layers))
    )


def save(folder: Path, layers: int) -> None:
    """Writes the model in three formats."""
    from safetensors.torch import save_file

    state = build(layers).state_dict()
    torch.save(state, folder / "model.bin")
    torch.save(state, folder / "legacy.bin", _use_new_zipfile_serialization=False)
    (folder / "hf").mkdir()
    save_file(state, folder / "hf" / "model.safetensors")


def launch(folder: Path, way: str, world: int, mib: int) -> list[dict[str, Any]]:
    """Runs one way in `world` processes; returns what each measured."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    common |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [
        sys.executable,
        "-m",
        "benches.ranks",
        "--folder",
        str(folder),
        "--way",
        way,
        "--mib",
        str(mib),
    ]
    processes = [
        subprocess.Popen(command, env={**common, "RANK": str(number)}, stdout=subprocess.PIPE, text=True)
        for number in range(world)
    ]
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{way} on {world} ranks failed")
    return [json.loads(output) for output in outputs]


def rank(folder: Path, way: str, layers: int) -> None:
    """One process: loads, checks the values, prints what it measured as JSON."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    import rustload
    import rustload.torch.distributed

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    with torch.device("meta"):
        model = build(layers)
    fully_shard(model, mesh=mesh)
    dist.barrier()
    peak = Peak()
    before, start = bytes_read(), time.perf_counter()
    WAYS[way](model, folder)
    dist.barrier()
    seconds, read = time.perf_counter() - start, bytes_read() - before
    growth = peak.stop()
    for name, lazy in rustload.open(folder / "model.bin").items():
        local: torch.Tensor = model.get_parameter(name).to_local()  # type: ignore[attr-defined]  # a DTensor
        rows = local.shape[0]
        if not torch.equal(local, lazy[dist.get_rank() * rows : (dist.get_rank() + 1) * rows].torch()):
            raise SystemExit(f"{name} is wrong")
    print(json.dumps({"seconds": seconds, "read": read, "peak": growth}))
    dist.destroy_process_group()


def bytes_read() -> int:
    """Bytes that this process asked for by system calls."""
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


class Peak:
    """Samples anonymous memory on a thread."""

    def __init__(self) -> None:
        self._start = self._most = self._now()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _now(self) -> int:
        _, resident, shared = Path("/proc/self/statm").read_text().split()[:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")

    def _run(self) -> None:
        while not self._ended.wait(0.005):
            self._most = max(self._most, self._now())

    def stop(self) -> int:
        """The growth in bytes."""
        self._ended.set()
        self._thread.join()
        return max(self._most, self._now()) - self._start


def _load_into(file: str) -> Callable[[torch.nn.Module, Path], None]:
    def load(model: torch.nn.Module, folder: Path) -> None:
        import rustload.torch

        rustload.torch.load_into(model, folder / file, copy=True)

    return load


def _reader(make: Callable[[Path], Any]) -> Callable[[torch.nn.Module, Path], None]:
    def load(model: torch.nn.Module, folder: Path) -> None:
        from torch.distributed.checkpoint.state_dict_loader import load as load_from

        model.to_empty(device="cpu")
        load_from(model.state_dict(), storage_reader=make(folder))

    return load


def _broadcast(model: torch.nn.Module, folder: Path) -> None:
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


def _rustload_reader(folder: Path) -> Any:
    from rustload.torch.distributed import Reader

    return Reader(folder / "model.bin")


def _hf_reader(folder: Path) -> Any:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    return HuggingFaceStorageReader(str(folder / "hf"))


WAYS: dict[str, Callable[[torch.nn.Module, Path], None]] = {
    "load_into, .bin": _load_into("model.bin"),
    "load_into, legacy": _load_into("legacy.bin"),
    "load_into, safetensors": _load_into("hf"),
    "Reader, .bin": _reader(_rustload_reader),
    "HuggingFaceStorageReader": _reader(_hf_reader),
    "rank 0 and broadcast, .bin, mmap": _broadcast,
    "torch.load on every rank": _every_rank,
}


if __name__ == "__main__":
    main()
