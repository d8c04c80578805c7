"""An object in a store, in memory, which is read by ranges and counts what is asked of it."""

import threading
import time
from collections.abc import Sequence


class Ranges:
    """Each call takes `delay` seconds; `calls` has their ranges, and `most` how many were under way at once."""

    name = "store://model"

    def __init__(self, data: bytes, delay: float = 0) -> None:
        self.data, self.size, self.delay = data, len(data), delay
        self.calls: list[list[tuple[int, int]]] = []
        self.now = self.most = 0
        self.lock = threading.Lock()

    @property
    def requests(self) -> int:
        return sum(map(len, self.calls))

    @property
    def nbytes(self) -> int:
        return sum(length for ranges in self.calls for _, length in ranges)

    def read_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        with self.lock:
            self.calls.append(list(ranges))
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(self.delay)
        with self.lock:
            self.now -= 1
        return [memoryview(self.data)[start : start + length] for start, length in ranges]
