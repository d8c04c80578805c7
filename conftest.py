"""Runs the examples of README and docstrings in a folder with the files that they open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


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
