"""Converts a distributed checkpoint, by rustload to safetensors and by torch to a `.pt`; prints time and peak memory.

Peaks are anonymous memory above the level before the conversion, sampled every 5 ms. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from benches.dcp.save import LAYER_BYTES, save

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


def main() -> None:
    """Parses the command line; runs the ways, or is one."""
    parser = argparse.ArgumentParser(prog="python -m benches.dcp", description=__doc__)
    parser.add_argument("--mib", type=int, default=2048, help="the size of the checkpoint, in float32")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way; the median is shown")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.way:
        seconds, peak = measured(WAYS[options.way], options.folder)
        print(seconds, peak)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        save(folder, max(1, options.mib * MIB // LAYER_BYTES))
        print(f"{'way':12} {'seconds':>8} {'peak MiB':>9}")
        for way in WAYS:
            runs = [launch(folder, way) for _ in range(options.rounds)]
            seconds, peak = (statistics.median(one) for one in zip(*runs, strict=True))
            print(f"{way:12} {seconds:8.2f} {peak / MIB:9.0f}", flush=True)


def launch(folder: Path, way: str) -> tuple[float, float]:
    """Runs one way in a process of its own; returns seconds and the peak in bytes."""
    command = [sys.executable, "-m", "benches.dcp", "--way", way, "--folder", str(folder)]
    seconds, peak = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    for made in folder.glob("out.*"):
        made.unlink()
    return float(seconds), float(peak)


def by_rustload(folder: Path) -> None:
    """`rustload.convert`."""
    import rustload

    rustload.convert(folder / "dcp", folder / "out.safetensors")


def by_torch(folder: Path) -> None:
    """torch's own conversion, which loads the whole model."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(folder / "dcp", folder / "out.pt")


WAYS = {"rustload": by_rustload, "torch": by_torch}


def measured(way: Callable[[Path], None], folder: Path) -> tuple[float, int]:
    """Seconds and the peak of anonymous memory, in bytes."""
    import torch.distributed.checkpoint.format_utils  # noqa: F401 - imports are not measured

    import rustload  # noqa: F401 - as well

    start_memory = peak = anonymous()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.005):
            peak = max(peak, anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    way(folder)
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    return seconds, peak - start_memory


def anonymous() -> int:
    """Anonymous memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) << 10


if __name__ == "__main__":
    main()
