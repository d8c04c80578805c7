"""A file that is truncated, overwritten or replaced at a random moment of a read: the right elements, or an error."""

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import rustload

SIDE = 1024
ROUNDS = int(os.environ.get("RUSTLOAD_CHANGES", "10"))
"""For each way to change the file and to read it."""

READS: dict[str, Callable[[rustload.LazyTensor], torch.Tensor]] = {
    "copy": lambda lazy: lazy.materialize(copy=True),
    "cast": lambda lazy: lazy.materialize(dtype="bfloat16"),
    "transpose": lambda lazy: lazy.materialize(transpose=True),
    "part": lambda lazy: lazy[::2, 100:900].materialize(copy=True),
}


def state(version: int) -> dict[str, torch.Tensor]:
    """One tensor whose elements all are the version, which every dtype has."""
    return {"w": torch.full((SIDE, SIDE), version, dtype=torch.int16).float()}


def overwrite(path: Path, version: int) -> None:
    with path.open("r+b") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        file.write(np.full(SIDE * SIDE, version, np.float32).tobytes())


def replace(path: Path, version: int) -> None:
    save_file(state(version), path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def truncate(path: Path, version: int) -> None:
    os.truncate(path, random.Random(version).randrange(path.stat().st_size))


@pytest.mark.parametrize("change", [overwrite, replace, truncate])
@pytest.mark.parametrize("read", READS)
def test_a_read_gives_the_elements_of_one_version_or_an_error(read, change, tmp_path):
    chosen, path = random.Random(read), tmp_path / "m.safetensors"
    errors = right = 0
    longest = usual = 0.001
    codes: set[str] = set()
    for number in range(ROUNDS):
        version = number % 100 + 1
        save_file(state(version), path)
        # A change in the same tick of the file system's clock is not seen.
        time.sleep(0.01)
        lazy = rustload.open(path)["w"]
        delay = chosen.random() * usual * 1.2
        began = threading.Event()

        def meddle(delay: float = delay, began: threading.Event = began, version: int = version) -> None:
            began.wait()
            time.sleep(delay)
            nonlocal longest
            start = time.monotonic()
            change(path, version + 100)
            longest = max(longest, time.monotonic() - start)

        writer = threading.Thread(target=meddle)
        writer.start()
        start = time.monotonic()
        began.set()
        try:
            found = READS[read](lazy)
        except (rustload.FormatError, OSError) as error:
            codes.add(getattr(error, "code", "FileChanged"))
            errors += 1
        else:
            assert torch.all(found == version), (number, found.unique())
            right += 1
            usual = max(usual, time.monotonic() - start)
        writer.join()
    assert codes <= {"FileChanged"}
    assert errors + right == ROUNDS
    # No lease or lock holds the writer up.
    assert longest < 1
