"""Measures the peak memory of a load, sampled whenever a tensor is finished or a window is full."""

from __future__ import annotations

import os
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")


class PeakMemory:
    """The peak growth of the process's anonymous memory, and of torch's allocations on GPUs."""

    def __init__(self) -> None:
        """Takes the current values as the baseline."""
        self._page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0  # Windows
        self._host = self._anonymous()
        self._host_peak = self._host
        self._devices = _allocated()
        self._devices_peak = self._devices

    def sample(self) -> None:
        """Samples both values."""
        now = self._anonymous()
        if now is not None and self._host_peak is not None:
            self._host_peak = max(self._host_peak, now)
        if _in_use():
            self._devices_peak = max(self._devices_peak, _allocated())

    @property
    def host(self) -> int | None:
        """Peak growth on the host in bytes; None if /proc is not available."""
        return None if self._host is None or self._host_peak is None else self._host_peak - self._host

    @property
    def device(self) -> int | None:
        """Peak growth on all GPUs together in bytes; None if CUDA is not initialized."""
        return self._devices_peak - self._devices if _in_use() else None

    def _anonymous(self) -> int | None:
        try:
            # proc(5): resident includes file-backed pages.
            _, resident, shared, *_ = _STATM.read_text().split()
        except OSError:
            return None
        return (int(resident) - int(shared)) * self._page


def _in_use() -> bool:
    """Whether CUDA is initialized; does not initialize it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _allocated() -> int:
    if not _in_use():
        return 0
    return sum(torch.cuda.memory_allocated(number) for number in range(torch.cuda.device_count()))
