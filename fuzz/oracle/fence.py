"""Runs the readers in a child process that can do little harm: limits, an audit hook, no network, a folder of its own.

A child is forked for a batch of inputs. Where a reader crashes or does not end, the child is replaced and the input is run again
without this reader; that is logged, and is not a find.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import json
import mmap
import os
import pathlib
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fuzz.oracle import walk
from fuzz.oracle.watch import WATCH, Find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fuzz.oracle.watch import Name

INPUT_CPU_SECONDS = 3.0
"""Seconds of processor time after which the readers of one input count as hanging."""
INPUT_SECONDS = 60.0
"""Seconds after which they do so, even if they only wait."""
ADDRESS_SPACE_BYTES = 2 << 30
"""The address space of a child beyond that of its parent."""
PIPE_BYTES, PAUSE_SECONDS = 1 << 20, 0.02
"""The room for a child's results, and how often they are read: a child that wakes its parent for each is twice as slow."""
FILE_BYTES = 16 << 20
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000

REFUSED = (
    "code.__new__", "ctypes.", "exec", "fcntl.", "ftplib.", "function.__new__", "import", "marshal.load", "os.exec", "os.fork",
    "os.kill", "os.posix_spawn", "os.putenv", "os.spawn", "os.startfile", "os.symlink", "os.link", "os.system",
    "pickle.find_class",
    "pty.spawn", "shelve.", "smtplib.", "socket.", "sqlite3.", "subprocess.", "syslog.", "urllib.", "webbrowser.", "winreg.",
)  # fmt: skip
"""Audit events, by the start of their names, that no reader of data needs."""
INSIDE = (
    "os.chmod", "os.chown", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.utime", "shutil.",
    "tempfile.",
)  # fmt: skip
"""Audit events that readers need, inside the child's folder."""


class Refused(BaseException):
    """The fence refused what a reader wanted to do."""


@dataclass
class Task:
    """An input for the walk.

    Attributes:
        number: The number of the input in its campaign.
        data: The content of the file.
        inert: The names that the scan lists, and how often it counts a call of each.
        way: The way of scanning in which it is inert.
        skip: Readers that crashed or did not end.
    """

    number: int
    data: bytes
    inert: dict[Name, int]
    way: str = ""
    skip: set[str] = field(default_factory=set)


@dataclass
class Result:
    """What the readers did with an input."""

    task: Task
    finds: list[Find]
    outcomes: dict[str, str]


def memory_folder() -> pathlib.Path | None:
    """A folder in memory, if the system has one."""
    shared = pathlib.Path("/dev/shm")
    return shared if shared.is_dir() else None


class Fence:
    """Runs tasks in child processes."""

    def __init__(self) -> None:
        walk.warm_up()
        gc.collect()
        gc.freeze()  # a child that collects garbage would copy the pages of all objects
        self._folder = pathlib.Path(tempfile.mkdtemp(dir=memory_folder()))
        self._progress = mmap.mmap(-1, 4096)
        self.failures: list[tuple[Task, str, str]] = []
        """The inputs on which a reader crashed or did not end, the reader, and how."""

    def close(self) -> None:
        """Removes the children's folder."""
        shutil.rmtree(self._folder)

    def run(self, tasks: list[Task]) -> Iterator[Result]:
        """Runs the readers on every task."""
        todo = list(tasks)
        while todo:
            done = 0
            for result in self._child(todo):
                done += 1
                yield result
            if done < len(todo) and self._ended is not None:
                task, reader = todo[done], [*walk.READERS, walk.CONTENTS][self._progress[0]]
                self.failures.append((task, reader, self._ended))
                done += reader in task.skip  # it fails without its readers, too
                task.skip.add(reader)
            todo = todo[done:]

    def _child(self, tasks: list[Task]) -> Iterator[Result]:
        """The results of one child; `_ended` says how it ended, None if as it should."""
        folder = self._folder / "child"
        folder.mkdir()
        source, sink = os.pipe()
        with contextlib.suppress(AttributeError, OSError):
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._progress[0] = 0
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            os.close(source)
            with contextlib.suppress(BaseException):
                _serve(tasks, sink, folder, self._progress)
                os._exit(0)
            os._exit(1)
        os.close(sink)
        self._ended = None
        try:
            remaining = iter(tasks)
            for line in self._lines(source):
                said = json.loads(line)
                yield Result(next(remaining), [Find(*found) for found in said["finds"]], said["outcomes"])
        except GeneratorExit:
            self._ended = "stopped"
            raise
        finally:
            os.close(source)
            if self._ended is not None:
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            if self._ended is None and status != 0:
                self._ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else "exit"
            shutil.rmtree(folder)

    def _lines(self, source: int) -> Iterator[bytes]:
        buffered, end = b"", time.monotonic() + INPUT_SECONDS
        while True:
            if not select.select([source], [], [], max(end - time.monotonic(), 0))[0]:
                self._ended = "timeout"
                return
            part = os.read(source, 1 << 16)
            if not part:
                return
            *lines, buffered = (buffered + part).split(b"\n")
            yield from lines
            time.sleep(PAUSE_SECONDS)
            if lines:
                end = time.monotonic() + INPUT_SECONDS


def _serve(tasks: list[Task], sink: int, folder: pathlib.Path, progress: mmap.mmap) -> None:
    """The child: runs every task, and writes a line of JSON for each."""
    _enter(folder)
    for task in tasks:
        signal.setitimer(signal.ITIMER_PROF, INPUT_CPU_SECONDS)  # SIGPROF ends this process
        line = json.dumps(_examine(task, folder, progress)).encode() + b"\n"
        while line:
            line = line[os.write(sink, line) :]
        if WATCH.tainted:
            return


def _examine(task: Task, folder: pathlib.Path, progress: mmap.mmap) -> dict[str, Any]:
    WATCH.begin(task.inert)
    outcomes: dict[str, str] = {}

    def started(number: int) -> None:
        progress[0] = number

    with contextlib.suppress(Refused):
        outcomes = walk.read_all(task.data, task.skip, started)
    for path in folder.iterdir():
        if path.name != "input.bin":
            WATCH.find("canary", path.name)
    return {"finds": WATCH.finds, "outcomes": outcomes}


def _enter(folder: pathlib.Path) -> None:
    """Limits this process for good."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).unshare(CLONE_NEWUSER | CLONE_NEWNET)
    os.chdir(folder)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    walk.silence()
    used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    for which, most in {
        resource.RLIMIT_AS: used + ADDRESS_SPACE_BYTES,
        resource.RLIMIT_FSIZE: FILE_BYTES,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 64,
    }.items():
        resource.setrlimit(which, (most, most))
    inside = f"{folder}{os.sep}"

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            refused = _writes(args) and not str(args[0]).startswith(inside)
        elif event.startswith(INSIDE):
            refused = not _is_inside(args, inside)
        else:
            refused = event.startswith(REFUSED)
        why = WATCH.audit(event, args) if refused else None
        if why is not None:
            WATCH.find("audit", f"{why} {args!r:.200}")
            raise Refused(why)

    sys.addaudithook(hook)


def _writes(args: tuple[Any, ...]) -> bool:
    """Whether the event `open` opens a file by name for writing."""
    path, mode, flags = args
    if isinstance(path, int):
        return False
    return (
        any(letter in mode for letter in "wax+")
        if isinstance(mode, str)
        else flags & (os.O_WRONLY | os.O_RDWR) != 0
    )


def _is_inside(args: tuple[Any, ...], inside: str) -> bool:
    """Whether an event's paths are in the child's folder, or relative to a folder that was opened there."""
    paths = [arg for arg in args if isinstance(arg, (str, bytes, os.PathLike))]
    opened = any(isinstance(arg, int) and arg > 2 for arg in args)
    return opened or all(
        os.fsdecode(path).startswith(inside) or f"{os.fsdecode(path)}{os.sep}" == inside for path in paths
    )
