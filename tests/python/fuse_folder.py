"""FUSE file systems for tests: one in memory whose operations can be made to fail, and one whose reads take some time.

    python fuse_folder.py MOUNTPOINT faulty [exchanges]
    python fuse_folder.py MOUNTPOINT slow FOLDER SECONDS [RATE]

It speaks the kernel's protocol (linux/fuse.h, 7.31) on `/dev/fuse`, for which no library is needed. It runs in a process
of its own, as a page fault of this process would wait for itself. It writes `ready` once it is mounted, answers each line on its
standard input, and ends with that.

`faulty`: a line `OPERATION COUNT [ERRNO]` lets the next COUNT calls of that operation fail (`fsync`, `fsyncdir`, `flush`,
`rename`), and is answered with `ok`. Of files, only those of more than 64 KiB fail. A failed fsync or flush loses what was
written since the last good one, as a disk does: later reads see zeros, and later calls succeed. After `lie`, fsync loses it and
succeeds. A removed file that is open keeps a hidden name, as with libfuse. There are no hard links, unnamed files or space
reservations, and exchanges only if asked for. `changes` is answered with one line of JSON: for each new or removed name so far
`rename NAME`, `exchange NAME` or `remove NAME`, and what was not on the disk then: contents of files, and names in folders.

`slow`: the files of FOLDER. A read takes SECONDS, and all of them share RATE bytes per second. Each line is answered with the
number of reads since the last one, their bytes, and the most at once.
"""

import contextlib
import ctypes
import errno
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

MNT_DETACH = 2
MS_NOSUID_NODEV, MS_RDONLY_NOSUID_NODEV = 6, 7
HEADER = struct.Struct("<IIQQIIIHH")
ROOT = 1
FOLDER, FILE = 0o040000, 0o100000
FOLDER_MODE, FILE_MODE = FOLDER | 0o755, FILE | 0o444
LOOKUP, GETATTR, OPEN, READ, STATFS, RELEASE, INIT, OPENDIR, READDIR = 1, 3, 14, 15, 17, 18, 26, 27, 28
UNANSWERED = (2, 36, 42)
"""FORGET, INTERRUPT, BATCH_FORGET."""
ANSWERED_EMPTY = (RELEASE, 25, 29, 34)
"""RELEASE, FLUSH, RELEASEDIR, ACCESS."""
ASYNC_READ, MAX_PAGES, KEEP_CACHE = 1, 1 << 22, 2
SETS_MODE, SETS_SIZE = 1, 8
RENAME2, EXCHANGE = 45, 2
SMALL_BYTES = 64 << 10


def started(flags: int) -> bytes:
    """The answer to INIT."""
    return struct.pack("<IIIIHHIIHHI28x", 7, 31, 128 << 10, flags, 64, 48, 1 << 20, 1, 256, 0, 0)


class Server:
    """Mounts a file system and answers its requests."""

    name: bytes
    flags: int
    threads: int

    def __init__(self) -> None:
        self.device = os.open("/dev/fuse", os.O_RDWR)
        self.lock = threading.Lock()

    def answer(self, opcode: int, number: int, body: bytes) -> bytes | int | None:
        """The answer to a request for a node: bytes, a negative error number, or None if there is none."""
        raise NotImplementedError

    def told(self, line: str) -> str:
        """The answer to a line on standard input."""
        raise NotImplementedError

    def serve(self) -> None:
        """Answers requests until the file system is unmounted."""
        while True:
            try:
                message = os.read(self.device, (1 << 20) + 4096)
            except (InterruptedError, FileNotFoundError):
                continue
            except OSError:
                return
            _, opcode, unique, number, *_ = HEADER.unpack_from(message)
            answer = self.answer(opcode, number, message[HEADER.size :])
            if answer is not None:
                error, data = (answer, b"") if isinstance(answer, int) else (0, answer)
                os.writev(self.device, [struct.pack("<IiQ", 16 + len(data), error, unique), data])

    def run(self, mountpoint: str) -> None:
        """Mounts it until the input ends."""
        libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        kind = b"fuse." + self.name
        if libc.mount(self.name, mountpoint.encode(), kind, self.flags, options.encode()):
            sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
        try:
            for _ in range(self.threads):
                threading.Thread(target=self.serve, daemon=True).start()
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            sys.stdout.write("ready\n")
            for line in sys.stdin:
                sys.stdout.write(self.told(line) + "\n")
        finally:
            libc.umount2(mountpoint.encode(), MNT_DETACH)


class Node:
    """A file or folder."""

    def __init__(self, number: int, mode: int) -> None:
        self.number, self.mode = number, mode
        self.data, self.durable = bytearray(), b""
        self.names: dict[str, Node] = {}
        self.handles = 0
        self.is_changed = False
        self.new_names: set[str] = set()
        """Those that were made since the last fsync of the folder."""

    def unsynced(self, path: str = "") -> list[str]:
        """The paths of what would be lost now, if the machine crashed."""
        found = [path] if self.is_changed else []
        for name, node in self.names.items():
            found += [f"{path}/{name} (name)"] if name in self.new_names else []
            found += node.unsynced(f"{path}/{name}")
        return found

    def lose(self) -> None:
        """Loses what was written since the last good fsync."""
        self.data = bytearray(self.durable.ljust(len(self.data), b"\0")[: len(self.data)])
        self.is_changed = False


class FaultyFolder(Server):
    """A file system in memory: its nodes, and the faults to come."""

    name, flags, threads = b"faulty", MS_NOSUID_NODEV, 4

    def __init__(self, can: str = "") -> None:
        super().__init__()
        self.root = Node(ROOT, FOLDER | 0o755)
        self.nodes = {ROOT: self.root}
        self.faults: dict[str, tuple[int, int]] = {}
        self.hidden: dict[int, tuple[Node, str]] = {}
        self.changes: list[tuple[str, list[str]]] = []
        self.operations: dict[int, Callable[[Node, bytes], bytes | int]] = {
            1: self.lookup,
            3: lambda node, _: self.attributes_of(node),
            4: self.set_attributes,
            9: self.make_folder,
            10: self.unlink,
            11: self.remove_folder,
            12: self.rename,
            14: self.open,
            15: lambda node, body: bytes(node.data[slice(*self.range_of(body))]),
            16: self.write,
            17: lambda *_: struct.pack("<QQQQQIIII24x", 1 << 20, 1 << 19, 1 << 19, 0, 0, 4096, 255, 4096, 0),
            RELEASE: self.release,
            20: self.fsync,
            25: self.flush,
            INIT: lambda *_: started(0),
            27: lambda *_: struct.pack("<QII", 0, 0, 0),
            28: self.list,
            29: lambda *_: b"",
            30: self.fsync_folder,
            35: self.create,
        }
        if can == "exchanges":
            self.operations[RENAME2] = self.exchange

    def answer(self, opcode: int, number: int, body: bytes) -> bytes | int | None:
        """The answer to a request."""
        if opcode in UNANSWERED:
            return None
        operation = self.operations.get(opcode)
        with self.lock:
            is_late = opcode == RELEASE and self.fault("late")
        if is_late:
            time.sleep(0.05)
        with self.lock:
            return operation(self.nodes.get(number, self.root), body) if operation else -errno.ENOSYS

    def told(self, line: str) -> str:
        """Takes a fault to come, or says what has changed."""
        if line.strip() == "changes":
            with self.lock:
                return json.dumps([*self.changes, ("", self.root.unsynced())])
        name, count, number = (*line.split(), str(errno.ENOSPC))[:3]
        with self.lock:
            self.faults.pop(name, None)
            if int(count):
                self.faults[name] = (int(count), int(number))
        return "ok"

    def fault(self, name: str) -> int:
        """The number of an error if the operation is to fail now, else 0."""
        count, number = self.faults.pop(name, (0, 0))
        if count > 1:
            self.faults[name] = (count - 1, number)
        return number

    def attributes(self, node: Node) -> bytes:
        size = len(node.data)
        return struct.pack(
            "<6Q10I", node.number, size, -(-size // 512), 0, 0, 0, 0, 0, 0, node.mode, 1, 0, 0, 0, 4096, 0
        )

    def attributes_of(self, node: Node) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self.attributes(node)

    def entry(self, node: Node) -> bytes:
        return struct.pack("<QQQQII", node.number, 0, 0, 0, 0, 0) + self.attributes(node)

    def lookup(self, folder: Node, body: bytes) -> bytes | int:
        found = folder.names.get(body.rstrip(b"\0").decode())
        return -errno.ENOENT if found is None else self.entry(found)

    def make(self, folder: Node, name: bytes, mode: int) -> Node:
        node = Node(max(self.nodes) + 1, mode)
        text = name.rstrip(b"\0").decode()
        self.nodes[node.number] = folder.names[text] = node
        folder.new_names.add(text)
        return node

    def make_folder(self, folder: Node, body: bytes) -> bytes:
        mode, umask = struct.unpack_from("<II", body)
        return self.entry(self.make(folder, body[8:], FOLDER | (mode & ~umask & 0o7777)))

    def create(self, folder: Node, body: bytes) -> bytes:
        _, mode, umask, _ = struct.unpack_from("<IIII", body)
        node = self.make(folder, body[16:], FILE | (mode & ~umask & 0o7777))
        node.handles = 1
        return self.entry(node) + struct.pack("<QII", 0, 0, 0)

    def open(self, node: Node, _: bytes) -> bytes:
        node.handles += 1
        return struct.pack("<QII", 0, 0, 0)

    def release(self, node: Node, _: bytes) -> bytes:
        node.handles -= 1
        if node.handles == 0 and node.number in self.hidden:
            folder, name = self.hidden.pop(node.number)
            del folder.names[name]
        return b""

    def set_attributes(self, node: Node, body: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & SETS_SIZE:
            node.data = node.data[:size].ljust(size, b"\0")
        if valid & SETS_MODE:
            node.mode = node.mode & ~0o7777 | struct.unpack_from("<I", body, 68)[0] & 0o7777
        return self.attributes_of(node)

    def changed(self, what: str) -> None:
        self.changes.append((what, self.root.unsynced()))

    def unlink(self, folder: Node, body: bytes) -> bytes:
        name = body.rstrip(b"\0").decode()
        self.changed(f"remove {name}")
        node = folder.names.pop(name)
        if node.handles:
            name = f".fuse_hidden{node.number:08x}"
            folder.names[name] = node
            self.hidden[node.number] = (folder, name)
        return b""

    def remove_folder(self, folder: Node, body: bytes) -> bytes | int:
        name = body.rstrip(b"\0").decode()
        if folder.names[name].names:
            return -errno.ENOTEMPTY
        del folder.names[name]
        return b""

    def rename(self, folder: Node, body: bytes) -> bytes | int:
        if number := self.fault("rename"):
            return -number
        old, new = body[8:].rstrip(b"\0").decode().split("\0")
        target = self.nodes[struct.unpack_from("<Q", body)[0]]
        if new in target.names and target.names[new].names:
            return -errno.ENOTEMPTY
        self.changed(f"rename {new}")
        target.names[new] = folder.names.pop(old)
        target.new_names.add(new)
        return b""

    def exchange(self, folder: Node, body: bytes) -> bytes | int:
        number, flags = struct.unpack_from("<QI", body)
        if flags != EXCHANGE:
            return -errno.EINVAL
        old, new = body[16:].rstrip(b"\0").decode().split("\0")
        target = self.nodes[number]
        self.changed(f"exchange {new}")
        target.names[new], folder.names[old] = folder.names[old], target.names[new]
        target.new_names.add(new)
        folder.new_names.add(old)
        return b""

    def range_of(self, body: bytes) -> tuple[int, int]:
        _, offset, size = struct.unpack_from("<QQI", body)
        return offset, offset + size

    def write(self, node: Node, body: bytes) -> bytes:
        start, end = self.range_of(body)
        node.data.extend(bytes(max(0, start - len(node.data))))
        node.data[start:end] = body[40:]
        node.is_changed = True
        return struct.pack("<II", end - start, 0)

    def fsync(self, node: Node, _: bytes) -> bytes | int:
        if len(node.data) > SMALL_BYTES and (number := self.fault("fsync")):
            node.lose()
            return -number
        if len(node.data) > SMALL_BYTES and self.fault("lie"):
            node.lose()
        node.durable, node.is_changed = bytes(node.data), False
        return b""

    def fsync_folder(self, folder: Node, _: bytes) -> bytes | int:
        if number := self.fault("fsyncdir"):
            return -number
        folder.new_names.clear()
        return b""

    def flush(self, node: Node, _: bytes) -> bytes | int:
        if node.is_changed and (number := self.fault("flush")):
            node.lose()
            return -number
        return b""

    def list(self, folder: Node, body: bytes) -> bytes:
        start, end = self.range_of(body)
        listed = b""
        for at, (name, node) in enumerate(list(folder.names.items())[start:], start + 1):
            text = name.encode()
            entry = struct.pack("<QQII", node.number, at, len(text), node.mode >> 12) + text
            entry += bytes(-len(entry) % 8)
            if len(listed) + len(entry) > end - start:
                break
            listed += entry
        return listed


class SlowFolder(Server):
    """The files of a folder, to be read only, and counts of reads."""

    name, flags, threads = b"slow", MS_RDONLY_NOSUID_NODEV, 24

    def __init__(self, folder: str, seconds: str, rate: str = "inf") -> None:
        super().__init__()
        paths = sorted(Path(folder).iterdir())
        self.files, self.names = [path.read_bytes() for path in paths], [path.name for path in paths]
        self.seconds, self.rate = float(seconds), float(rate)
        self.free_at = 0.0  # when the link has sent what was asked for before
        self.reads = self.nbytes = self.now = self.most = 0

    def answer(self, opcode: int, node: int, body: bytes) -> bytes | int | None:
        """The answer to a request."""
        if opcode == INIT:
            return started(ASYNC_READ | MAX_PAGES)
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
        if opcode in UNANSWERED:
            return None
        return b"" if opcode in (*ANSWERED_EMPTY, READDIR) else -38

    def attributes(self, node: int) -> bytes:
        size, mode = (0, FOLDER_MODE) if node == ROOT else (len(self.files[node - 2]), FILE_MODE)
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

    def told(self, line: str) -> str:  # noqa: ARG002 - every line asks for them
        """The counts since the last call."""
        with self.lock:
            text = f"{self.reads} {self.nbytes} {self.most}"
            self.reads = self.nbytes = self.most = 0
        return text


class Mounted:
    """A mounted file system, for tests."""

    def __init__(self, path: Path, told: IO[str], said: IO[str]) -> None:
        self.path = path
        self._told, self._said = told, said

    def tell(self, line: str) -> str:
        """Writes a line to the server, and returns its answer."""
        self._told.write(line + "\n")
        self._told.flush()
        return self._said.readline().rstrip("\n")

    def fail(self, operation: str, count: int = 1, number: int = errno.ENOSPC) -> None:
        """Lets the next calls of an operation fail."""
        assert self.tell(f"{operation} {count} {number}") == "ok"

    def changes(self) -> list[tuple[str, list[str]]]:
        """Each change of names, and what was not on the disk then; at last the same of now, without a name."""
        return json.loads(self.tell("changes"))  # type: ignore[no-any-return]


def names_in(folder: Path) -> list[str]:
    """The names in a folder, sorted. Of a removed file that was open, the server learns a little later that it was closed."""
    names = sorted(path.name for path in folder.iterdir())
    if any(name.startswith(".fuse_hidden") for name in names):
        time.sleep(0.05)
        return names_in(folder)
    return names


@contextlib.contextmanager
def mounted(path: Path, kind: str = "faulty", *arguments: object) -> Iterator[Mounted]:
    """Mounts a file system at a new path; skips the test where that is not possible."""
    import pytest

    if os.geteuid() != 0 or not Path("/dev/fuse").exists():
        pytest.skip("only root can mount FUSE file systems, where /dev/fuse exists")
    path.mkdir()
    command = [sys.executable, __file__, str(path), kind, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        if server.stdout.readline() != "ready\n":
            pytest.skip(f"FUSE file systems cannot be mounted here: {server.communicate()[1]}")
        yield Mounted(path, server.stdin, server.stdout)
        server.stdin.close()


def main(mountpoint: str, kind: str, *arguments: str) -> None:
    server = SlowFolder(*arguments) if kind == "slow" else FaultyFolder(*arguments)
    server.run(mountpoint)


if __name__ == "__main__":
    main(*sys.argv[1:])
