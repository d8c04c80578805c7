"""One of two processes of `test_forward.py`: models of transformers, sharded on meta and loaded by `load_into`; prints JSON."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

import rustload.torch

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
config = LlamaConfig(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=32,
)
torch.manual_seed(0)
whole = LlamaForCausalLM(config).eval()
tokens = torch.arange(6)[None]
expected = whole(tokens).logits
folder = Path(sys.argv[1])
if dist.get_rank() == 0:
    whole.save_pretrained(folder)
    torch.save(whole.state_dict(), folder / "model.bin")
dist.barrier()


def fsdp(model):
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def tp(model):
    rows = ("self_attn.o_proj", "mlp.down_proj")
    columns = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")
    plan = {name: RowwiseParallel() for name in rows} | {name: ColwiseParallel() for name in columns}
    for layer in model.model.layers:
        parallelize_module(layer, mesh, plan)


found = {}
for kind in ("bin", "safetensors"):
    for shard in (fsdp, tp):
        with torch.device("meta"):
            model = LlamaForCausalLM(config).eval()
        shard(model)
        report = rustload.torch.load_into(model, folder / f"model.{kind}")
        local = [
            one.to_local() if hasattr(one, "to_local") else one for one in model.model.layers.parameters()
        ]
        size = sum(one.nbytes for one in whole.model.layers.parameters())
        found[f"{shard.__name__} {kind}"] = {
            "equal": torch.allclose(model(tokens).logits, expected, atol=1e-5),
            "on_meta": report.on_meta,
            "held": sum(one.nbytes for one in local) / size,
        }
dist.destroy_process_group()
sys.stdout.write(json.dumps(found))
