"""Two processes that write one target at once: one wins, the other is refused, and the winner's work is whole.

    python tests/python/test_races.py FOLDER [ROUNDS]

In each round two forked processes begin together. The one that gets the target goes on only when the other was refused.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

import rustload
from rustload.torch.distributed import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 20
BUSY = 3
STATE = {"a": torch.arange(1000.0), "b": torch.ones(7, 3)}


class HeldWriter(Writer):
    """A writer that waits before it writes."""

    wait: Callable[..., None]

    def write_data(self, *args: Any) -> Any:
        self.wait()
        return super().write_data(*args)


def save_file(target: Path, wait: Callable[..., None]) -> None:
    rustload.save(STATE, target, progress=wait)


def save_folder(target: Path, wait: Callable[..., None]) -> None:
    rustload.save(STATE, target, max_shard_size=2000, progress=wait)


def write_folder(target: Path, wait: Callable[..., None]) -> None:
    writer = HeldWriter(target)
    writer.wait = wait
    dcp.save(STATE, storage_writer=writer)


TARGETS = {save_file: "m.safetensors", save_folder: "shards/", write_folder: "distributed"}


def forked(work: Callable[[], None]) -> int:
    """Starts a process that does the work; it exits with 0, or with 3 if the target was busy."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        # torch wraps the errors of all ranks.
        cause = error.failures[0][0] if isinstance(error, CheckpointException) else error
        code = BUSY if getattr(cause, "code", None) == "TargetBusy" else 1
        sys.stderr.write(f"{error!r}\n" if code == 1 else "")
    finally:
        os._exit(code)


def race(write: Callable[..., None], folder: Path) -> None:
    """One round."""
    target = f"{folder}/{TARGETS[write]}"
    starts, start = os.pipe()
    goes, go = os.pipe()

    def work() -> None:
        os.close(start)
        os.close(go)
        os.read(starts, 1)  # until the other end is closed
        write(target, lambda *_: os.read(goes, 1) and None)

    children = {forked(work), forked(work)}
    os.close(starts)
    os.close(start)
    os.close(goes)
    first, status = os.wait()
    assert os.waitstatus_to_exitcode(status) == BUSY, (write.__name__, status)
    os.close(go)
    (winner,) = children - {first}
    assert os.waitstatus_to_exitcode(os.waitpid(winner, 0)[1]) == 0, write.__name__
    left = [path.name for path in folder.iterdir()]
    assert left == [TARGETS[write].rstrip("/")], left
    with rustload.open(target.rstrip("/")) as found:
        assert found.keys() == STATE.keys()
        assert all(
            torch.equal(found[name].materialize(framework="torch"), one) for name, one in STATE.items()
        )


def test_of_two_processes_one_wins_and_one_is_refused(tmp_path: Path) -> None:
    # A process of its own, as it forks.
    command = [sys.executable, __file__, str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{len(TARGETS) * ROUNDS}"]


def main(folder: str, rounds: str = str(ROUNDS)) -> None:
    warnings.simplefilter("ignore")
    done = 0
    for write in TARGETS:
        for number in range(int(rounds)):
            round_folder = Path(folder) / f"{write.__name__}{number}"
            round_folder.mkdir()
            race(write, round_folder)
            done += 1
    sys.stdout.write(f"{done}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
