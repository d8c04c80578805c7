"""A read-only FUSE file system over one folder, whose reads take some time.

    python slow_folder.py FOLDER MOUNTPOINT SECONDS [RATE]

A read takes SECONDS, and all of them share RATE bytes per second. It speaks the kernel's protocol (linux/fuse.h, 7.31) on
`/dev/fuse`, for which no library is needed. It runs in a process of its own, as a page fault of this process would wait for
itself. It writes `ready` once it is mounted. For each line on standard input it writes the number of reads since the last one,
their bytes, and the most at once. It ends with its input.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import threading
import time
from pathlib import Path

MNT_DETACH = 2
MS_RDONLY_NOSUID_NODEV = 7
THREADS = 24
HEADER = struct.Struct("<IIQQIIIHH")
ROOT = 1
DIRECTORY, FILE = 0o40755, 0o100444
LOOKUP, FORGET, GETATTR, OPEN, READ, STATFS, INIT, OPENDIR, READDIR, INTERRUPT, BATCH_FORGET = (
    1, 2, 3, 14, 15, 17, 26, 27, 28, 36, 42,
)  # fmt: skip
ANSWERED_EMPTY = (18, 25, 29, 34)
"""RELEASE, FLUSH, RELEASEDIR, ACCESS."""
ASYNC_READ, MAX_PAGES, KEEP_CACHE = 1, 1 << 22, 2


class SlowFolder:
    """The file system: the files of a folder, and counts of reads."""

    def __init__(self, folder: Path, seconds: float, rate: float) -> None:
        self.files = [path.read_bytes() for path in sorted(folder.iterdir())]
        self.names = [path.name for path in sorted(folder.iterdir())]
        self.seconds, self.rate = seconds, rate
        self.free_at = 0.0  # when the link has sent what was asked for before
        self.device = os.open("/dev/fuse", os.O_RDWR)
        self.lock = threading.Lock()
        self.reads = self.nbytes = self.now = self.most = 0

    def serve(self) -> None:
        """Answers requests until the file system is unmounted."""
        while True:
            try:
                message = os.read(self.device, (1 << 20) + 4096)
            except (InterruptedError, FileNotFoundError):
                continue
            except OSError:
                return
            _, opcode, unique, node, *_ = HEADER.unpack_from(message)
            answer = self.answer(opcode, node, message[HEADER.size :])
            if answer is not None:
                error, data = (answer, b"") if isinstance(answer, int) else (0, answer)
                os.writev(self.device, [struct.pack("<IiQ", 16 + len(data), error, unique), data])

    def answer(self, opcode: int, node: int, body: bytes) -> bytes | int | None:
        """The answer to a request: bytes, a negative error number, or None if there is none."""
        if opcode == INIT:
            return struct.pack(
                "<IIIIHHIIHHI28x", 7, 31, 128 << 10, ASYNC_READ | MAX_PAGES, 64, 48, 1 << 20, 1, 256, 0, 0
            )
        if opcode == LOOKUP:
            name = body.rstrip(b"\0").decode()
            if name not in self.names:
                return -2
            node = self.names.index(name) + 2
            return struct.pack("<QQQQII", node, 0, 3600, 3600, 0, 0) + self.attributes(node)
        if opcode == GETATTR:
            return struct.pack("<QII", 3600, 0, 0) + self.attributes(node)
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, KEEP_CACHE, 0)
        if opcode == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return self.read(self.files[node - 2][offset : offset + size])
        if opcode == STATFS:
            return struct.pack("<QQQQQIIII24x", 0, 0, 0, 0, 0, 4096, 255, 4096, 0)
        if opcode in (FORGET, BATCH_FORGET, INTERRUPT):
            return None
        return b"" if opcode in (*ANSWERED_EMPTY, READDIR) else -38

    def attributes(self, node: int) -> bytes:
        size, mode = (0, DIRECTORY) if node == ROOT else (len(self.files[node - 2]), FILE)
        return struct.pack("<6Q10I", node, size, -(-size // 512), 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def read(self, data: bytes) -> bytes:
        with self.lock:
            self.reads, self.nbytes, self.now = self.reads + 1, self.nbytes + len(data), self.now + 1
            self.most = max(self.most, self.now)
            begin = time.monotonic()
            self.free_at = max(self.free_at, begin) + len(data) / self.rate
            wait = self.free_at - begin + self.seconds
        time.sleep(wait)
        with self.lock:
            self.now -= 1
        return data

    def counts(self) -> str:
        with self.lock:
            text = f"{self.reads} {self.nbytes} {self.most}"
            self.reads = self.nbytes = self.most = 0
        return text


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(folder: str, mountpoint: str, seconds: str, rate: str = "inf") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    slow = SlowFolder(Path(folder), float(seconds), float(rate))
    options = f"fd={slow.device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"slow", mountpoint.encode(), b"fuse.slow", MS_RDONLY_NOSUID_NODEV, options.encode()):
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    try:
        for _ in range(THREADS):
            threading.Thread(target=slow.serve, daemon=True).start()
        say("ready")
        while select.select([sys.stdin], [], [])[0] and sys.stdin.readline():
            say(slow.counts())
    finally:
        libc.umount2(mountpoint.encode(), MNT_DETACH)


if __name__ == "__main__":
    main(*sys.argv[1:])
