"""The public interfaces on the fake driver: each `cases_*.py` runs in a process of its own, which loads that driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize("cases", sorted(path.name for path in HERE.glob("cases_*.py")))
def test_cases_pass_on_the_fake_driver(libcuda, cases):
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "hostgpu"]
    command = [sys.executable, "-m", "pytest", *options, str(HERE / cases)]
    env = {**os.environ, "RUSTLOAD_LIBCUDA": str(libcuda), "RUSTLOAD_RING": "65536x6"}
    env["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")])
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, env=env, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
