"""Maps one file in several processes, and prints the memory of each: `python -m benches.ranks.shared`.

The parent opens the checkpoint and sends it to its workers as a pickle. Each views every tensor and touches every page. When
all are done, each reads its mapping in /proc/self/smaps, and the sum for the process in smaps_rollup. RSS counts a shared page in
every process; PSS divides it by the number of processes that map it.
"""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import rustload

MIB = 1 << 20
TENSOR_BYTES = 8 * MIB
PAGE_BYTES = 4096


def main() -> None:
    """Parses the command line; prints a table, or is a worker."""
    parser = argparse.ArgumentParser(prog="python -m benches.ranks.shared", description=__doc__)
    parser.add_argument("--mib", type=int, default=1200, help="the size of the file")
    parser.add_argument("--processes", default="1,2,4,8", help="numbers of processes, separated by commas")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker()
        return
    with tempfile.TemporaryDirectory() as folder:
        path = save(Path(folder), options.mib)
        print(f"{'processes':>9} {'RSS of the file':>16} {'PSS of the file':>16} {'sum of PSS':>11}   MiB")
        for count in map(int, options.processes.split(",")):
            found = measured(path, count)
            rss, pss = (sum(one[key] for one in found) / count / MIB for key in ("rss", "pss"))
            total = sum(one["process_pss"] for one in found) / MIB
            print(f"{count:9} {rss:16.1f} {pss:16.1f} {total:11.1f}", flush=True)


def save(folder: Path, mib: int) -> Path:
    """Writes a `.safetensors` file of that size."""
    count = max(1, mib * MIB // TENSOR_BYTES)
    named = {
        f"w{n}": {
            "dtype": "U8",
            "shape": [TENSOR_BYTES],
            "data_offsets": [n * TENSOR_BYTES, (n + 1) * TENSOR_BYTES],
        }
        for n in range(count)
    }
    header = json.dumps(named).encode()
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write((len(header)).to_bytes(8, "little") + header)
        for n in range(count):
            file.write(bytes([n % 251 + 1]) * TENSOR_BYTES)
    return path


def measured(path: Path, count: int, cwd: Path | None = None) -> list[dict[str, int]]:
    """What each of `count` workers says while all of them map the file; `cwd` is the folder that has `benches`."""
    data = pickle.dumps(rustload.open(path, framework="dlpack"))
    command = [sys.executable, "-m", "benches.ranks.shared", "--worker"]
    workers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=cwd)
        for _ in range(count)
    ]
    try:
        pipes = [(one.stdin, one.stdout) for one in workers if one.stdin and one.stdout]
        for put, _ in pipes:
            put.write(len(data).to_bytes(8, "little") + data)
            put.flush()
        for _, get in pipes:
            if get.readline() != b"mapped\n":
                raise SystemExit("a worker failed")
        found: list[dict[str, int]] = []
        for put, get in pipes:
            put.write(b"\n")
            put.flush()
            found.append(json.loads(get.readline()))
        return found
    finally:
        for one in workers:
            one.communicate()


def worker() -> None:
    """Views all tensors of the checkpoint that is sent, and says what memory that takes when it is asked."""
    size = int.from_bytes(sys.stdin.buffer.read(8), "little")
    ckpt = pickle.loads(sys.stdin.buffer.read(size))
    views = [memoryview(lazy.materialize(copy=False)).cast("B") for lazy in ckpt.values()]
    touched = sum(sum(view[::PAGE_BYTES]) for view in views)
    print("mapped", flush=True)
    sys.stdin.buffer.readline()
    found: dict[str, Any] = mapping(Path(ckpt.files[0]))
    found["process_pss"] = field(Path("/proc/self/smaps_rollup").read_text(), "Pss")
    print(json.dumps({**found, "touched": touched}), flush=True)
    sys.stdin.buffer.read()


def mapping(path: Path) -> dict[str, int]:
    """RSS and PSS of the mappings of a file in this process, in bytes."""
    found = {"rss": 0, "pss": 0}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.split(maxsplit=1)[0].count("-") == 1:  # the head of a mapping: addresses, and the path last
            inside = line.endswith(str(path))
        elif inside and line.startswith(("Rss:", "Pss:")):
            found[line[:3].lower()] += int(line.split()[1]) << 10
    return found


def field(text: str, name: str) -> int:
    """A field of smaps_rollup in bytes."""
    return next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
