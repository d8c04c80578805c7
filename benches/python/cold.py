"""Cases with a cold file: it is evicted from the page cache before each run."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING, Any

import rustload

from .case import CACHE, MIB, each, safe_open, torch_load
from .loading import LoadCase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

READ_BYTES = 8 * MIB
BLOCK_BYTES = 4096

_libc = ctypes.CDLL(None, use_errno=True)


class ColdCase(LoadCase):
    """Load a whole float32 model from a cold file."""

    # The disk limits the rows, not the page size of torch's memory.
    allocates = False
    limit = "reading the file with O_DIRECT, 8 MiB at a time"

    def __init__(self, to: str, layers: int, suffix: str) -> None:
        super().__init__(to, layers, suffix)
        self.title = self.title.replace("load a", "load a cold", 1)
        self.limit = type(self).limit
        self.allocates = False

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, dtype, copies = self.path, self.dtype, self.to == "copy"

        def ours(io: Any) -> object:
            with rustload.open(path, framework="torch", io=io) as checkpoint:
                return checkpoint.materialize(dtype=dtype, copy=True)

        def finish(tensor: Any) -> Any:
            return tensor.clone() if copies else tensor.to(self.torch_dtype)

        ways: dict[str, Callable[[], Any]] = {
            "rustload": lambda: ours("auto"),
            "rustload, io='direct'": lambda: ours("direct"),
            "rustload, io='buffered'": lambda: ours("buffered"),
        }
        if self.suffix == ".bin":
            ways["torch.load(mmap=True)"] = lambda: each(torch_load(path, mmap=True), finish)
            ways["torch.load"] = lambda: each(
                torch_load(path, mmap=False), (lambda tensor: tensor) if copies else finish
            )
        else:
            ways["safe_open"] = lambda: {name: finish(tensor) for name, tensor in safe_open(path)}
        return ways

    def before(self, name: str) -> None:
        """Evicts the file from the page cache, and checks that it is evicted."""
        super().before(name)
        evict(self.path)

    def limit_probe(self) -> Callable[[], object]:
        return lambda: read_directly(self.path)

    def reason_to_skip(self) -> str | None:
        CACHE.mkdir(parents=True, exist_ok=True)
        probe = CACHE / "direct.probe"
        probe.write_bytes(bytes(BLOCK_BYTES))
        try:
            read_directly(probe)
            evict(probe)
        except OSError as error:
            return f"no O_DIRECT reads in {CACHE}: {error.strerror}"
        finally:
            probe.unlink()
        return None


def evict(path: Path) -> None:
    """Evicts a file from the page cache.

    Raises:
        OSError: Some pages stay cached.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # dirty pages cannot be evicted
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    if (share := cached_share(path)) > 0.01:
        raise OSError(0, f"{share:.0%} of the file stay in the page cache")


def cached_share(path: Path) -> float:
    """The share of a file's pages that is in the page cache."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        pages = -(-len(mapped) // mmap.PAGESIZE)
        residency = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(mapped)
        status = _libc.mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapped)), ctypes.byref(residency)
        )
        del first
        if status:
            raise OSError(ctypes.get_errno(), "mincore failed")
        return sum(byte & 1 for byte in residency) / pages


def read_directly(path: Path) -> int:
    """Reads a file with O_DIRECT into one buffer; returns the number of bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, READ_BYTES) as buffer:
            size, done = os.fstat(descriptor).st_size, 0
            while done < size:
                # The last read is short, because the file does not end at a block boundary.
                got = os.preadv(descriptor, [buffer], done)
                if got == 0:
                    break
                done += got
            return done
    finally:
        os.close(descriptor)
