"""Measures time and memory so that the figures are usable on a shared machine.

- Loaders of one case run interleaved, each round in another order, so that temporary load affects all of them;
  figures are medians.
- On a virtual machine, memory that was free for a while may have been reclaimed by the host, and the next first
  touch is slow. So an arena is touched and freed right before each timed run,
  and nothing ever sleeps.
- A result is dropped outside the timed part and before the next arena.
- Peaks are of anonymous memory, above the process's size before, each in a process of its own that
  is sampled from outside: a sampling thread inside would wait for the GIL and miss what happens while
  it is held.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import multiprocessing
import random
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from multiprocessing.connection import Connection

MILLISECOND = 1e-3
SHORTEST_RUN_SECONDS = 5 * MILLISECOND
ROUNDS_MIN = 3

_libc = ctypes.CDLL(None)


def anonymous_bytes(pid: int | str = "self") -> int:
    """Returns the resident anonymous memory of a process in bytes, without file pages."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0  # the process has just ended


def touch_arena(nbytes: int) -> None:
    """Allocates `nbytes` of memory from the system, writes to all of it and frees it."""
    if nbytes <= 0:
        return
    with mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as arena:
        arena.madvise(mmap.MADV_HUGEPAGE)
        first = ctypes.c_char.from_buffer(arena)
        ctypes.memset(ctypes.addressof(first), 1, nbytes)
        del first


def settle(nbytes: int) -> None:
    """Puts the process into the state before every timed run: `nbytes` of free memory are backed by the host."""
    gc.collect()
    _libc.malloc_trim(0)
    touch_arena(nbytes)


def read_through(*files: Path) -> None:
    """Reads files into the page cache, so that loads are warm."""
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


@dataclass(frozen=True)
class FreshRun:
    """What a loader took in a process of its own: a way may return it, and is then not timed from outside."""

    seconds: float
    cpu: float
    """The processor time of the process, in seconds."""
    anonymous: int
    """The anonymous memory that it held at the end, with the result alive."""


@dataclass
class Times:
    """The seconds that one loader took, round by round."""

    seconds: list[float] = field(default_factory=list)
    fresh: list[FreshRun] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median round."""
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The difference between the slowest and the fastest round, relative to the median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


def interleave(
    ways: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    arena: int,
    budget: float = float("inf"),
    before: Callable[[str], None] = lambda _name: None,
) -> dict[str, Times]:
    """Times every loader once per round, in another order in each, because a loader finds what the one before it has freed.

    Args:
        ways: The loaders to time, by name. Each has run once before, so that nothing is timed cold.
        rounds: The number of rounds.
        arena: Bytes of memory to touch and free before each timed run.
        budget: Seconds after which no further round is started, after at least three.
        before: Called with a loader's name before each run, untimed.

    Returns:
        The times by name. A loader that takes less than a few milliseconds is repeated within a round.
    """
    times = {name: Times() for name in ways}
    repeats = {name: _repeats(way) for name, way in ways.items()}
    names = list(ways)
    end = time.monotonic() + budget
    for start in range(rounds):
        if start >= ROUNDS_MIN and time.monotonic() > end:
            break
        for name in random.Random(start).sample(names, len(names)):
            before(name)
            settle(arena)
            taken, result = _seconds(ways[name], repeats[name])
            if isinstance(result, FreshRun):
                times[name].fresh.append(result)
                taken = result.seconds
            times[name].seconds.append(taken)
            del result
    return times


def _repeats(way: Callable[[], object]) -> int:
    once, _ = _seconds(way, 1)
    return max(1, min(1000, round(SHORTEST_RUN_SECONDS / once)))


def _seconds(way: Callable[[], object], repeats: int) -> tuple[float, object]:
    if repeats == 1:
        start = time.perf_counter()
        result = way()
        return time.perf_counter() - start, result
    start = time.perf_counter()
    for _ in range(repeats):
        way()
    return (time.perf_counter() - start) / repeats, None


_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["torch", "safetensors.torch", "rustload"])


def in_child(work: Callable[..., Any], *args: object) -> tuple[Any, int]:
    """Runs `work(begin, *args)` in a fresh process that has torch imported but has not used it.

    Args:
        work: A module-level function. It prepares, calls `begin()`, does the measured work and returns a
            value while it still holds its results.
        args: Its arguments after `begin`.

    Returns:
        Its return value, and the peak of its anonymous memory since `begin()`, above its size then.
    """
    parent_end, child_end = _processes.Pipe()
    child = _processes.Process(target=_child, args=(child_end, work, args), daemon=True)
    child.start()
    child_end.close()
    try:
        _expect(parent_end, "begin")
        start = peak = anonymous_bytes(child.pid or 0)
        parent_end.send("go")
        while not parent_end.poll(MILLISECOND):
            peak = max(peak, anonymous_bytes(child.pid or 0))
        return _expect(parent_end, "result"), peak - start
    finally:
        parent_end.close()
        child.join()


def _child(parent: Connection, work: Callable[..., Any], args: tuple[object, ...]) -> None:
    def begin() -> None:
        parent.send(("begin", None))
        parent.recv()

    try:
        parent.send(("result", work(begin, *args)))
    except Exception as error:  # noqa: BLE001 - it is raised again in the parent
        parent.send(("error", f"{type(error).__name__}: {error}"))


def _expect(child: Connection, kind: str) -> Any:
    try:
        got, value = child.recv()
    except EOFError:
        raise RuntimeError("the measured process died") from None
    if got != kind:
        raise RuntimeError(f"in the measured process: {value}")
    return value
