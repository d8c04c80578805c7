"""Which tests measure time, and a quiet machine for these: each runs while no other test does.

And how slow the machine is.

Nobody has to remember a marker. A test measures if its source reads a clock, or names a helper that does, of its file or imported
from a file beside it; the text of a child process counts as source. The memory of a process is its own, whatever else runs.
"""

import ast
import contextlib
import functools
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nobody runs tests at once
    fcntl = None  # type: ignore[assignment]

READS = re.compile(r"\b(perf_counter|monotonic|process_time)\b")
LOCKS = Path(__file__).resolve().parents[2] / ".cache"
REFERENCE_SECONDS = 0.02
MEMORY_REFERENCE_SECONDS = 0.045
"""What `_work` and `_memory` take on the machine that the bounds of the tests are for."""


def within(seconds: float, allowed: float) -> bool:
    """Whether a test took no more seconds of a core than on the reference it may: on some days all takes three times as long."""
    return seconds <= allowed or seconds <= allowed * slowness()


def crowding() -> float:
    """How many processes want each core of this machine; at least 1. For tests that measure and are not alone."""
    return max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def slowness() -> float:
    """How many times as long as the reference this machine takes for the same work now; at least 1."""
    return max(1.0, _median(_work) / REFERENCE_SECONDS, _median(_memory) / MEMORY_REFERENCE_SECONDS)


def _median(work: Callable[[], None]) -> float:
    taken = []
    for _ in range(5):
        start = time.thread_time()
        work()
        taken.append(time.thread_time() - start)
    return sorted(taken)[len(taken) // 2]


def _memory() -> None:
    """New memory from the system: a virtual machine may have slow memory while its processors are as fast as ever."""
    assert len(bytearray(b"1") * (64 << 20)) == 64 << 20


def _work() -> None:
    """Strings, dicts and a sort in Python; branches and copies in C."""
    names = {f"layers.{at // 10}.w{at % 10}": at for at in range(40_000)}
    zlib.decompress(_packed())
    assert len(sorted(names, key=len)) == len(names)


@functools.cache
def _packed() -> bytes:
    return zlib.compress(bytes((at * at) >> 3 & 7 for at in range(1 << 20)))


def measures(path: Path, nodeid: str) -> bool:
    """Whether the test of this id, in this file, measures."""
    return path.suffix == ".py" and nodeid.partition("::")[2].partition("[")[0].partition("::")[
        0
    ] in measuring(path)


@functools.cache
def measuring(path: Path) -> frozenset[str]:
    """The names of the file's top level that measure."""
    text = path.read_text(encoding="utf-8")
    if not READS.search(text) and "import" not in text:
        return frozenset()
    tree, sources, found = ast.parse(text), {}, set()
    lines = text.splitlines()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (beside := path.with_name(f"{node.module}.py")).is_file():
            found |= measuring(beside) & {alias.name for alias in node.names}
        for name in _defined(node):
            sources[name] = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    found |= {name for name, source in sources.items() if READS.search(source)}
    new = found
    while new:
        names = re.compile(rf"\b({'|'.join(map(re.escape, new))})\b")
        new = {name for name, source in sources.items() if name not in found and names.search(source)}
        found |= new
    return frozenset(found)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = (
        node.targets
        if isinstance(node, ast.Assign)
        else [node.target]
        if isinstance(node, ast.AnnAssign)
        else []
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]


@contextlib.contextmanager
def room(*, alone: bool) -> Iterator[None]:
    """A lock that many tests of this checkout hold at once, or one `alone`.

    Who asks for it waits at a turnstile, so that nobody overtakes a test that wants to be alone.
    """
    if fcntl is None:
        yield
        return
    LOCKS.mkdir(exist_ok=True)
    with (LOCKS / "turnstile").open("w") as turnstile, (LOCKS / "room").open("w") as lock:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turnstile, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)  # a process that the test forked may live on, with the file open
