"""Two hundred honest checkpoints: all open, nothing they name is imported, and none is said to execute."""

from __future__ import annotations

import pytest
from attacks import benign

import rustload

FILES = list(benign.all_of_them())


def test_there_are_two_hundred():
    assert len(FILES) >= 200
    assert len({name for name, _, _ in FILES}) == len(FILES)


@pytest.mark.filterwarnings("ignore")  # torch's own, about what it is asked to save
@pytest.mark.parametrize(("name", "suffix", "write"), FILES, ids=[name for name, _, _ in FILES])
def test_an_honest_checkpoint_opens(name, suffix, write, tmp_path, prober):
    path = tmp_path / f"{name}{suffix}"
    write(path)
    said = prober.ask(path)
    assert said.get("stage") == "done", said
    assert list(prober.canary.iterdir()) == []
    assert [module for module in said["modules"] if not module.startswith(("rustload", "collections"))] == []
    scan = getattr(rustload, "scan", None)
    if scan is not None:
        report = scan(path)
        assert report.verdict != "would execute", report.findings
        assert report.complete
