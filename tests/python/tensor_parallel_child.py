"""One of two processes of `test_distributed.py`: tensor parallelism of transformers on a lazy state dict; prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from test_dtensor import Counted

import rustload.torch

dist.init_process_group("gloo")
config = transformers.LlamaConfig(
    hidden_size=256,
    intermediate_size=1024,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    vocab_size=128,
    tie_word_embeddings=False,
)
torch.manual_seed(0)
whole = transformers.LlamaForCausalLM(config)
path = Path(sys.argv[1]) / f"rank{dist.get_rank()}.bin"
torch.save(whole.state_dict(), path, _use_new_zipfile_serialization=False)
source = Counted(path.read_bytes())
lazy = rustload.torch.state_dict(source)
of_metadata = source.count
model = transformers.LlamaForCausalLM.from_pretrained(None, config=config, state_dict=lazy, tp_plan="auto")
read = source.count - of_metadata
tokens = torch.arange(6)[None]
logits = model(tokens).logits
if hasattr(logits, "full_tensor"):
    logits = logits.full_tensor()
found = {
    "rows": model.model.layers[0].self_attn.q_proj.weight.to_local().shape[0],
    "equal": torch.allclose(logits, whole(tokens).logits, atol=1e-4),
    "read": read / source.size,
}
dist.destroy_process_group()
sys.stdout.write(json.dumps(found))
