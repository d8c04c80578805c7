"""Which files of a folder run the payload when a common loader reads them: the oracle of the table, independent of every scanner.

The payloads of `tests/data/attacks` create a file in the folder that `RUSTLOAD_CANARY` names, and do nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 20
MEMORY = 12 << 30


def unpickle(path: Path) -> Any:
    """All pickles in the file, one after the other."""
    with path.open("rb") as file:
        while True:
            pickle.load(file)


LOADERS: dict[str, Callable[[Path], Any]] = {
    "torch.load": lambda path: torch.load(path, weights_only=False),
    "pickle.load": unpickle,
    "numpy.load": lambda path: [*np.load(path, allow_pickle=True)],
    "joblib.load": joblib.load,
}


def runs(path: Path, loader: Callable[[Path], Any]) -> bool:
    """Whether the payload ran, in a process of its own."""
    with tempfile.TemporaryDirectory() as canary:
        child = os.fork()
        if not child:
            os.environ["RUSTLOAD_CANARY"] = canary
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            signal.alarm(LIMIT_S)
            null = os.open(os.devnull, os.O_RDWR)
            for stream in range(3):
                os.dup2(null, stream)
            with contextlib.suppress(BaseException):
                loader(path)
            os._exit(0)
        os.waitpid(child, 0)
        return bool(os.listdir(canary))  # noqa: PTH208 - names are not needed


def main(folder: str) -> None:
    """Prints a JSON object from names of files to the loaders that ran the payload."""
    warnings.simplefilter("ignore")
    found = {}
    for path in sorted(Path(folder).iterdir()):
        found[path.name] = [name for name, loader in LOADERS.items() if runs(path, loader)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
