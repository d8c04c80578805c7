"""The programs in `examples` run with the documented results."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support import child

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _examples_on_sys_path(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)


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


def test_convert(capsys):
    from examples import convert

    half, weights = convert.main([])
    assert (half.tensors, half.converted, weights.tensors, weights.converted) == (4, 4, 4, 0)
    out = capsys.readouterr().out
    index = "model.safetensors.index.json"
    assert (
        f"  config.json, model-00001-of-00002.safetensors, model-00002-of-00002.safetensors, {index}\n" in out
    )
    assert "  0.bias, 0.weight, 2.bias, 2.weight\n" in out or "  0.weight, 0.bias, 2.weight, 2.bias\n" in out
    assert "  epoch 3, learning rate 0.001\n" in out


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("tied", "groups", "shards"), [(False, 4, "10GB"), (True, 2, "20KB")])
def test_jax_params(tmp_path, tied, groups, shards):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=groups, tie_word_embeddings=tied, rope_theta=500.0,
        )
    ).eval()  # fmt: skip
    folder = tmp_path / "tiny"
    if tied:
        model.save_pretrained(folder, max_shard_size=shards)
        assert len(list(folder.glob("*.safetensors"))) > 1
    else:
        model.config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    tokens = [5, 9, 3, 60, 2]
    expected = model(torch.tensor([tokens])).logits[0].detach()
    code = f"""
    import sys
    sys.path.insert(0, {str(ROOT)!r})
    from examples import jax_params
    import jax
    jax.config.update("jax_default_matmul_precision", "highest")
    import numpy as np
    np.save(sys.argv[1], jax_params.main(*sys.argv[2:]))
    assert "torch" not in sys.modules
    """
    output = child(code, tmp_path / "out.npy", folder, *tokens).stdout
    found = torch.from_numpy(np.load(tmp_path / "out.npy"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert f"after {tokens} comes {int(expected[-1].argmax())}" in output
    assert "'q_proj': {'weight': 'float32[32, 32]'}" in output
