"""Measures the bandwidth of the link, the memories and the page cache: the limits that cases are compared with."""

from __future__ import annotations

import ctypes
import mmap
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

KIB, MIB = 1 << 10, 1 << 20
ROUNDS = 5


def probes(file: Path, device: str, *, quick: bool) -> Iterator[tuple[str, float, str]]:
    """Yields the name of a measurement, its value and unit; reads all of `file` first."""
    total = (64 if quick else 1024) * MIB
    for size in (64 * KIB, 256 * KIB, MIB, 2 * MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB):
        if size <= total:
            rate = total / median(pinned_copies(device, size, total))
            yield f"host to device, pinned, {_size(size)} at a time", rate / 1e9, "GB/s"
    yield "host to device, pageable", total / median(pageable_copy(device, total)) / 1e9, "GB/s"
    yield "device to device", total / median(device_copy(device, total)) / 1e9, "GB/s copied"
    yield "cast on the CPU, float32 to bfloat16", total / median(cpu_cast(total)) / 1e9, "GB/s of float32"
    for ring in (8, 16, 32, 64, 256):
        for threads in (1, 4, 8, 16):
            if ring * MIB <= total and threads <= (os.cpu_count() or 1):
                rate = ring_fill(file, ring * MIB, threads, total)
                yield f"fill of a pinned ring of {ring} MiB by {threads} threads", rate / 1e9, "GB/s"
    for size in (16, 64, 256):
        yield f"pinning {size} MiB that are touched", pin(size * MIB) * 1e3, "ms"


def median(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    """The median of some rounds, in seconds, after one warm-up round."""
    work()
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def pinned_copies(device: str, size: int, total: int) -> Callable[[], None]:
    """Copies `total` bytes from pinned memory, `size` at a time, on a stream of its own."""
    size = min(size, total)
    source = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device=device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)

    def copy() -> None:
        with torch.cuda.stream(stream):
            left = total
            while left > 0:
                part = min(left, size)
                target[:part].copy_(source[:part], non_blocking=True)
                left -= part
        stream.synchronize()

    return copy


def pageable_copy(device: str, total: int) -> Callable[[], object]:
    """Copies `total` bytes from touched pageable memory."""
    source = torch.ones(total, dtype=torch.uint8)
    target = torch.empty(total, dtype=torch.uint8, device=device)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize(device)

    return copy


def device_copy(device: str, total: int) -> Callable[[], object]:
    """Copies `total` bytes within the device."""
    source = torch.ones(total, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize(device)

    return copy


def cpu_cast(total: int) -> Callable[[], object]:
    """Casts `total` bytes of float32 to bfloat16 by torch and all threads, between touched buffers."""
    source = torch.ones(total // 4)
    target = torch.ones(total // 4, dtype=torch.bfloat16)
    return lambda: target.copy_(source)


def ring_fill(file: Path, ring: int, threads: int, total: int) -> float:
    """Bytes per second of positional reads from the page cache into reused pinned memory."""
    memory = torch.empty(ring, dtype=torch.uint8, pin_memory=True).numpy()
    each = ring // threads
    slot = min(2 * MIB, each)
    size = file.stat().st_size // slot * slot
    descriptor = os.open(file, os.O_RDONLY)

    def fill(number: int) -> None:
        at = 0
        for read in range(total // threads // slot):
            start = number * each + at
            os.preadv(
                descriptor, [memory[start : start + slot].data], (number + read * threads) * slot % size
            )
            at = (at + slot) % (each // slot * slot)

    try:
        with ThreadPoolExecutor(threads) as pool:
            seconds = median(lambda: list(pool.map(fill, range(threads))))
    finally:
        os.close(descriptor)
    return total // threads // slot * slot * threads / seconds


def pin(size: int) -> float:
    """Seconds that the driver takes to pin fresh, touched memory; the median of some rounds."""
    cudart: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    taken = []
    for _ in range(ROUNDS):
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)
            first = ctypes.c_char.from_buffer(memory)
            address = ctypes.addressof(first)
            ctypes.memset(address, 1, size)
            start = time.perf_counter()
            torch.cuda.check_error(int(cudart.cudaHostRegister(address, size, 0)))
            taken.append(time.perf_counter() - start)
            torch.cuda.check_error(int(cudart.cudaHostUnregister(address)))
            del first
    return statistics.median(taken)


def _size(nbytes: int) -> str:
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // KIB} KiB"
