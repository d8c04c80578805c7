"""A slice of the oracle fuzzer: real readers run what the scan calls inert. `make fuzz` runs it for longer."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def counts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The counts of one run, which fails at its start if the oracle does not notice a payload through every reader."""
    out = tmp_path_factory.mktemp("finds")
    few = "--seed 1 --programs 4000 --splices 1000 --changes 2000 --few-seeds --json"
    options = [*few.split(), "--out", str(out)]
    ran = subprocess.run(
        [sys.executable, "-m", "fuzz.oracle", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode in (0, 1), ran.stderr
    about = [path.read_text() for path in sorted(out.glob("*.json"))]
    return {"about": about, **json.loads(ran.stdout)}


def test_no_reader_does_more_with_an_inert_file_than_the_scan_says(counts):
    assert counts["finds"] == {}, counts["about"]


def test_the_readers_read_inert_files(counts):
    assert counts["inert_inputs"]["programs"] >= 0.3 * counts["inputs"]["programs"]
    assert len(counts["names"]) >= 350, "programs that are inert name nearly the whole table"
    readers = ("pickle", "pickle.py", "torch", "torch zip", "numpy", "tarfile", "zipfile")
    assert min(counts["ran"].get(reader, 0) for reader in readers) >= 5, counts["ran"]
