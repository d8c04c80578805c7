"""Cases with whole checkpoints of realistic models: 300 tensors of a dense one, 18,000 of a mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .case import CACHE, movement
from .many import SmallCase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Shapes = list[tuple[str, tuple[int, ...]]]


class SetCase(SmallCase):
    """Load all tensors of a bfloat16 checkpoint, as owned torch tensors."""

    def __init__(self, kind: str, shapes: Shapes, suffix: str) -> None:
        self.kind, self.shapes, self.suffix = kind, shapes, suffix
        size = f"{self.nbytes / 1e9:.1f} GB" if self.nbytes >= 1e9 else f"{self.nbytes / 1e6:.0f} MB"
        self.title = f"load {len(shapes):,} tensors of a {kind} model, {size} of bfloat16, as owned torch tensors, {suffix}"

    @property
    def nbytes(self) -> int:
        return sum(torch.Size(shape).numel() for _, shape in self.shapes) * 2

    @property
    def arena(self) -> int:
        return self.nbytes  # nothing is converted

    @property
    def path(self) -> Path:
        return CACHE / f"{self.kind}-{len(self.shapes)}-{self.nbytes}{self.suffix}"

    def tensors(self) -> dict[str, torch.Tensor]:
        numbers = torch.randn(max(torch.Size(shape).numel() for _, shape in self.shapes)).bfloat16()
        return {
            name: numbers[: torch.Size(shape).numel()].roll(at).reshape(shape)
            for at, (name, shape) in enumerate(self.shapes)
        }

    def limit_probe(self) -> Callable[[], object]:
        return movement(self.nbytes // 4, torch.float32)


def dense(layers: int, width: int) -> Shapes:
    """The shapes of a dense model: nine tensors per layer, the embedding, the final norm and the head."""
    attention = [f"self_attn.{name}_proj.weight" for name in "qkvo"]
    found: Shapes = [("model.embed_tokens.weight", (4 * width, width))]
    for layer in range(layers):
        named: Shapes = [(name, (width, width)) for name in attention]
        named += [(f"mlp.{name}_proj.weight", (5 * width // 4, width)) for name in ("gate", "up")]
        named += [("mlp.down_proj.weight", (width, 5 * width // 4))]
        named += [("input_layernorm.weight", (width,)), ("post_attention_layernorm.weight", (width,))]
        found += [(f"model.layers.{layer}.{name}", shape) for name, shape in named]
    return [*found, ("model.norm.weight", (width,)), ("lm_head.weight", (4 * width, width))]


def experts(layers: int, each: int, width: int, inner: int) -> Shapes:
    """The shapes of a mixture of experts: three small matrices per expert and layer."""
    shapes = {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
    return [
        (f"model.layers.{layer}.mlp.experts.{expert}.{name}_proj.weight", shape)
        for layer in range(layers)
        for expert in range(each)
        for name, shape in shapes.items()
    ]
