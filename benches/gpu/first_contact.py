"""The first three minutes on a GPU: facts, limits, rings and workers, small tensors, casts, captures, forks. One line per fact.

    python -m benches.gpu.first_contact DIR [--device cuda:0] [--scale 1] [--json OUT]

DIR should be on a tmpfs with 10 GB. Each question is a process of its own with a time limit, so that one failure costs one line.
With `--device cpu` and a small scale it runs without a GPU, and skips what needs one.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
ITEMSIZE = {"BF16": 2, "F32": 4}
# Seconds for one question.
TIME_LIMIT = 60
# Seconds after which no question is asked any more.
END = 8 * 60
# Bytes of a slot and number of slots.
RINGS = ("2097152x24", "1048576x16", "1048576x36", "2097152x36", "2097152x48", "4194304x36")
FACTS = (
    "uname -r",
    "lscpu | grep -E 'Model name|Thread|Core|Socket|L2|L3|NUMA'",
    "cat /sys/devices/system/cpu/cpu0/cache/index3/size",
    "free -g | head -2",
    "df -h . /dev/shm",
    "cat /sys/kernel/mm/transparent_hugepage/enabled /sys/kernel/mm/transparent_hugepage/shmem_enabled",
    "nvidia-smi --query-gpu=name,driver_version,memory.used,mig.mode.current --format=csv",
    "nvidia-smi --query-gpu=pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current --format=csv",
    "nvidia-smi topo -m | head -4",
)


def main(arguments: list[str] | None = None) -> int:
    """Asks all questions, each in a child; returns 1 if one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benches.gpu.first_contact", description=__doc__.splitlines()[0]
    )
    parser.add_argument("dir", type=Path, metavar="DIR", help="where to make the files, which are kept")
    parser.add_argument("--device", default="cuda:0", help="the GPU, or cpu")
    parser.add_argument("--scale", type=float, default=1, help="of the sizes of the files")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the answers to this file")
    parser.add_argument("--ask", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.ask:
        kind, *rest = json.loads(args.ask)
        print(json.dumps(ANSWERS[kind](args.device, *rest)))
        return 0
    begun = time.monotonic()
    for command in FACTS:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        print(done.stdout.strip() or f"({command.partition(' ')[0]}: nothing)")
    print(f"memory touched for the first time: {touch(max(1, int(16 * args.scale))):.1f} GB/s", flush=True)
    files = list(write_files(args.dir, args.scale))
    print(f"files after {time.monotonic() - begun:.0f} s", flush=True)
    answers = []
    for title, question, environment in questions(files, has_gpu=args.device != "cpu"):
        if time.monotonic() - begun > END:
            print(f"left out: {title}")
            continue
        answer = ask(args, question, environment)
        answers.append({"title": title, "answer": answer})
        print(f"{title:<54}{answer}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(answers, indent=1))
    print(f"({time.monotonic() - begun:.0f} s)")
    return int(any(isinstance(one["answer"], str) for one in answers))


def questions(files: list[Path], *, has_gpu: bool) -> Iterator[tuple[str, list[Any], dict[str, str]]]:
    """The title, the question and the environment of each; the most important ones first."""
    model, moe, wide = map(str, files)
    if has_gpu:
        yield "pinned H2D copies, GB/s by size", ["limit"], {}
    yield "a model, defaults", ["load", model, None, None, "auto"], {}
    yield "18,000 tensors of 256 KiB, defaults", ["load", moe, None, None, "auto"], {}
    if has_gpu:
        yield "tiny tensors, one call each", ["tiny", moe], {}
        yield "graph capture", ["capture", model], {}
        yield "a forked child", ["fork", model], {}
    yield "bfloat16 to float32 (by the GPU)", ["load", model, None, "float32", "auto"], {}
    yield (
        "a model, threads on all NUMA nodes",
        ["load", model, None, None, "auto"],
        {"RUSTLOAD_UPLOAD_CPUS": "all"},
    )
    for cast in ("auto", "gpu", "cpu"):
        yield f"float32 to bfloat16, cast={cast}", ["load", wide, None, "bfloat16", cast], {}
    for threads in (8, 12, 16):
        ring = {"RUSTLOAD_RING": "2097152x48"}
        yield (
            f"float32 to bfloat16, cast=cpu, {threads} workers",
            ["load", wide, threads, "bfloat16", "cpu"],
            ring,
        )
    for slots in RINGS:
        for threads in (8, 12, 16):
            yield (
                f"a model, ring {slots}, {threads} workers",
                ["load", model, threads, None, "auto"],
                {"RUSTLOAD_RING": slots},
            )


def ask(args: argparse.Namespace, question: list[Any], environment: dict[str, str]) -> Any:
    """The answer of a child, or a text that says why there is none."""
    command = [sys.executable, "-m", "benches.gpu.first_contact", str(args.dir), "--device", args.device]
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", **environment}
    try:
        done = subprocess.run(
            [*command, "--ask", json.dumps(question)],
            env=env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"FAILED: no answer after {TIME_LIMIT} s"
    if done.returncode:
        return "FAILED: " + (done.stderr.strip().splitlines() or ["no message"])[-1]
    return json.loads(done.stdout.splitlines()[-1])


def touch(gib: int) -> float:
    """GB/s at which fresh memory is touched: on some machines it is slow at first, which would spoil the first figures."""
    start, held = time.perf_counter(), []
    for _ in range(gib):
        memory = mmap.mmap(-1, GIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, GIB, 4 * KIB):
            memory[at] = 1
        held.append(memory)
    return gib * GIB / (time.perf_counter() - start) / 1e9


def write_files(folder: Path, scale: float) -> Iterator[Path]:
    """A model of 300 tensors, one of 18,000, and four float32 tensors of 256 MiB."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count, rows, columns, dtype in (
        ("model", int(300 * scale), 2048, 3584, "BF16"),
        ("moe", int(18_000 * scale), 256, 512, "BF16"),
        ("wide", 4, int(4096 * scale), 16384, "F32"),
    ):
        count, rows = max(1, count), max(1, rows)  # noqa: PLW2901 - bounded
        path = folder / f"first-contact-{name}-{count}x{rows}x{columns}.safetensors"
        if not path.exists():
            nbytes = rows * columns * ITEMSIZE[dtype]
            header = {
                f"model.layers.{at}.weight": {
                    "dtype": dtype,
                    "shape": [rows, columns],
                    "data_offsets": [at * nbytes, (at + 1) * nbytes],
                }
                for at in range(count)
            }
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            # Small numbers: no NaN, so that casts are those of ordinary weights.
            block, left = bytes(range(60)) * (1 << 18), count * nbytes
            with path.with_suffix(".unfinished").open("wb", buffering=0) as file:
                file.write(len(text).to_bytes(8, "little") + text)
                while left:
                    left -= file.write(block[: min(left, len(block))])
            path.with_suffix(".unfinished").rename(path)
        yield path


def load(device: str, path: str, threads: int | None, dtype: str | None, cast: Any) -> dict[str, float]:
    """Times `Checkpoint.materialize`: one first load, then the median of six."""
    import torch

    import rustload

    taken: list[float] = []
    nbytes = count = 0
    for _ in range(7):
        start = time.perf_counter()
        with rustload.open(path, framework="torch") as ckpt:
            nbytes, count = ckpt.nbytes, len(ckpt)
            state = ckpt.materialize(
                device=device, dtype=dtype, threads=threads, cast=cast, copy=True if device == "cpu" else None
            )
        if device != "cpu":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - start)
        del state
    median = statistics.median(taken[1:])
    return {
        "GB/s": round(nbytes / median / 1e9, 2),
        "ms": round(median * 1e3, 1),
        "us per tensor": round(median / count * 1e6, 1),
        "first ms": round(taken[0] * 1e3),
    }


def limit(device: str) -> dict[str, float]:
    """GB/s of copies from pinned memory, by the size of a copy."""
    from benches.gpu import probes

    return {
        f"{size // KIB} KiB": round(GIB / probes.median(probes.pinned_copies(device, size, GIB)) / 1e9, 1)
        for size in (256 * KIB, MIB, 2 * MIB, 256 * MIB)
    }


def tiny(device: str, path: str) -> dict[str, float]:
    """Device memory and time of 200 results of some bytes, each by a call of its own."""
    import torch

    import rustload

    with rustload.open(path, framework="torch") as ckpt:
        handles = [ckpt[name][:1, :16] for name in list(ckpt)[:200]]
        kept = [handle.materialize(device) for handle in handles[:20]]
        before, start = torch.cuda.memory_allocated(device), time.perf_counter()
        kept += [handle.materialize(device) for handle in handles]
        taken = time.perf_counter() - start
        nbytes = torch.cuda.memory_allocated(device) - before
    return {
        "KiB per tensor": round(nbytes / len(handles) / KIB, 1),
        "us each": round(taken / len(handles) * 1e6),
    }


def capture(device: str, path: str) -> dict[str, str]:
    """What becomes of a load into a graph capture, and of the capture: before the process has a ring, and after."""
    import torch

    import rustload

    handle = next(iter(rustload.open(path, framework="torch").values()))
    found = {}
    for when in ("before the ring", "with a ring"):
        graph, counter = torch.cuda.CUDAGraph(), torch.zeros(4, device=device)
        outcome = ""
        try:
            with torch.cuda.graph(graph):
                counter.add_(1)
                try:
                    handle.materialize(device)
                    outcome = "NOT refused"
                except Exception as error:  # noqa: BLE001 - it is the answer
                    outcome = type(error).__name__
            graph.replay()
            torch.cuda.synchronize(device)
            outcome += ", capture survives" if counter.tolist() == [1.0] * 4 else ", graph is WRONG"
        except Exception as error:  # noqa: BLE001 - it is the answer
            outcome += f", capture LOST: {type(error).__name__}"
        found[when] = outcome
        torch.cuda.synchronize(device)
        handle.materialize(device)
    return found


def fork(device: str, path: str) -> dict[str, str]:
    """What a forked child is told: after torch alone used CUDA, and after rustload did."""
    import torch

    import rustload

    torch.zeros(1, device=device)
    found = {}
    for when in ("torch alone", "rustload too"):
        handle = next(iter(rustload.open(path, framework="torch").values()))
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            text = "no error"
            try:
                handle.materialize(device)
            except BaseException as error:  # noqa: BLE001 - it is the answer
                text = f"{type(error).__name__}: {error}"
            os.write(writing, text[:120].encode())
            os._exit(0)
        os.close(writing)
        found[when] = os.read(reading, 200).decode()
        os.close(reading)
        os.waitpid(child, 0)
        handle.materialize(device)
    return found


ANSWERS: dict[str, Callable[..., Any]] = {
    "load": load,
    "limit": limit,
    "tiny": tiny,
    "capture": capture,
    "fork": fork,
}

if __name__ == "__main__":
    sys.exit(main())
