"""The planted faults of `make mutants` fit the sources: each has its text in its file once."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_text_of_each_planted_fault_is_in_its_file_once():
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "tests" / "mutants" / "run.py")
    mutants = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = mutants  # where dataclasses look for it
    spec.loader.exec_module(mutants)
    faults = mutants.faults()
    assert len(faults) > 100
    for fault in faults:
        assert fault.planted((ROOT / fault.file).read_text()) != fault.original
