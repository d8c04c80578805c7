"""Two hundred benign checkpoints: all open, none has a module imported that it names, and only those with code are not inert."""

import pytest
from attacks import benign

import rustload

FILES = list(benign.all_of_them())
UNKNOWN = {
    *("object-config", "object_protocol4-config", "lightning-config", "lightning_legacy-config"),
    *("object-enum", "object_protocol4-enum", "module-block", "module_legacy-block", "torchscript"),
    *(f"module{form}-{layer}" for form in ("", "_legacy") for layer in ("lstm", "gru", "transformer")),
}
"""Files with classes of a training script, layers whose state cannot be closed, and TorchScript, whose code is in the archive."""


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
        assert report.verdict == ("unknown" if name in UNKNOWN else "inert"), report.findings
        assert report.complete
