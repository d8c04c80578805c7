"""Runs one loader in a process of its own and samples that process's memory from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benches.memory.limit import limited

ROOT = Path(__file__).resolve().parents[2]
INTERVAL = 0.002


@dataclasses.dataclass
class Curve:
    """The measurements of one run, above the process's size after its imports; sizes in bytes.

    Attributes:
        times: Seconds since the load began.
        anonymous: Memory that the process allocated and touched.
        file: Pages of mapped files that it has touched.
        seconds: How long the load took, by the process's own clock.
        digest: A hash of every parameter's bits.
    """

    times: list[float]
    anonymous: list[int]
    file: list[int]
    seconds: float
    digest: str

    @property
    def peak(self) -> int:
        """The peak of both together."""
        return max(a + f for a, f in zip(self.anonymous, self.file, strict=True))

    @property
    def peak_anonymous(self) -> int:
        """The peak of anonymous memory."""
        return max(self.anonymous)

    @property
    def end(self) -> int:
        """Both together at the end."""
        return self.anonymous[-1] + self.file[-1]


def run(way: str, folder: Path, dtype: str, limit: int | None = None) -> Curve | None:
    """Runs once in a fresh process, with at most `limit` bytes above its size after its imports.

    Returns:
        The measurements; None if the process was killed at the limit.

    Raises:
        RuntimeError: The process failed.
        OSError: No limit can be set here.
    """
    command = [sys.executable, "-m", "benches.memory.sample", way, str(folder), dtype]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=env
    )
    assert child.stdin is not None
    assert child.stdout is not None
    if child.stdout.readline() != "ready\n":
        raise RuntimeError(f"{way}: the process ended with {child.wait()} before it began")
    with contextlib.ExitStack() as stack:
        if limit is not None:
            stack.enter_context(limited(child.pid, limit))
        stack.callback(child.wait)
        return _sampled(way, child, is_limited=limit is not None)


def _sampled(way: str, child: subprocess.Popen[str], *, is_limited: bool) -> Curve | None:
    assert child.stdin is not None
    assert child.stdout is not None
    status = Path(f"/proc/{child.pid}/status")
    base = _memory(status)
    times, anonymous, file = [0.0], [0], [0]
    child.stdin.write("go\n")
    child.stdin.flush()
    start = time.perf_counter()
    os.set_blocking(child.stdout.fileno(), False)
    line = ""
    while not line:
        time.sleep(INTERVAL)
        now = _memory(status)
        times.append(time.perf_counter() - start)
        anonymous.append(now[0] - base[0])
        file.append(now[1] - base[1])
        line = child.stdout.readline()
        if not line and child.poll() is not None:
            if is_limited and child.returncode == -signal.SIGKILL:
                return None
            raise RuntimeError(f"{way}: the process ended with {child.returncode}")
    os.set_blocking(child.stdout.fileno(), True)
    child.stdin.write("hash\n")
    child.stdin.flush()
    digest = child.stdout.readline().strip()
    child.stdin.close()
    return Curve(times, anonymous, file, float(line), digest)


def _memory(status: Path) -> tuple[int, int]:
    found = {"RssAnon": 0, "RssFile": 0}
    for line in status.read_text().splitlines():
        key, _, value = line.partition(":")
        if key in found:
            found[key] = int(value.split()[0]) << 10
    return found["RssAnon"], found["RssFile"]


def _child(way: str, folder: Path, dtype: str) -> None:
    import torch
    import transformers

    import rustload.transformers  # noqa: F401 - imports are not measured
    from benches.memory.ways import WAYS

    transformers.utils.logging.disable_progress_bar()
    _ = transformers.LlamaForCausalLM, transformers.LlamaConfig
    torch.ones(2048, 2048).to(torch.bfloat16)  # starts torch's threads
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    model = WAYS[way](folder, getattr(torch, dtype))
    taken = time.perf_counter() - start
    time.sleep(5 * INTERVAL)  # the end is sampled too
    print(taken, flush=True)
    sys.stdin.readline()
    hashed = hashlib.sha256()
    for name, parameter in model.named_parameters():
        hashed.update(name.encode())
        hashed.update(parameter.detach().contiguous().view(torch.uint8).numpy().data)
    print(hashed.hexdigest(), flush=True)


if __name__ == "__main__":
    _child(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
