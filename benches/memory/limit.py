"""A memory limit on one process, by a cgroup of its own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# cgroup versions 2 and 1: the root folder, the file of the memory limit, and the file of the limit including swap.
_VERSIONS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
)


@contextlib.contextmanager
def limited(process: int, nbytes: int) -> Iterator[None]:
    """Charges later allocations of the process to a new cgroup with a limit of this many bytes.

    Existing memory stays charged to its old cgroup. The new cgroup is removed after the process has ended, at the end
    of the block.

    Raises:
        OSError: No cgroup can be created here, or none with a limit.
    """
    group, limit, swap = _made()
    try:
        if swap.exists():
            # Version 1 requires the memory limit to be set before the limit of memory and swap.
            together = swap.name.startswith("memory.memsw")
            for file, most in ((limit, nbytes), (swap, nbytes if together else 0)):
                file.write_text(str(most))
        else:
            limit.write_text(str(nbytes))
        (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        group.rmdir()


def _made() -> tuple[Path, Path, Path]:
    for parent, limit, swap in _VERSIONS:
        group = parent / f"rustload-memory-{os.getpid()}"
        with contextlib.suppress(OSError):
            group.mkdir()
            if (group / limit).exists():
                return group, group / limit, group / swap
            group.rmdir()
    raise OSError("no cgroup with a memory limit can be created here")
