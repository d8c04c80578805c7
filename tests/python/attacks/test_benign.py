"""Two hundred benign checkpoints: all open, no module that they name is imported, and no verdict is "would execute"."""

from __future__ import annotations

import pytest
from attacks import benign

import rustload

FILES = list(benign.all_of_them())


def test_there_are_at_least_200_files():
    assert len(FILES) >= 200
    assert len({name for name, _, _ in FILES}) == len(FILES)


@pytest.mark.filterwarnings("ignore")  # torch warns about some of the objects that it saves
@pytest.mark.parametrize(("name", "suffix", "write"), FILES, ids=[name for name, _, _ in FILES])
def test_a_benign_checkpoint_opens(name, suffix, write, tmp_path, prober):
    path = tmp_path / f"{name}{suffix}"
    write(path)
    outcome = prober.ask(path)
    assert outcome.get("stage") == "done", outcome
    assert list(prober.canary.iterdir()) == []
    assert [
        module for module in outcome["modules"] if not module.startswith(("rustload", "collections"))
    ] == []
    scan = getattr(rustload, "scan", None)
    if scan is not None:
        report = scan(path)
        assert report.verdict != "would execute", report.findings
        assert report.complete
