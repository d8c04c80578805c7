"""Kills writers before each system call that changes names or files, and looks at what they leave. It needs strace.

    python tests/python/kill_points.py FOLDER [--operations folder-resume,...] [--calls rename,...]

Where `kills.py` kills at random moments, this one meets each state of the file system between two calls, with the same checks.
After a kill the target is left alone, is removed, or another call is killed before any of its calls. Then a call runs to its end.
"""

import argparse
import importlib
import itertools
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import kills

CALLS = (
    "openat,write,ftruncate,fallocate,fsync,fdatasync,chmod,fchmod,rename,renameat,renameat2,link,linkat,symlink,"
    "symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir"
)
AGAIN_MAX = 20
"""The last of the calls of a kind before which the second call is killed."""


class KillPoints(kills.Kills):
    """Kills a call before the given system call of its first thread."""

    point: tuple[str, int] | None = None
    """Which system call, and the how manieth of its kind. None lets a call run to its end."""

    def _start(self, name: str) -> int:
        if self.point is None:
            return super()._start(name)
        call, number = self.point
        waits, releases = os.pipe()
        operation = kills.OPERATIONS[name]

        def traced(source: Path, target: Path) -> None:
            os.read(waits, 1)
            operation(source, target)

        kills.OPERATIONS[name] = traced
        child = super()._start(name)
        kills.OPERATIONS[name] = operation
        inject = f"inject={call}:signal=SIGKILL:when={number}"
        command = ["strace", "-f", "-qq", "-e", f"trace={call}", "-e", inject, "-p", f"{child}"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as tracer:
            while "TracerPid:\t0\n" in Path(f"/proc/{child}/status").read_text():
                assert tracer.poll() is None, "strace cannot attach"
                time.sleep(0.001)
            os.write(releases, b"go")
            # It ends with the child.
        os.close(waits)
        os.close(releases)
        return child

    def _kill(self, name: str, call: str, number: int) -> bool:
        """Starts a call, and returns whether it was killed; else it has no such system call."""
        self.point = (call, number)
        code = kills.status_of(self._start(name))
        self.point = None
        assert code in (0, -9), code
        outcome = self._look(name)
        self.counts[f"{name}: killed before {call}, {outcome}"] += code != 0
        return code != 0

    def each(self, name: str, calls: list[str]) -> None:
        """Kills a call of this name before each of the system calls, with each of what may be before and after it."""
        self._run(name)
        target = self._target(name)
        for call, is_new, then in itertools.product(calls, (False, True), ("leave", "remove", "kill")):
            for number in itertools.count(1):
                if is_new:
                    self._remove(target)
                try:
                    if not self._kill(name, call, number):
                        break
                    if then == "kill":
                        self._kill(name, self._chance.choice(calls), self._chance.randint(1, AGAIN_MAX))
                    elif then == "remove":
                        self._remove(target)
                    self._finish(name)
                except AssertionError as error:
                    error.add_note(f"{name}, new: {is_new}, killed before {call} {number}, then {then}")
                    raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--operations", default=",".join(kills.OPERATIONS))
    parser.add_argument("--calls", default=CALLS)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    kills.ELEMENTS, kills.SHARD_BYTES = 1 << 10, 16 << 10
    names = args.operations.split(",")
    if "folder-dcp" in names:
        importlib.import_module("rustload.torch.distributed")  # so that no child has to
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        points = KillPoints(Path(folder), args.seed)
        for name in names:
            points.each(name, args.calls.split(","))
    for what, count in sorted(points.counts.items()):
        sys.stdout.write(f"{count:6} {what}\n")


if __name__ == "__main__":
    main()
