"""Kills writers at random moments, by SIGKILL and SIGTERM, and looks at what they leave.

    python tests/python/kills.py FOLDER [--kills 1000] [--seed 1] [--operations file,convert,writer,resume]

After every kill the target is absent, or what it was, or whole; files of others are as they were; and what is left has the hidden
names of that target. After some of the kills the same call runs to its end: then the target is whole, and nothing else is left.
It forks one child for each kill, so that a kill costs no start of the interpreter. FOLDER says which file system is tested.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import rustload

if TYPE_CHECKING:
    from collections.abc import Callable

TENSORS = 12
ELEMENTS = 1 << 18
FINISHES_EACH = 5
"""After so many kills the call runs to its end."""
LEFT = re.compile(r"\.m\.safetensors\.(lock|resume|[0-9a-f]{16}\.part)")
BUSY = 3


def arrays() -> dict[str, Any]:
    return {f"{at:02}": np.arange(ELEMENTS, dtype="float32") + at for at in range(TENSORS)}


def save_file(source: Path, target: Path) -> None:
    rustload.save(rustload.open(source), target, fsync=False)


def convert(source: Path, target: Path) -> None:
    rustload.convert(source, target, overwrite=True, fsync=False, verify=True)


def write_parts(source: Path, target: Path) -> None:
    opened = rustload.open(source)
    declared = {name: (tensor.dtype, tensor.shape) for name, tensor in opened.items()}
    with rustload.Writer(target, declared, fsync=False) as writer:
        for name, tensor in opened.items():
            writer.write(name, tensor)


def resume(source: Path, target: Path) -> None:
    rustload.save(rustload.open(source), target, resume=True, threads=1)


OPERATIONS: dict[str, Callable[[Path, Path], None]] = {
    "file": save_file,
    "convert": convert,
    "writer": write_parts,
    "resume": resume,
}


def forked(work: Callable[[], None]) -> int:
    """Starts a child that does the work, and returns its number. It exits with 0, 1, or 3 if the target was busy."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work()
        code = 0
    except OSError as error:
        code = BUSY if getattr(error, "code", None) == "TargetBusy" else 1
        sys.stderr.write(f"{error}\n" if code == 1 else "")
    except Exception as error:
        sys.stderr.write(f"{error!r}\n")
    finally:
        os._exit(code)


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Kills:
    """A folder with a source, a target, and files of others.

    Attributes:
        counts: How often what happened.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._folder, self._chance = folder, random.Random(seed)
        self._source = folder / "source" / "s.safetensors"
        self._source.parent.mkdir()
        rustload.save(arrays(), self._source)
        self._whole = self._source.read_bytes()
        self._target = folder / "out" / "m.safetensors"
        self._others = {
            name: os.urandom(100)
            for name in (
                "config.json",
                "n.safetensors",
                ".hidden",
                ".n.safetensors.lock",
                ".n.safetensors.resume",
                ".m.safetensors.0123456789abcdef.part.bak",
                "m.safetensors.lock",
            )
        }
        self._target.parent.mkdir()
        for name, content in self._others.items():
            (self._target.parent / name).write_bytes(content)

    def run(self, operations: list[str], kills: int) -> None:
        """Kills so many writers, and lets the same calls finish at times."""
        seconds = {name: self._time(OPERATIONS[name]) for name in operations}
        number = killed = 0
        while killed < kills:
            name = operations[number % len(operations)]
            operation = OPERATIONS[name]
            if self._chance.random() < 0.3:
                self._target.unlink(missing_ok=True)
            old = self._target.exists()
            kind = self._chance.choice([signal.SIGKILL, signal.SIGTERM])
            child = forked(lambda operation=operation: operation(self._source, self._target))
            time.sleep(self._chance.random() * seconds[name] * 1.1)
            os.kill(child, kind)
            code = status_of(child)
            assert code in (0, -kind), (name, kind, code)
            self.counts[f"{name}: {'finished before' if code == 0 else kind.name}"] += 1
            # The machine may be busier or less than when the first call was timed.
            seconds[name] *= 1.02 if code else 0.9
            killed += code != 0
            self._look(old=old)
            if number // len(operations) % FINISHES_EACH == FINISHES_EACH - 1:
                self._finish(name)
            number += 1
        self._finish(operations[0])

    def _time(self, operation: Callable[[Path, Path], None]) -> float:
        start = time.monotonic()
        assert status_of(forked(lambda: operation(self._source, self._target))) == 0
        return time.monotonic() - start

    def _names(self) -> set[str]:
        names = {path.name for path in self._target.parent.iterdir()}
        # libfuse learns a little later that a removed file was closed.
        if any(name.startswith(".fuse_hidden") for name in names):
            time.sleep(0.05)
            return self._names()
        return names

    def _look(self, *, old: bool) -> None:
        """What is in the folder after a kill."""
        for name, content in self._others.items():
            assert (self._target.parent / name).read_bytes() == content, name
        exists = self._target.exists()
        assert exists or not old
        assert not exists or self._target.read_bytes() == self._whole
        left = self._names() - self._others.keys() - {self._target.name}
        assert all(LEFT.fullmatch(name) for name in left), left
        self.counts.update("left: " + re.sub(r"[0-9a-f]{16}", "TAG", name) for name in left)

    def _finish(self, name: str) -> None:
        """Lets a call finish, which finds what the killed ones have left."""
        # What is kept to be resumed is for calls that resume.
        for one in {name, "resume"} if self._resumes() else {name}:
            assert status_of(forked(lambda one=one: OPERATIONS[one](self._source, self._target))) == 0
        self.counts[f"{name}: run to its end"] += 1
        assert self._target.read_bytes() == self._whole
        assert self._names() == self._others.keys() | {self._target.name}

    def _resumes(self) -> bool:
        return any(name.endswith(".resume") for name in self._names() - self._others.keys())

    def race(self, rounds: int) -> None:
        """Lets two writers have one target at once: one wins, the other is refused."""
        for number in range(rounds):
            operation = list(OPERATIONS.values())[number % len(OPERATIONS)]
            self._target.unlink(missing_ok=True)
            waits, releases = os.pipe()

            def work(operation: Callable[[Path, Path], None] = operation, waits: int = waits) -> None:
                held = rustload.Writer(self._target, {"x": ("int8", (1,))})
                # Until the other one was refused.
                select.select([waits], [], [], 60)
                held.discard()
                operation(self._source, self._target)

            children = {forked(work), forked(work)}
            refused, status = os.wait()
            assert os.waitstatus_to_exitcode(status) == BUSY
            os.write(releases, b"go")
            (winner,) = children - {refused}
            assert status_of(winner) == 0
            os.close(waits)
            os.close(releases)
            assert self._target.read_bytes() == self._whole
            assert self._names() == self._others.keys() | {self._target.name}, self._names()
            self.counts["two writers: one won, one was refused"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        kills = Kills(Path(folder), args.seed)
        kills.run(args.operations.split(","), args.kills)
        kills.race(20)
    for what, count in sorted(kills.counts.items()):
        sys.stdout.write(f"{count:6} {what}\n")


if __name__ == "__main__":
    main()
