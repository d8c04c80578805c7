"""Reduces a find to fewer bytes that show it still."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS_MAX = 60.0


def shrunk(data: bytes, shows: Callable[[bytes], bool]) -> bytes:
    """The shortest file found in a minute that `shows` accepts, with as many NULs as possible."""
    end = time.monotonic() + SECONDS_MAX
    for change in (_without_part, _with_nuls):
        size = len(data) // 2
        while size > 0:
            for at in range((len(data) - 1) // size * size, -1, -size):
                candidate = change(data, at, size)
                if time.monotonic() < end and candidate != data and shows(candidate):
                    data = candidate
            size //= 2
    return data


def _without_part(data: bytes, at: int, size: int) -> bytes:
    return data[:at] + data[at + size :]


def _with_nuls(data: bytes, at: int, size: int) -> bytes:
    return data[:at] + bytes(len(data[at : at + size])) + data[at + size :]
