"""The examples and the Python blocks of the pages about models run, and do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from support import child

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```python(?P<note>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = ("load_into", "training_checkpoints", "transformers", "accelerate", "jax")


@pytest.fixture(autouse=True)
def _the_examples_are_found(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)


@pytest.mark.examples
@pytest.mark.filterwarnings("ignore")  # transformers is not ours to keep quiet
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_one_after_the_other(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    blocks = list(FENCE.finditer(text))
    assert blocks
    names = {"__name__": "__page__"}
    for match in blocks:
        line = text.count("\n", 0, match.start("code"))
        code = compile("\n" * line + match["code"], f"docs/{page}.md", "exec")
        if "compile-only" not in match["note"]:
            exec(code, names)


def test_low_memory(capsys):
    from examples import low_memory

    model = low_memory.main([])
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model["head"].weight is model["embed"].weight
    assert "tied: [['embed.weight', 'head.weight']]" in capsys.readouterr().out


def test_training_checkpoint(capsys):
    from examples import training_checkpoint

    sizes = training_checkpoint.main([])
    assert sizes["state_dict.0"] == (16 * 32 + 32) * 4
    out = capsys.readouterr().out
    assert "kept as data: argparse.Namespace x1, at hyper_parameters" in out
    assert re.search(r"state_dict\.2\.weight +float32 +\[4, 32\] +norm \d", out)


@pytest.mark.filterwarnings("ignore")
def test_transformers_bin(capsys):
    from examples import transformers_bin

    model = transformers_bin.main([])
    assert model.dtype == torch.bfloat16
    assert re.search(
        r"LlamaForCausalLM in torch.bfloat16: \[\[1, 2, 3(, \d+){5}\]\]", capsys.readouterr().out
    )


def test_accelerate_offload(capsys):
    from examples import accelerate_offload

    found, expected = accelerate_offload.main()
    assert torch.equal(found, expected)
    assert "equal: True; parameters on meta; files: ['model.bin']" in capsys.readouterr().out


@pytest.mark.examples
def test_jax_params():
    code = f"""
    import sys
    sys.path.insert(0, {str(ROOT)!r})
    from examples import jax_params
    assert jax_params.main("model.bin").shape == (1, 8)
    assert "torch" not in sys.modules
    """
    assert "bfloat16[8, 8]" in child(code).stdout
