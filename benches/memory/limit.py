"""A memory limit on one process, by a control group of its own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Version 2 and version 1 of control groups: where groups are, the file of the limit, and that of the limit with swap.
_VERSIONS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
)


@contextlib.contextmanager
def limited(process: int, nbytes: int) -> Iterator[None]:
    """Charges what the process allocates from now on to a group that may have this many bytes.

    What it holds already stays charged where it is. The group goes when the process has ended, at the end of the block.

    Raises:
        OSError: No group can be made here, or none with a limit.
    """
    group, limit, swap = _made()
    try:
        if swap.exists():
            # Version 1 limits memory and swap together, so it wants the other limit first.
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
    raise OSError("no control group with a memory limit can be made here")
