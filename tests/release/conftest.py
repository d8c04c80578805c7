"""Fixtures of the release tests: a wheel, built once from a copy of the checkout."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from build import ROOT, build_wheel, copy_checkout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for Linux on x86-64. `RUSTLOAD_WHEEL` names one that was built before."""
    if given := os.environ.get("RUSTLOAD_WHEEL"):
        return Path(given)
    folder = tmp_path_factory.mktemp("first")
    return build_wheel(copy_checkout(folder / "checkout"), folder / "dist", ROOT / "target/wheel")
