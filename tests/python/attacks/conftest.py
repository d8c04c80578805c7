"""Makes the registry of attacks importable, which lies with the test data, and starts the process that opens files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "data")]


@pytest.fixture(scope="session")
def prober(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """The process that opens files, one for all tests."""
    from prober import Prober

    made = Prober(tmp_path_factory.mktemp("prober"))
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for a case's files. Some are large, and pytest keeps what a test leaves."""
    yield tmp_path
    for left in tmp_path.iterdir():
        if left.is_file() and not left.is_symlink():
            left.unlink()
