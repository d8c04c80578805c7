"""What rustload itself costs per tensor, without a GPU: time and driver calls of loads on the fake driver of the tests.

    python -m benches.gpu.overhead [--quick] [--json OUT]

Needs a C compiler, torch (any build) and pytest. What counts: the CPU time of the caller's thread per tensor, and the calls and
copies of the driver. Not counted in that time is what torch does on a GPU, and the tests do in its place: allocations, and
tensors made of a slab's memory; nor the cyclic garbage collector, which is off. The wall time says nothing about a GPU: the fake
driver's streams are threads, so each copy takes turns on the cores with the thread that filled its slot. "queued" is the
part of the time of all threads in which they could have run and had no core. "queries" are those of events: a slot that is still
being copied is queried again and again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests" / "python"
KIB, MIB = 1 << 10, 1 << 20
# Title, number of tensors, bytes of each, dtype of the file, dtype of the result.
CASES = (
    ("18,000 x 4 KiB", 18_000, 4 * KIB, "float32", None),
    ("2,000 x 4 KiB", 2_000, 4 * KIB, "float32", None),
    ("2,000 x 256 KiB", 2_000, 256 * KIB, "float32", None),
    ("500 x 1 MiB", 500, MIB, "float32", None),
    ("100 x 3 MiB", 100, 3 * MIB, "float32", None),
    ("1 x 256 MiB", 1, 256 * MIB, "float32", None),
    ("2,000 x 64 KiB to bfloat16", 2_000, 64 * KIB, "float32", "bfloat16"),
    ("1 x 256 MiB to bfloat16", 1, 256 * MIB, "float32", "bfloat16"),
)


def main() -> int:
    """Builds the fake driver, and runs each case in a process of its own."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.gpu.overhead", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the tensors: a smoke test")
    parser.add_argument(
        "--filter", default="", metavar="TEXT", help="only the cases whose title contains TEXT"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="loads of each case after the first one"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the results to this file")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.case:
        print(json.dumps(_measure(*json.loads(args.case))))
        return 0
    found = []
    times = f"{'own us':>9}{'all CPU us':>11}{'wall us':>11}{'queued us':>11}"
    counts = f"{'calls':>9}{'queries':>9}{'copies':>8}{'MiB/copy':>9}"
    print(f"{'per tensor; copies in all':<30}{times}{counts}")
    with tempfile.TemporaryDirectory(prefix="rustload-overhead-") as folder:
        library = Path(folder) / "libcuda.so.1"
        source = ROOT / "tests" / "data" / "fakecuda" / "fakecuda.c"
        options = ["-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1"]
        subprocess.run(["cc", *options, "-o", str(library), str(source)], check=True)
        path = os.pathsep.join([str(TESTS / "cuda"), str(TESTS), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "RUSTLOAD_LIBCUDA": str(library), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        for title, count, size, dtype, result in CASES:
            if args.filter not in title:
                continue
            number = max(1, count // 10) if args.quick else count
            case = json.dumps([folder, number, size, dtype, result, 1 if args.quick else args.rounds])
            command = [sys.executable, "-m", "benches.gpu.overhead", "--case", case]
            done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.returncode:
                print(
                    f"{title:<30}failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}",
                    flush=True,
                )
                found.append({"case": title, "failed": done.stderr})
                continue
            one = {"case": title, **json.loads(done.stdout.splitlines()[-1])}
            found.append(one)
            print(
                f"{title:<30}{one['own_us']:>9.2f}{one['cpu_us']:>11.2f}{one['wall_us']:>11.2f}{one['queued_us']:>11.2f}"
                f"{one['calls']:>9.2f}{one['queries']:>9.2f}{one['copies']:>8}{one['copy_mib']:>9.2f}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))
    return int(any("failed" in one for one in found))


def _measure(
    folder: str, count: int, size: int, dtype: str, result: str | None, rounds: int
) -> dict[str, Any]:
    import gc

    import fakecuda  # type: ignore[import-not-found]  # a helper of the tests
    import hostgpu  # type: ignore[import-not-found]  # another one
    import pytest
    import safetensors.torch
    import torch

    import rustload

    path = Path(folder) / f"{count}x{size}.safetensors"
    if not path.exists():
        one = torch.randn(size // 4).to(getattr(torch, dtype))
        safetensors.torch.save_file({f"model.layers.{n:05}.weight": one.clone() for n in range(count)}, path)
    # The CPU time of what is torch's on a GPU, and its calls.
    torchs: list[Any]

    def timed(work: Any) -> Any:
        def run(*args: Any) -> Any:
            start = time.thread_time()
            try:
                return work(*args)
            finally:
                torchs[0] += time.thread_time() - start
                torchs[1] += 1

        return run

    # The measurement itself, per call.
    torchs = [0.0, 0]
    nothing, begun = timed(lambda: None), time.thread_time()
    for _ in range(20_000):
        nothing()
    measuring = (time.thread_time() - begun) / 20_000

    # Memory of earlier loads is used again, as by torch's caching allocator.
    memory: list[tuple[torch.Tensor, Any]] = []
    left: list[tuple[torch.Tensor, Any]] = []
    new = hostgpu.HostGpu.new

    def reused(gpu: Any, shape: Any, dtype: str, upload: Any) -> tuple[torch.Tensor, Any]:
        if left:
            row, view = left.pop()
        else:
            row, view = new(gpu, [shape_bytes(shape, dtype)], "uint8", upload)
            memory.append((row, view))
        assert view.nbytes == shape_bytes(shape, dtype)
        return row.view(getattr(torch, dtype)).view(tuple(shape)), view

    def shape_bytes(shape: Any, dtype: str) -> int:
        return int(math.prod(shape)) * int(getattr(torch, dtype).itemsize)

    taken: dict[str, list[float]] = {"own_us": [], "cpu_us": [], "wall_us": [], "queued_us": []}
    with pytest.MonkeyPatch.context() as patch:
        hostgpu.install(patch)
        patch.setattr(hostgpu.HostGpu, "new", reused)
        for name in ("new", "wrap"):
            patch.setattr(hostgpu.HostGpu, name, timed(getattr(hostgpu.HostGpu, name)))
        names = list(fakecuda.functions())
        ckpt = rustload.open(path, framework="torch")
        for _ in range(rounds + 1):
            torchs[:] = 0.0, 0
            left[:] = reversed(memory)
            gc.collect()
            gc.disable()
            before = {name: fakecuda.count(name) for name in (*names, "copies", "bytes")}
            start = time.thread_time(), time.process_time(), time.perf_counter(), _queued()
            state = ckpt.materialize(device="cuda", dtype=result)
            end = time.thread_time(), time.process_time(), time.perf_counter(), _queued()
            gc.enable()
            after = {name: fakecuda.count(name) for name in before}
            for column, first, last in zip(taken, start, end, strict=True):
                without = torchs[0] + measuring * torchs[1] if column != "queued_us" else 0.0
                taken[column].append((last - first - without) / count * 1e6)
            assert len(state) == count
            del state
    calls = {name: after[name] - before[name] for name in names}
    copies = after["copies"] - before["copies"]
    return {
        # Without the first load, which creates the ring. Other processes only make the caller's thread slower.
        **{name: statistics.median(figures[1:]) for name, figures in taken.items()},
        "own_us": min(taken["own_us"][1:]),
        # Queries depend on how long copies take, not on what is loaded.
        "calls": (sum(calls.values()) - calls["cuEventQuery"]) / count,
        "queries": calls["cuEventQuery"] / count,
        "by_function": {name: number for name, number in calls.items() if number},
        "copies": copies,
        "copy_mib": (after["bytes"] - before["bytes"]) / max(copies, 1) / MIB,
    }


def _queued() -> float:
    """Seconds that the threads of this process have waited for a core."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that ends meanwhile
            found += int((task / "schedstat").read_text().split()[1])
    return found / 1e9


if __name__ == "__main__":
    sys.exit(main())
