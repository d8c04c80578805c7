"""Fixtures of the Python tests. Helpers that are not fixtures are in `support.py`, which tests import by name."""

import gc
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# The tests are imported by path (`--import-mode=importlib`), so `sys.path` needs the folder of their helpers,
sys.path.insert(0, str(Path(__file__).resolve().parent))
# and that of the generators of test data; last, as their names are common ones.
sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))

# Background jobs of a shell ignore SIGINT, and children inherit that: tests of Ctrl-C would hang.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


collect_ignore = ["stand_ins"]
collect_ignore_glob = ["*_child.py"]
"""Programs that tests run in processes of their own, and packages that tests import in place of others."""


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that are sent again do not wait."""
    from rustload._remote import web

    monkeypatch.setattr(web, "RETRY_SECONDS", (0.001,) * len(web.RETRY_SECONDS))


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """`save(obj, name)`: writes a file in the format of the name's extension, by torch or safetensors."""
    import safetensors.torch
    import torch

    def write(obj: Any, name: str = "model.bin", **options: Any) -> Path:
        path = tmp_path / name
        if path.suffix == ".safetensors":
            safetensors.torch.save_file(obj, path, **options)
        else:
            torch.save(obj, path, **options)
        return path

    return write


@pytest.fixture
def simple(save: Callable[..., Path]) -> Path:
    """A checkpoint of two plain tensors: `w`, float32 (4, 6) counting from 0, and `b`, int64 (3)."""
    import torch

    return save({"w": torch.arange(24, dtype=torch.float32).reshape(4, 6), "b": torch.tensor([1, -2, 3])})


@pytest.fixture
def collect() -> Callable[[], None]:
    """Runs the garbage collector until it finds nothing."""

    def run() -> None:
        while gc.collect():
            pass

    return run


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """`command("info", path)`: runs the command line in this process; gives its exit code, what it printed, and its messages."""
    from rustload._cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([*map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


@pytest.fixture
def no_torch_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever calls `torch.load` fails."""
    import torch

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("torch.load was called")

    monkeypatch.setattr(torch, "load", refuse)
