"""Checkpoints of integers with scales as compressed-tensors writes them, with what they mean (`quantized_files`)."""

from functools import partial

import torch
from quantized_case import (
    BF16,
    F16,
    F32,
    I8,
    I32,
    I64,
    Case,
    Config,
    Draw,
    Shape,
    case,
    compressed,
    dense,
    joined,
    modelopt,
    named,
    times,
    whole_fields,
)

UP = "model.layers.0.mlp.up_proj"
KIMI = "model.layers.0.mlp.experts.3.gate_proj"


def pack_quantized(
    name: str,
    shape: tuple[int, int],
    bits: int,
    group_size: int = 0,
    dtype: torch.dtype = BF16,
    *,
    symmetric: bool = True,
    g_idx: str | None = None,
    old: bool = False,
    prefix: str = UP,
    shape_dtype: torch.dtype = I64,
    config: Config | None = None,
) -> Case:
    """`pack-quantized`: unsigned fields in words along K, of the code and half of its range; zero points along N.

    `old`: as versions before 0.20 packed 3, 5, 6 and 7 bits, without codes that lie in two words.
    """
    draw, (rows, columns) = Draw(name, shape, bits), shape
    size = group_size or columns
    half, pack = 1 << bits - 1, whole_fields if old else dense
    fields = draw.codes(shape, 1 << bits)
    scale = draw.scales((rows, columns // size), dtype)
    group = torch.arange(columns, dtype=I32) // size
    companions = {
        f"{prefix}.weight_scale": scale,
        f"{prefix}.weight_shape": torch.tensor([rows, columns], dtype=shape_dtype),
    }
    code = (fields - half).to(F32)
    if g_idx == "shuffled":
        group = draw.groups(columns, size)
        companions[f"{prefix}.weight_g_idx"] = group
    elif g_idx == "unused":
        companions[f"{prefix}.weight_g_idx"] = torch.full((columns,), -1, dtype=I32)
    if not symmetric:
        zero = draw.codes((rows, columns // size), 1 << bits)
        companions[f"{prefix}.weight_zero_point"] = pack(zero, bits, 0)
        code -= (zero - half)[:, group.long()]
    own = compressed(
        "pack-quantized",
        bits,
        "group" if group_size else "channel",
        symmetric=symmetric,
        group_size=group_size or None,
        actorder="group" if g_idx == "shuffled" else None,
    )
    scheme = f"int{bits}-{'group' if group_size else 'channel'}"
    value = times(code, scale[:, group.long()], dtype)
    codes = (f"{prefix}.weight_packed", pack(fields, bits))
    return case(name, scheme, f"{prefix}.weight", value, codes, companions, own if config is None else config)


def mixed(name: str) -> Case:
    """Two groups with formats of their own in one checkpoint, whose config is that of a part of a larger model."""
    down = "model.layers.0.mlp.down_proj"
    packed = pack_quantized(name, (24, 64), 4, 32, prefix=down)
    whole = int_quantized(name, (20, 50), (20, 1), BF16)
    groups = {}
    for number, (part, target) in enumerate(((packed, "re:.*down_proj$"), (whole, "re:.*up_proj$"))):
        group = part.config["quantization_config"]["config_groups"]["group_0"]
        groups[f"group_{number}"] = {**group, "targets": [target]}
    settings = packed.config["quantization_config"]
    settings = {**settings, "format": "mixed-precision", "config_groups": groups}
    found = joined(name, "mixed", packed, whole)
    return found._replace(config={"text_config": {"quantization_config": settings}})


def int_quantized(
    name: str,
    shape: tuple[int, int],
    scale_shape: Shape,
    dtype: torch.dtype,
    *,
    symmetric: bool = True,
    config: Config | None = None,
) -> Case:
    """int8 codes, with one scale for all, for each row, or for each group of columns."""
    draw = Draw(name, shape)
    code, scale = draw.codes(shape, 256, -128).to(I8), draw.scales(scale_shape, dtype)
    companions = {f"{UP}.weight_scale": scale}
    exact = code.to(F32)

    def wide(one: torch.Tensor) -> torch.Tensor:
        return one.reshape(scale_shape[0], -1).repeat_interleave(shape[1] // max(1, scale_shape[-1]), 1)

    is_grouped = len(scale_shape) == 2 and scale_shape[1] > 1
    if not symmetric:
        zero = draw.codes(scale_shape, 256, -128).to(I8)
        companions[f"{UP}.weight_zero_point"] = zero
        exact = exact - (wide(zero) if is_grouped else zero).to(F32)
    strategy = "tensor" if scale.numel() == 1 else "group" if is_grouped else "channel"
    value = times(exact, wide(scale) if is_grouped else scale.reshape(-1, 1), dtype)
    if config is None:
        config = compressed("int-quantized", 8, strategy, symmetric=symmetric)
    codes = (f"{UP}.weight", code)
    return case(name, f"int8-{strategy}", f"{UP}.weight", value, codes, companions, config)


BY_WORD = (
    partial(pack_quantized, "pack 4 group 32 of Kimi", (64, 224), 4, 32, prefix=KIMI),
    partial(pack_quantized, "pack 4 group 32 shape i32", (13, 96), 4, 32, prefix=KIMI, shape_dtype=I32),
    partial(pack_quantized, "pack 4 group 128 f16", (24, 256), 4, 128, F16),
    partial(pack_quantized, "pack 4 group 16 f32", (9, 48), 4, 16, F32),
    partial(pack_quantized, "pack 4 channel odd", (7, 37), 4),
    partial(pack_quantized, "pack 4 channel f32 asymmetric", (21, 45), 4, 0, F32, symmetric=False),
    partial(pack_quantized, "pack 4 group asymmetric", (12, 96), 4, 32, symmetric=False),
    partial(pack_quantized, "pack 4 group asymmetric f16", (13, 64), 4, 16, F16, symmetric=False),
    partial(pack_quantized, "pack 4 group g_idx", (10, 128), 4, 32, g_idx="shuffled"),
    partial(
        pack_quantized,
        "pack 4 group g_idx asymmetric",
        (18, 128),
        4,
        32,
        F16,
        g_idx="shuffled",
        symmetric=False,
    ),
    partial(pack_quantized, "pack 4 group g_idx unused", (10, 64), 4, 32, g_idx="unused"),
    partial(pack_quantized, "pack 4 without a config", (16, 160), 4, 32, config={}),
    partial(pack_quantized, "pack 8 channel", (16, 64), 8),
    partial(pack_quantized, "pack 8 channel odd", (11, 51), 8, 0, F16),
    partial(pack_quantized, "pack 8 group f32", (10, 96), 8, 32, F32),
    partial(pack_quantized, "pack 8 group asymmetric", (10, 96), 8, 32, symmetric=False),
    partial(pack_quantized, "pack 8 channel asymmetric f16", (9, 77), 8, 0, F16, symmetric=False),
    partial(pack_quantized, "pack 1 group", (8, 96), 1, 32),
    partial(pack_quantized, "pack 2 group asymmetric", (19, 64), 2, 16, symmetric=False),
    partial(pack_quantized, "pack 2 channel odd", (6, 35), 2, 0, F16),
)


def odd_bits() -> list[partial[Case]]:
    """3, 5, 6 and 7 bits, in the words of both ages."""
    found = []
    for bits in (3, 5, 6, 7):
        for age in ("old", "new"):
            made, name = partial(pack_quantized, old=age == "old"), f"pack {bits} {age}"
            found.append(partial(made, f"{name} group", (14, 96), bits, 32))
            found.append(partial(made, f"{name} channel odd", (5, 131), bits, 0, F16))
            found.append(partial(made, f"{name} asymmetric", (96, 64), bits, 32, F32, symmetric=False))
    return found


SMOOTH = modelopt("W8A8_SQ_PER_CHANNEL")

INT_CASES = named(
    *BY_WORD,
    *odd_bits(),
    partial(mixed, "two formats of compressed-tensors"),
    partial(int_quantized, "int8 channel bf16", (33, 65), (33, 1), BF16),
    partial(int_quantized, "int8 channel f32", (18, 40), (18, 1), F32),
    partial(int_quantized, "int8 channel f16 asymmetric", (17, 31), (17, 1), F16, symmetric=False),
    partial(int_quantized, "int8 channel bf16 asymmetric", (32, 48), (32, 1), BF16, symmetric=False),
    partial(int_quantized, "int8 tensor bf16", (7, 300), (1,), BF16),
    partial(int_quantized, "int8 tensor f32 asymmetric", (7, 300), (1,), F32, symmetric=False),
    partial(int_quantized, "int8 group bf16", (9, 96), (9, 3), BF16),
    partial(int_quantized, "int8 group f16 asymmetric", (5, 64), (5, 2), F16, symmetric=False),
    partial(int_quantized, "int8 of ModelOpt", (24, 52), (24,), F32, config=SMOOTH),
)
