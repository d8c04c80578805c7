"""Runs the examples of README and docstrings in a folder with the files that they open, and tests that measure alone."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).parent / "tests" / "python"))  # the tests are imported by path

import quiet

# Tests run in several processes: threads of torch that wait for each other spin, and take the cores from the other processes.
os.environ["OMP_NUM_THREADS"] = "1"

PROJECT = {"test_bench.py", "test_gpu_bench.py", "test_pages.py", "test_peers.py", "test_site.py"}
"""Files that test the project's documents and benchmarks, in `make check` alone: what `make test` tests is the product."""


PACKAGE = Path(__file__).parent / "python"

IN_A_TEST = "PYTEST_CURRENT_TEST" in os.environ
"""Whether a test runs this pytest. That test holds the lock already, and would wait for one that waits for it."""


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules without examples or tests are not imported: their libraries take seconds, or are not installed."""
    if collection_path.suffix != ".py":
        return None
    if not collection_path.is_relative_to(PACKAGE):
        return None if collection_path.name.startswith(("test_", "conftest")) else True
    # The examples of what the extension defines are found in the package itself.
    examples = collection_path.name == "__init__.py" or ">>>" in collection_path.read_text(encoding="utf-8")
    return None if examples else True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the items; those that measure come last, so that the others seldom wait for them."""
    for item in items:
        if item.path.name in PROJECT:
            item.add_marker("project")
        if quiet.measures(item.path, item.nodeid):
            item.add_marker("quiet")
    items.sort(key=lambda item: item.get_closest_marker("quiet") is not None)


def pytest_collection_finish() -> None:
    hide_from_collector()


def hide_from_collector() -> None:
    """Hides what is there from the garbage collector: every full pass over what tests import takes up to a second."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Outside of the time limit of pytest-timeout: it does not count the wait."""
    alone = item.get_closest_marker("quiet") is not None
    if alone:
        hide_from_collector()
    if IN_A_TEST:
        return (yield)
    with quiet.room(alone=alone):
        return (yield)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--splices", type=int, default=3000, help="files that test_splices.py splices from two formats"
    )


@pytest.fixture(scope="session")
def sample_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import safetensors.torch
    import torch

    folder = tmp_path_factory.mktemp("samples")
    torch.manual_seed(0)
    state = {f"{name}.weight": torch.randn(8, 8) for name in ("q", "k", "v", "lm_head")}
    torch.save(state, folder / "model.pt")
    torch.save(state, folder / "model.bin")
    safetensors.torch.save_file(state, folder / "model.safetensors")
    sharded = folder / "llama"
    sharded.mkdir()
    weight_map = {}
    for number, part in enumerate((list(state)[:2], list(state)[2:]), start=1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: state[name] for name in part}, sharded / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": 4 * 256}, "weight_map": weight_map}
    (sharded / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return folder


@pytest.fixture(autouse=True)
def _examples_run_beside_their_files(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_doctest = isinstance(request.node, pytest.DoctestItem)
    if not is_doctest and request.node.get_closest_marker("examples") is None:
        return
    import shutil

    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(request.getfixturevalue("sample_files"), folder, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
