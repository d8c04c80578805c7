"""A process of a run of DeepSpeed on the CPU: `python deepspeed_run.py OUT CASE`, with variables as torchrun sets them.

Saves `OUT/CASE`, and in `OUT/CASE.RANK.pt` the state dict that the rank then has.
"""

import os
import sys

import deepspeed
import torch
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from torch import nn

OUT, CASE = sys.argv[1:]
RANK = os.environ["RANK"]


class Dense(nn.Module):
    """Tied, frozen and odd-sized parameters, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 7)
        self.norm, self.middle, self.still = nn.LayerNorm(7), nn.Linear(7, 7), nn.Linear(7, 7)
        self.register_buffer("offset", torch.arange(7.0) / 8)
        self.head = nn.Linear(7, 11, bias=False)
        self.head.weight = self.embed.weight
        self.still.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        return self.head(self.still(self.norm(self.middle(h)) + self.offset.to(h.dtype))).float().sum()

    def batch(self) -> torch.Tensor:
        return torch.randint(0, 11, (8,))


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 6)
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x)))


class Mixture(nn.Module):
    """Two layers of experts."""

    def __init__(self, sets: int) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.moe = MoE(6, Expert(), num_experts=4, ep_size=sets, k=1, min_capacity=16)
        self.second = MoE(
            6, Expert(), num_experts=2, ep_size=min(sets, 2), k=1, use_residual=True, min_capacity=16
        )
        self.last = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, one, _ = self.moe(self.first(x))
        h, two, _ = self.second(h)
        return self.last(h).float().sum() + one.float() + two.float()

    def batch(self) -> torch.Tensor:
        return torch.randn(8, 4, 6)


CASES = {
    "stage1": (1, "float32", 0, {}),
    "stage2": (2, "bfloat16", 0, {}),
    "stage3": (3, "bfloat16", 0, {"sub_group_size": 50}),
    "bf16_optimizer": (1, "bfloat16", 0, {"master": True}),
    "experts1": (1, "float32", 2, {}),
    "experts1_of_four": (1, "bfloat16", 4, {}),
    "experts2": (2, "bfloat16", 2, {}),
    "experts2_data_first": (2, "float32", 2, {"data_first": True}),
    "experts_bf16_optimizer": (1, "bfloat16", 2, {"master": True}),
}


def main() -> None:
    torch.set_num_threads(1)
    stage, dtype, sets, more = CASES[CASE]
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    torch.manual_seed(0)
    model = Mixture(sets) if sets else Dense()
    # Experts of different ranks differ.
    torch.manual_seed(100 + int(RANK))
    for name, parameter in model.named_parameters():
        if "deepspeed_experts" in name:
            nn.init.normal_(parameter)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [one for one in trained if one.ndim > 1], "name": "matrices"},
        {"params": [one for one in trained if one.ndim < 2], "name": "vectors"},
    ]
    if sets:
        groups = split_params_into_different_moe_groups_for_optimizer(groups)
    config = {
        "train_micro_batch_size_per_gpu": 8,
        "zero_optimization": {"stage": stage, "sub_group_size": more.get("sub_group_size", 10**9)},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "use_data_before_expert_parallelism": more.get("data_first", False),
        "bf16": {"enabled": dtype == "bfloat16"},
    }
    if more.get("master"):
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for step in range(2):
        torch.manual_seed(10 * step + int(RANK))
        batch = model.batch()
        engine.backward(engine(batch.to(getattr(torch, dtype)) if batch.is_floating_point() else batch))
        engine.step()
    engine.save_checkpoint(f"{OUT}/{CASE}")
    own = {name: tensor.clone() for name, tensor in engine.module.state_dict().items()}
    torch.save(own, f"{OUT}/{CASE}.{RANK}.pt")
    # Ending gloo aborts now and then, and a rank must not end while another one still waits for it.
    torch.distributed.barrier()
    os._exit(0)


main()
