"""An object in a store, in memory, which is read by ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Ranges:
    name = "store://model"

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        return [memoryview(self.data)[start : start + length] for start, length in ranges]
