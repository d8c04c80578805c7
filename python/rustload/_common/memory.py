"""`memory` and `trim`: the memory that this process uses, and the memory that is available."""

from __future__ import annotations

import os
import sys
from typing import Literal, NamedTuple

from rustload import _rustload
from rustload._common.sizes import format_bytes


class Memory(NamedTuple):
    """A snapshot of memory use, in bytes.

    Attributes:
        anon: Resident anonymous memory of this process: results, Python objects, pages of views that were written to.
        file: Resident pages of mapped files, such as views that were read; the kernel reclaims them under memory pressure.
        shared: Resident shared memory.
        peak: The peak resident set size of the process, all three kinds together.
        total: The physical memory of the machine.
        available: The kernel's estimate of memory that can be used without swapping (`MemAvailable`).
        kept: Memory of freed results that is kept for new results (recycled memory); a part of `anon`. The kernel may reclaim
            all but what was freed last, 128 MiB at most (`MADV_FREE`).
        keeps: The upper bound of `kept`: an eighth of the memory or of the limit, at most 4 GiB, or the value of `RUSTLOAD_POOL`.
        limit: The tightest memory limit of this process's cgroup (version 2 or 1) and its ancestors; None if there is none.
        used: The memory that the cgroup with that limit uses, without the page cache; None without a limit.
        group: The directory of that cgroup; None without a limit.
        usable: The bytes that results may still take: the least of what the cgroup's limit, RLIMIT_AS and RLIMIT_DATA leave, and
            of `available`. Page cache that can be dropped counts, swap does not. None if the system does not say.
        bound: What bounds `usable`: `"cgroup"`, `"RLIMIT_AS"`, `"RLIMIT_DATA"` or `"machine"`.
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
    usable: int | None
    bound: Literal["cgroup", "RLIMIT_AS", "RLIMIT_DATA", "machine"] | None


def memory() -> Memory:
    """Returns the memory use of this process, anonymous memory and file pages apart, and the limit of its cgroup.

    Views use `file`, which is page cache that the kernel reclaims when needed. Owned results use `anon`, which counts against the
    limit until they are freed.

    >>> import rustload
    >>> before = rustload.memory().anon
    >>> view = rustload.open("model.safetensors")["q.weight"].materialize()
    >>> rustload.memory().anon - before < 64 << 20
    True
    """
    found = _rustload.memory()
    group = found.pop("group")
    return Memory(**found, group=None if group is None else os.fspath(group))


def headroom() -> int:
    """The bytes that results may still take (`Memory.usable`); `sys.maxsize` if the system does not say."""
    usable = memory().usable
    return sys.maxsize if usable is None else usable


def usable_text(usable: int | None, bound: str | None) -> str:
    """What a process here may still take, for people: `3.2 GiB are left (cgroup)`."""
    return "what is left is unknown" if usable is None else f"{format_bytes(usable)} are left ({bound})"


def trim() -> int:
    """Returns recycled memory, which is kept from freed results for new ones, to the system.

    Results of 2 MiB and more reuse the memory of earlier results, which is several times as fast to write to as fresh memory,
    because its pages are already mapped. Recycled memory is bounded (`Memory.keeps`), never raises the process's peak, and can be
    reclaimed by the kernel, but for the last 128 MiB. Memory that was idle for half a minute is freed when the next result is
    made or freed. A forked child starts with none.

    Returns:
        The number of bytes that were freed.

    >>> import rustload
    >>> rustload.trim() >= 0
    True
    >>> rustload.memory().kept
    0
    """
    return _rustload.trim()
