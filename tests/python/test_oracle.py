"""The oracle fuzzer: real readers run what the scan calls inert. `make fuzz` runs it for longer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_oracle_notices_a_payload_through_every_reader(tmp_path: Path) -> None:
    options = ["--count", "0", "--few-seeds", "--out", str(tmp_path)]
    ran = subprocess.run(
        [sys.executable, "-m", "fuzz.oracle", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
