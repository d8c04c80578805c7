"""Measures upload rates with several slot sizes and numbers of workers, each in a process of its own.

The ring is allocated once per process; `RUSTLOAD_RING` sets the size and number of slots.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB = 1 << 10, 1 << 20
SLOTS_PER_WORKER = 3
ROUNDS = 5


def settings(*, quick: bool) -> list[tuple[int, int]]:
    """Bytes of a slot and number of workers; zeros for the defaults."""
    slots = (MIB, 2 * MIB) if quick else (256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB)
    workers = (1, 2) if quick else (1, 2, 4, 8, 12, 16)
    cores = os.cpu_count() or 1
    return [(0, 0), *((slot, number) for slot in slots for number in workers if number <= cores)]


def sweep(file: Path, device: str, *, quick: bool) -> Iterator[tuple[int, int, float | str]]:
    """Yields slot size, workers, and GB/s or the reason for a missing figure."""
    for slot, workers in settings(quick=quick):
        env = {**os.environ, "RUSTLOAD_RING": f"{slot}x{workers * SLOTS_PER_WORKER}" if slot else ""}
        command = [sys.executable, "-m", "benches.gpu.sweep", str(file), device, str(workers)]
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            yield slot, workers, (done.stderr.strip().splitlines() or ["no message"])[-1]
        else:
            yield slot, workers, json.loads(done.stdout.splitlines()[-1])


def _child(file: str, device: str, workers: int) -> None:
    import torch

    import rustload

    taken = []
    with rustload.open(file, framework="torch") as ckpt:
        for _ in range(ROUNDS + 1):
            torch.cuda.synchronize(device)
            start = time.perf_counter()
            result = ckpt.materialize(device=device, threads=workers or None)
            torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - start)
            del result
        # The first one pins the ring and starts CUDA.
        print(json.dumps(ckpt.nbytes / statistics.median(taken[1:]) / 1e9))


if __name__ == "__main__":
    _child(sys.argv[1], sys.argv[2], int(sys.argv[3]))
