"""One of two processes of `test_distributed.py`: tensor parallelism of transformers on lazy state dicts; prints JSON."""

import json
import sys
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed as dist
from ranged import Ranges
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig

import rustload.torch
import rustload.transformers

dist.init_process_group("gloo")
config = LlamaConfig(
    hidden_size=512,
    intermediate_size=2048,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=128,
    tie_word_embeddings=False,
)
torch.manual_seed(0)
whole = LlamaForCausalLM(config)
tokens = torch.arange(6)[None]
expected = whole(tokens).logits
folder = Path(sys.argv[1]) / f"rank{dist.get_rank()}"
whole.config.save_pretrained(folder)
state = whole.state_dict()
file = folder / "pytorch_model.bin"
# Every linear layer in rows (Shard(0)), each with its whole output; "auto" has columns (Shard(1)) as well.
in_rows = {f"model.{name}": "colwise_gather_output" for name in config.base_model_tp_plan}


def described(model, read=0, size=1):
    """What a rank holds of a model and has read of its file, as shares of the file, and whether the model computes the same."""
    logits = model(tokens).logits
    if hasattr(logits, "full_tensor"):
        logits = logits.full_tensor()
    local = [one.to_local() if hasattr(one, "to_local") else one for one in model.parameters()]
    return {
        "rows": model.model.layers[0].self_attn.q_proj.weight.to_local().shape[0],
        "equal": torch.allclose(logits, expected, atol=1e-4),
        "tensors": len(local),
        "size": size,
        "held": sum(one.nbytes for one in local) / size,
        "read": read / size,
    }


found = {}
for form in ("legacy", "zip", "safetensors"):
    if form == "safetensors":
        data = safetensors.torch.save(state)
    else:
        torch.save(state, file, _use_new_zipfile_serialization=form == "zip")
        data = file.read_bytes()
    for name, plan in (("auto", "auto"), ("rows", in_rows)):
        source = Ranges(data)
        lazy = rustload.torch.state_dict(source)
        of_metadata = source.nbytes
        model = LlamaForCausalLM.from_pretrained(
            None, config=config, state_dict=lazy, distributed_config=DistributedConfig(tp_plan=plan)
        )
        found[f"{form} {name}"] = described(model, source.nbytes - of_metadata, source.size)
model = rustload.transformers.from_pretrained(
    AutoModelForCausalLM, folder, distributed_config=DistributedConfig(tp_plan="auto")
)
found["folder"] = described(model)
dist.destroy_process_group()
sys.stdout.write(json.dumps(found))
