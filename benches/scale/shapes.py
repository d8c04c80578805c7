"""The tensors of a Llama model, and how FSDP over tensor parallelism distributes them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The sizes in a configuration of transformers' Llama."""

    layers: int
    hidden: int
    intermediate: int
    key_value: int
    vocabulary: int

    def tensors(self) -> dict[str, tuple[tuple[int, ...], int | None]]:
        """For each parameter its shape, and the dimension that tensor parallelism cuts; None for one on every rank."""
        hidden, inner = self.hidden, self.intermediate
        found: dict[str, tuple[tuple[int, ...], int | None]] = {
            "model.embed_tokens.weight": ((self.vocabulary, hidden), 0)
        }
        for layer in range(self.layers):
            there = f"model.layers.{layer}"
            found |= {
                f"{there}.self_attn.q_proj.weight": ((hidden, hidden), 0),
                f"{there}.self_attn.k_proj.weight": ((self.key_value, hidden), 0),
                f"{there}.self_attn.v_proj.weight": ((self.key_value, hidden), 0),
                f"{there}.self_attn.o_proj.weight": ((hidden, hidden), 1),
                f"{there}.mlp.gate_proj.weight": ((inner, hidden), 0),
                f"{there}.mlp.up_proj.weight": ((inner, hidden), 0),
                f"{there}.mlp.down_proj.weight": ((hidden, inner), 1),
                f"{there}.input_layernorm.weight": ((hidden,), None),
                f"{there}.post_attention_layernorm.weight": ((hidden,), None),
            }
        found["model.norm.weight"] = ((hidden,), None)
        found["lm_head.weight"] = ((self.vocabulary, hidden), 0)
        return found

    def nbytes(self) -> int:
        """The size of the model in bfloat16."""
        return sum(2 * torch.Size(shape).numel() for shape, _ in self.tensors().values())


LLAMA_405B = Shapes(layers=126, hidden=16384, intermediate=53248, key_value=1024, vocabulary=128256)
"""meta-llama/Llama-3.1-405B, its config.json."""


def sharded_model(shapes: Shapes, mesh: DeviceMesh) -> torch.nn.Module:
    """The model on the meta device: what mesh dimension "tp" cuts, if there is one, and `fully_shard` over "dp" of that."""
    from torch.distributed.fsdp import fully_shard

    names = mesh.mesh_dim_names or ()
    root = torch.nn.Module()
    for name, (shape, dim) in shapes.tensors().items():
        tensor: Any = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        if "tp" in names:
            tensor = _tensor_parallel(tensor, mesh["tp"], dim)
        *outer, last = name.split(".")
        module = root
        for part in outer:
            if not hasattr(module, part):
                module.add_module(part, torch.nn.Module())
            module = module.get_submodule(part)
        module.register_parameter(last, torch.nn.Parameter(tensor))
    fully_shard(root, mesh=mesh["dp"])
    return root


def _tensor_parallel(tensor: torch.Tensor, mesh: DeviceMesh, dim: int | None) -> torch.Tensor:
    from torch.distributed.tensor import DTensor, Replicate, Shard

    placement = Replicate() if dim is None else Shard(dim)
    local = tensor if dim is None else tensor.chunk(mesh.size(), dim)[mesh.get_local_rank()].contiguous()
    made: torch.Tensor = DTensor.from_local(
        local, mesh, [placement], run_check=False, shape=tensor.shape, stride=tensor.stride()
    )
    return made
