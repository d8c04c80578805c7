"""The comparison with other tools: what its oracle and its driver see, and the tables of its page."""

import os
import pickle
import sys
from pathlib import Path

import pytest
import torch
from support import Reduced

sys.path.append(str(Path(__file__).resolve().parents[2]))

from benches.peers import __main__ as comparison
from benches.peers import driver, executes, files


@pytest.fixture
def attack(tmp_path):
    path = tmp_path / "attack.bin"
    path.write_bytes(pickle.dumps(Reduced(os.system, ('touch "$RUSTLOAD_CANARY/ran"',))))
    return path


@pytest.mark.filterwarnings("ignore")
def test_the_oracle_sees_what_a_loader_runs(attack, save):
    assert executes.runs(attack, executes.LOADERS["pickle.load"])
    assert not executes.runs(save({"w": torch.ones(2)}), executes.LOADERS["torch.load"])


def test_the_driver_gives_what_the_exit_code_says(attack, save, tmp_path):
    files.others(tmp_path)
    plain = save({"w": torch.ones(2)}, "plain.bin")
    found = {path.name: driver.rustload(path) for path in (attack, plain, tmp_path / "template.gguf")}
    assert found == {"attack.bin": "refused", "plain.bin": "passed", "template.gguf": "unread"}


def test_the_page_has_a_table_in_each_mark(tmp_path, monkeypatch):
    text = comparison.PAGE.read_text(encoding="utf-8")
    copy = tmp_path / "peers.md"
    copy.write_text(text, encoding="utf-8")
    monkeypatch.setattr(comparison, "PAGE", copy)
    names = ("attacks", "honest", "files", "costs")
    comparison.write(dict.fromkeys(names, "| filled in |"))
    assert copy.read_text(encoding="utf-8").count("| filled in |") == len(names)
    for title in comparison.SCANNERS.values():
        assert text.count(f"| `{title}` |") >= 3


def test_the_cost_of_a_command_is_its_own():
    found = comparison.cost([sys.executable, "-S", "-c", "raise SystemExit(3)"])
    assert (found.code, str(found)) == (3, "- (exit code 3)")
    big = comparison.cost([sys.executable, "-S", "-c", "x = bytearray(64 << 20)"])
    assert 64 < big.peak_mib < 128
