"""Builds the fake CUDA driver once, and runs child processes on it."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import child, patterns

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake driver library, built from `tests/data/fakecuda`."""
    return _built(tmp_path_factory.mktemp("fakecuda") / "libcuda.so.1")


@pytest.fixture(scope="session")
def libhip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with HIP's names in place of CUDA's, which are those that rustload asks for."""
    rows = (HERE.parents[2] / "src" / "sink" / "cuda" / "driver" / "table.rs").read_text("utf-8")
    names = re.findall(r'"(cu\w+)" "(hip\w+)"\(', rows)
    assert len(names) == 26
    return _built(
        tmp_path_factory.mktemp("fakehip") / "libamdhip64.so",
        *(f"-Wl,--defsym={hip}={cuda}" for cuda, hip in names),
    )


def _built(library: Path, *names: str) -> Path:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler to build the fake driver with")
    source = HERE.parents[1] / "data" / "fakecuda" / "fakecuda.c"
    options = ["-O1", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{library.name}", *names]
    subprocess.run([compiler, *options, "-o", str(library), str(source)], check=True)
    return library


@pytest.fixture
def on_fake(libcuda: Path, request: pytest.FixtureRequest) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`on_fake(code, *args, **environment)`: Python code in a process of its own, which loads the fake driver.

    Before it runs `start`, by default `START` of the test's module. The code may import `fakecuda` and `support`. By default it
    must exit with 0 and write nothing to stderr.
    """

    def run(
        code: str, *args: object, start: str | None = None, check: bool = True, **environment: Any
    ) -> subprocess.CompletedProcess[str]:
        start = getattr(request.module, "START", "") if start is None else start
        path = os.pathsep.join(filter(None, [str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH")]))
        env = {"RUSTLOAD_LIBCUDA": str(libcuda), "PYTHONPATH": path}
        # CPython 3.12 and later warn of a fork with other threads.
        env["PYTHONWARNINGS"] = "ignore:This process:DeprecationWarning"
        env |= {key: str(value) for key, value in environment.items()}
        done = child(textwrap.dedent(start) + textwrap.dedent(code), *args, check=False, env=env)
        if check:
            assert done.returncode == 0, f"{done.stderr}{done.stdout}"
            assert done.stderr == ""
        return done

    return run


@pytest.fixture
def many(save: Callable[..., Path]) -> tuple[Path, dict[str, torch.Tensor]]:
    """300 tensors, small and large, of several dtypes, some tied."""
    generator = torch.Generator().manual_seed(3)
    state = {f"layer.{n:03}.weight": torch.randn(40 + n, 50, generator=generator) for n in range(150)}
    state |= {f"layer.{n:03}.bias": torch.randn(n % 7, generator=generator) for n in range(150)}
    state |= {f"int.{n}": patterns("int16", (n, 9)) for n in range(20)}
    state["large"] = torch.randn(900, 1100, generator=generator).to(torch.bfloat16)
    state["tied"] = state["large"]
    state["tied part"] = state["large"][:10]
    state["last"] = state["large"]
    return save(state), state
