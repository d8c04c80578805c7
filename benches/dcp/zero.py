"""Converts a folder of DeepSpeed ZeRO-3 to safetensors, by rustload and by DeepSpeed; prints time and peak memory.

Peaks of anonymous memory are above the level before the conversion, sampled every 5 ms. `VmHWM` is the peak of the whole
process, with pages of mapped files. Files are in the page cache. Fails where the results differ in a bit.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
WIDTH = 4096
RANKS = 8
SUB_GROUPS = 4
BYTES = 12
"""Of a parameter in the folder: the float32 master and two moments."""


def main() -> None:
    """Parses the command line; runs the ways, or is one."""
    parser = argparse.ArgumentParser(prog="python -m benches.dcp.zero", description=__doc__)
    parser.add_argument("--mib", type=int, default=7630, help="the size of the folder")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way; medians are shown")
    parser.add_argument(
        "--deepspeed", default=sys.executable, help="a Python that has DeepSpeed, huggingface_hub"
    )
    parser.add_argument("--place", type=Path, help="where the folder is made")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        print(*measured(WAYS[options.way], options.folder))
        return
    with tempfile.TemporaryDirectory(dir=options.place) as made:
        folder = Path(made)
        save(folder / "zero", max(SUB_GROUPS, options.mib * MIB // (BYTES * WIDTH * WIDTH)))
        runs: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for number in range(options.rounds + 1):
            for way in WAYS:
                found = launch(folder, way, options.deepspeed)
                if number > 0:  # the first run fills the page cache
                    runs[way].append(found)
        compare(folder)
        print(f"{'way':12} {'seconds':>8} {'(min':>7} {'max)':>7} {'peak MiB':>9} {'VmHWM MiB':>10}")
        for way, rows in runs.items():
            seconds, peak, whole = ([row[at] for row in rows] for at in range(3))
            times = f"{statistics.median(seconds):8.2f} {min(seconds):7.2f} {max(seconds):7.2f}"
            print(f"{way:12} {times} {max(peak) / MIB:9.0f} {max(whole) / MIB:10.0f}", flush=True)


def save(root: Path, layers: int) -> None:
    """Saves the folder, a rank at a time."""
    sys.path.insert(0, str(ROOT / "tests" / "data"))
    import torch
    import zero_folders as zero

    groups: list[dict[str, torch.Tensor]] = [{} for _ in range(SUB_GROUPS)]
    for layer in range(layers):
        shapes = {"weight": (WIDTH, WIDTH), "bias": (WIDTH + 1,)}
        group = groups[layer * SUB_GROUPS // layers]
        group |= {
            f"layers.{layer}.{name}": torch.empty(shape, device="meta") for name, shape in shapes.items()
        }
    run = zero.Run(groups=groups, stage=3, world=RANKS)
    (root / "step").mkdir(parents=True)
    (root / "latest").write_text("step")
    for rank in range(RANKS):
        zero.save(run, root / "step" / zero.model_name(3, rank), zero.model_states(run, rank))
        sizes = [sum(zero.ceil_div(one.numel(), RANKS) for one in group.values()) for group in groups]
        flats = [torch.rand(size) for size in sizes]
        moments = {
            number: {"step": torch.tensor(7.0), "exp_avg": flat / 2, "exp_avg_sq": flat / 4}
            for number, flat in enumerate(flats)
        }
        states = {
            "zero_stage": zero.ZeroStageEnum.weights,
            "partition_count": RANKS,
            "optimizer_state_dict": {"state": moments, "param_groups": [{"lr": 1e-3, "params": [0]}]},
            "fp32_flat_groups": flats,
        }
        content = {"optimizer_state_dict": states, "ds_config": {}, "ds_version": "0.19.8"}
        zero.save(run, root / "step" / zero.optimizer_name(run, rank), content)


def launch(folder: Path, way: str, deepspeed: str) -> list[float]:
    """Runs one way in a process of its own; returns seconds, and the peaks in bytes."""
    python = deepspeed if way == "deepspeed" else sys.executable
    command = [python, "-m", "benches.dcp.zero", "--way", way, "--folder", str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return [float(number) for number in done.stdout.splitlines()[-1].split()]


def compare(folder: Path) -> None:
    """Fails where the results differ."""
    import torch

    import rustload

    ours = rustload.open(folder / "rustload.safetensors", framework="torch")
    theirs = rustload.open(folder / "deepspeed" / "model.safetensors", framework="torch")
    if set(ours) != set(theirs):
        raise SystemExit("the results have different names")
    for name in ours:
        if not torch.equal(ours[name].materialize(), theirs[name].materialize()):
            raise SystemExit(f"{name} differs")


def by_rustload(folder: Path, *, fsync: bool = True) -> Callable[[], object]:
    """`rustload.convert` of all but the states of the optimizer."""
    import rustload

    out = folder / "rustload.safetensors"
    out.unlink(missing_ok=True)
    return lambda: rustload.convert(folder / "zero", out, rename={"optimizer": None}, fsync=fsync)


def without_fsync(folder: Path) -> Callable[[], object]:
    """As `by_rustload`, without waiting for the disk, as DeepSpeed."""
    return by_rustload(folder, fsync=False)


def by_deepspeed(folder: Path) -> Callable[[], object]:
    """DeepSpeed's own conversion, to one file."""
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_fp32_state_dict as convert
    from safetensors.torch import save_file  # noqa: F401 - the import is not measured

    (folder / "deepspeed" / "model.safetensors").unlink(missing_ok=True)
    return lambda: convert(
        str(folder / "zero"), str(folder / "deepspeed"), max_shard_size=None, safe_serialization=True
    )


WAYS = {"rustload": by_rustload, "no fsync": without_fsync, "deepspeed": by_deepspeed}


def measured(way: Callable[[Path], Callable[[], object]], folder: Path) -> tuple[float, int, int]:
    """Seconds, the peak of anonymous memory above the level before, and that of the whole process, in bytes."""
    convert = way(folder)
    start_memory = peak = status("RssAnon")
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, status("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    convert()
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    return seconds, peak - start_memory, status("VmHWM")


def status(key: str) -> int:
    """A size in the status of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) << 10


if __name__ == "__main__":
    main()
