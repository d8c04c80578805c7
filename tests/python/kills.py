"""Kills writers at random moments, by SIGKILL and SIGTERM, and looks at what they leave.

    python tests/python/kills.py FOLDER [--kills 1000] [--seed 1] [--operations file,convert,...]

Each call writes another version. After every kill the target is absent, or one version as a whole: the old one, or that of a
killed call. Files of others are as they were, and what is left has the hidden names of that target. After some of the kills the
same call runs to its end: then the target is its version, and nothing else is left. It forks one child for each kill, so that a
kill costs no start of the interpreter. FOLDER says which file system is tested.
"""

import argparse
import importlib
import os
import random
import re
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fuse_folder import names_in

import rustload
from rustload import _rustload

TENSORS = 12
ELEMENTS = 1 << 18
SHARD_BYTES = 4 << 20
VERSIONS = 3
FINISHES_EACH = 5
"""After so many kills the call runs to its end."""
LEFT = {
    "m.safetensors": re.compile(r"\.m\.safetensors\.(lock|resume|[0-9a-f]{16}\.part)"),
    "m": re.compile(r"\.m\.(lock|resume|part)"),
}
"""By the name of a target, what killed calls may leave beside it."""
INDEX = "model.safetensors.index.json"
BUSY = 3


def arrays(version: int) -> dict[str, Any]:
    return {f"{at:02}": np.full(ELEMENTS, version + 1, dtype="float32") for at in range(TENSORS)}


def version_of(target: Path) -> int | None:
    """The version that a target is; None if it is absent. Fails for a part of one, and for a mix."""
    if not target.exists():
        return None
    found = [np.asarray(tensor) for tensor in rustload.open(target).values()]
    version = int(found[0][0]) - 1
    assert len(found) == TENSORS
    assert all(array.shape == (ELEMENTS,) and (array == version + 1).all() for array in found), target
    return version


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


def save_folder(source: Path, target: Path) -> None:
    opened = rustload.open(source)
    rustload.save(opened, target, overwrite=True, max_shard_size=SHARD_BYTES, fsync=False)


def convert_folder(source: Path, target: Path) -> None:
    rustload.convert(source, target, overwrite=True, fsync=False)


def save_distributed(source: Path, target: Path) -> None:
    from torch.distributed import checkpoint as dcp

    from rustload.torch.distributed import Writer

    writer = Writer(target, max_shard_size=SHARD_BYTES, overwrite=True, fsync=False)
    dcp.save({n: t.torch() for n, t in rustload.open(source).items()}, storage_writer=writer, no_dist=True)


def resume_folder(source: Path, target: Path) -> None:
    rustload.convert(source, target, overwrite=True, resume=True, threads=1)


Operation = Callable[[Path, Path], None]
FILES: dict[str, Operation] = {"file": save_file, "convert": convert, "writer": write_parts, "resume": resume}
FOLDERS: dict[str, Operation] = {
    "folder": save_folder,
    "folder-convert": convert_folder,
    "folder-dcp": save_distributed,
    "folder-resume": resume_folder,
}
OPERATIONS = FILES | FOLDERS
RACES = (*FILES, "folder", "folder-convert")


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
        if code == 1:
            traceback.print_exc()
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def status_of(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Kills:
    """A folder with sources, targets, and files of others.

    Attributes:
        counts: How often what happened.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._folder, self._chance, self._calls = folder, random.Random(seed), 0
        for version in range(VERSIONS):
            source = folder / "source" / f"{version}"
            source.mkdir(parents=True)
            rustload.save(arrays(version), source / "m.safetensors", fsync=False)
            rustload.save(arrays(version), source / "m", max_shard_size=SHARD_BYTES, fsync=False)
        self._out = folder / "out"
        others = (
            "config.json",
            "n.safetensors",
            ".hidden",
            ".n.safetensors.lock",
            ".n.safetensors.resume",
            ".m.safetensors.0123456789abcdef.part.bak",
            "m.safetensors.lock",
            "m.lock",
        )
        self._others = {name: os.urandom(100) for name in others}
        self._out.mkdir()
        for name, content in self._others.items():
            (self._out / name).write_bytes(content)
        self._unfinished: dict[Path, set[int | None]] = {}
        """The versions that a target may be: what it was, and those of killed calls."""
        self._inside = self._out / "m" / "config.json"
        """A file of others in the folder that is a target."""
        self._has_inside = False

    def run(self, operations: list[str], kills: int) -> None:
        """Kills so many writers, and lets the same calls finish at times."""
        seconds = {name: self._time(name) for name in operations}
        number = killed = 0
        while killed < kills:
            name = operations[number % len(operations)]
            target = self._target(name)
            if self._chance.random() < 0.3:
                self._remove(target)
            kind = self._chance.choice([signal.SIGKILL, signal.SIGTERM])
            child = self._start(name)
            time.sleep(self._chance.random() * seconds[name] * 1.1)
            os.kill(child, kind)
            code = status_of(child)
            assert code in (0, -kind), (name, kind, code)
            # The machine may be busier or less than when the first call was timed.
            seconds[name] *= 1.02 if code else 0.9
            killed += code != 0
            outcome = self._look(name)
            self.counts[f"{name}: {kind.name}, {outcome}" if code else f"{name}: finished before"] += 1
            if number // len(operations) % FINISHES_EACH == FINISHES_EACH - 1:
                self._finish(name)
            number += 1
        for name in operations:
            self._finish(name)

    def _target(self, name: str) -> Path:
        return self._out / ("m" if name in FOLDERS else "m.safetensors")

    def _remove(self, target: Path) -> None:
        if target.is_dir():
            shutil.rmtree(target)
            self._has_inside = False
        target.unlink(missing_ok=True)
        # What a killed call has begun to publish, the next one finishes.
        self._unfinished.setdefault(target, set()).add(None)

    def _start(self, name: str) -> int:
        """Starts a call that writes the next version."""
        self._calls += 1
        version, target = self._calls % VERSIONS, self._target(name)
        self._unfinished.setdefault(target, set()).update({version_of(target), version})
        source = self._folder / "source" / f"{version}" / target.name
        return forked(lambda: OPERATIONS[name](source, target))

    def _time(self, name: str) -> float:
        """How long a call takes; it writes a new target."""
        self._remove(self._target(name))
        start = time.monotonic()
        self._run(name)
        return time.monotonic() - start

    def _run(self, name: str) -> None:
        child = self._start(name)
        version, target = self._calls % VERSIONS, self._target(name)
        assert status_of(child) == 0, name
        assert version_of(target) == version, name
        self._unfinished[target] = {version}
        if target.is_dir():
            files = {Path(one).name for one in rustload.open(target).files}
            left = {path.name for path in target.iterdir()} - files - {"config.json", INDEX}
            assert not left, left
            self._inside.write_text("of others")
            self._has_inside = True

    def _look(self, name: str) -> str:
        """Checks what is in the folder after a kill. Returns whether the target is the version of the killed call."""
        self._check_others()
        target = self._target(name)
        version = version_of(target)
        assert version in self._unfinished[target], (name, version, self._unfinished[target])
        left = self._left(target)
        self.counts.update(f"{name}: left {re.sub('[0-9a-f]{16}', 'TAG', one)}" for one in left)
        return "none" if version is None else "new" if version == self._calls % VERSIONS else "old"

    def _left(self, target: Path) -> set[str]:
        """What killed calls have left of a target."""
        hidden = set(names_in(self._out)) - self._others.keys() - LEFT.keys()
        assert all(any(pattern.fullmatch(one) for pattern in LEFT.values()) for one in hidden), hidden
        return {one for one in hidden if LEFT[target.name].fullmatch(one)}

    def _check_others(self) -> None:
        for other, content in self._others.items():
            assert (self._out / other).read_bytes() == content, other
        assert not self._has_inside or self._inside.read_text() == "of others"

    def _finish(self, name: str) -> None:
        """Lets a call finish, which finds what the killed ones have left."""
        target = self._target(name)
        if any(left.endswith(".resume") for left in self._left(target)):
            # It is for calls that resume.
            self._run("folder-resume" if name in FOLDERS else "resume")
        self._run(name)
        self.counts[f"{name}: run to its end"] += 1
        assert not self._left(target), self._left(target)
        self._check_others()

    def race(self, rounds: int) -> None:
        """Lets two writers have one target at once: one wins, the other is refused."""
        for name in RACES * rounds:
            target = self._target(name)
            self._remove(target)
            waits, releases = os.pipe()

            def work(name: str = name, target: Path = target, waits: int = waits) -> None:
                held: Any = (
                    _rustload.FolderStage(os.fspath(target), "m", overwrite=False)
                    if name in FOLDERS
                    else rustload.Writer(target, {"x": ("int8", (1,))})
                )
                # Until the other one was refused.
                select.select([waits], [], [], 60)
                held.discard()
                OPERATIONS[name](self._folder / "source" / "0" / target.name, target)

            children = {forked(work), forked(work)}
            refused, status = os.wait()
            assert os.waitstatus_to_exitcode(status) == BUSY
            os.write(releases, b"go")
            (winner,) = children - {refused}
            assert status_of(winner) == 0
            os.close(waits)
            os.close(releases)
            assert version_of(target) == 0
            assert not self._left(target), self._left(target)
            self.counts["two writers: one won, one was refused"] += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--operations", default=",".join(OPERATIONS))
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    names = args.operations.split(",")
    if "folder-dcp" in names:
        importlib.import_module("rustload.torch.distributed")  # so that no child has to
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        kills = Kills(Path(folder), args.seed)
        kills.run(names, args.kills)
        kills.race(4)
    for what, count in sorted(kills.counts.items()):
        sys.stdout.write(f"{count:6} {what}\n")


if __name__ == "__main__":
    main()
