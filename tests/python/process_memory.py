"""The memory and the reads of this process, for programs that tests run: it imports nothing that they would not."""

import threading


def status(key: str) -> int:
    """A size of `/proc/self/status` in bytes."""
    with open("/proc/self/status") as lines:  # noqa: PTH123 - a proc file, read often
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


def read(key: str = "rchar") -> int:
    """The bytes that this process has read from files so far, or another count of `/proc/self/io`."""
    with open("/proc/self/io") as counts:  # noqa: PTH123 - a proc file
        return next(int(line.split()[1]) for line in counts if line.startswith(key))


class Peak:
    """Samples anonymous memory on a thread, until `stop`."""

    def __init__(self) -> None:
        self._is_done = threading.Event()
        self.restart()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def restart(self, less: int = 0) -> None:
        """What counts is what comes on top of what is there now, less so many bytes."""
        self.base = self._most = status("RssAnon")
        self.base -= less

    def stop(self) -> tuple[int, int]:
        """The most that came on top, and what is left of it, in MiB."""
        end = status("RssAnon")
        self._is_done.set()
        self._thread.join()
        return (max(self._most, end) - self.base) >> 20, (end - self.base) >> 20

    def _watch(self) -> None:
        while not self._is_done.wait(0.0005):
            self._most = max(self._most, status("RssAnon"))
