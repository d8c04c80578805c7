"""Puts the attack registry (`tests/data/attacks`) on `sys.path`, and starts the process that opens the files."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "data")]


@pytest.fixture(scope="session")
def prober(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """The process that opens files, shared by all tests."""
    from prober import Prober

    process = Prober(tmp_path_factory.mktemp("prober"))
    yield process
    process.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a case's files, emptied after the test: some are large, and pytest keeps temporary folders."""
    yield tmp_path
    for path in tmp_path.iterdir():
        if path.is_file() and not path.is_symlink():
            path.unlink()
