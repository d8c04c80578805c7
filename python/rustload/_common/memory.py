"""`memory` and `trim`: what this process uses, and how much there is."""

from __future__ import annotations

import os
from typing import NamedTuple

from rustload import _rustload

__all__ = ["Memory", "memory", "trim"]


class Memory(NamedTuple):
    """Memory in bytes, as the system counts it at one moment.

    Attributes:
        anon: Anonymous memory of this process that is resident: results, Python's objects, edited pages of views.
        file: Resident pages of mapped files, such as views that were looked at; the system takes them back when it needs to.
        shared: Resident shared memory.
        peak: The most that was ever resident at once, of all three kinds.
        total: All memory of the machine.
        available: What the system says could be used without swapping.
        kept: Memory of results that were dropped, kept for the next ones; a part of `anon`. The system may take it at any time.
        keeps: The most that is kept: an eighth of the memory or of the limit, 4 GiB at most, or what `RUSTLOAD_POOL` says.
        limit: The tightest memory limit on this process's cgroup (version 2 or 1) or one around it; None without one.
        used: What that cgroup uses of it, without the page cache; None without a limit.
        group: The folder of that cgroup; None without a limit.
    """

    anon: int
    file: int
    shared: int
    peak: int
    total: int
    available: int
    kept: int
    keeps: int
    limit: int | None
    used: int | None
    group: str | None


def memory() -> Memory:
    """What this process uses, anonymous memory and file pages apart, and what its cgroup allows.

    Views cost `file`, which is the page cache and goes when others need it; owned results cost `anon`, which counts against
    the limit until they are dropped.

    >>> import rustload
    >>> before = rustload.memory().anon
    >>> view = rustload.open("model.safetensors")["q.weight"].materialize()
    >>> rustload.memory().anon - before < 64 << 20
    True
    """
    found = _rustload.memory()
    group = found.pop("group")
    return Memory(**found, group=None if group is None else os.fspath(group))


def trim() -> int:
    """Gives the memory of dropped results, which is kept for the next ones, back to the system.

    Results of 2 MiB and more are made in memory that earlier ones have left, which is several times as fast to write to as fresh
    memory. What is left is bounded (`Memory.keeps`), never raises the process's peak, is taken by the system when it needs it,
    and goes when it lay idle for half a minute and another result comes or goes. A forked child starts without.

    Returns:
        How many bytes were given back.

    >>> import rustload
    >>> rustload.trim() >= 0
    True
    >>> rustload.memory().kept
    0
    """
    return _rustload.trim()
