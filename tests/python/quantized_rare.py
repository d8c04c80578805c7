"""Checkpoints of MLX, torchao, ModelOpt's int4 and 2:4 sparsity with what they mean (`quantized_files`)."""

import json
from functools import partial

import torch
from quantized_case import (
    BF16,
    E4M3,
    E8M0,
    F16,
    F32,
    I8,
    I64,
    U8,
    Case,
    Config,
    Draw,
    case,
    compressed,
    dense,
    fp4,
    modelopt,
    named,
    nibbles,
    power,
    times,
)

UP = "model.layers.0.mlp.up_proj"
WEIGHT = f"{UP}.weight"


def mlx(
    name: str,
    shape: tuple[int, int],
    bits: int,
    group_size: int,
    dtype: torch.dtype = BF16,
    offsets: str = "biases",
) -> Case:
    """Unsigned codes in words along K, with a scale and an offset for each group.

    MLX rounds the product and then the sum to the dtype of the scales; transformers, whose offsets are `qbiases`, rounds once.
    """
    draw, (rows, columns) = Draw(name, shape), shape
    code, count = draw.codes(shape, 1 << bits), columns // group_size
    scale = draw.scales((rows, count), dtype, edges=False)
    offset = (torch.rand((rows, count), generator=draw.generator) * 4 - 3).to(dtype)
    each, added = (one.to(F32).repeat_interleave(group_size, 1) for one in (scale, offset))
    product = code.to(F32) * each
    settings = {"group_size": group_size, "bits": bits}
    config: Config = {"quantization": settings, "quantization_config": settings}
    if offsets == "qbiases":
        config = {"quantization_config": {"quant_method": "metal", **settings}}
    else:
        product = product.to(dtype).to(F32)
    value = (product + added).to(dtype)
    codes = (WEIGHT, dense(code, bits).view(torch.uint32))
    companions = {f"{UP}.scales": scale, f"{UP}.{offsets}": offset}
    return case(name, f"mlx-{bits}", WEIGHT, value, codes, companions, config)


def mlx_fp4(name: str, shape: tuple[int, int], mode: str) -> Case:
    """MLX's modes of FP4: words of eight codes, and scales in bytes, of E4M3 or powers of two, without another one for all."""
    draw, (rows, columns), size = Draw(name, shape), shape, 16 if mode == "nvfp4" else 32
    code, count = draw.codes(shape, 16), columns // size
    scale = draw.bytes((rows, count)) if mode == "nvfp4" else draw.exponents((rows, count))
    factor = scale.view(E4M3).to(F32) if mode == "nvfp4" else power(scale)
    value = times(fp4(code), factor.repeat_interleave(size, 1), BF16)
    settings = {"group_size": size, "bits": 4, "mode": mode}
    config: Config = {"quantization": settings, "quantization_config": settings}
    codes = (WEIGHT, dense(code, 4).view(torch.uint32))
    return case(name, mode, WEIGHT, value, codes, {f"{UP}.scales": scale}, config)


def modelopt_int4(name: str, shape: tuple[int, int], group_size: int, dtype: torch.dtype = F32) -> Case:
    """Codes of -8 to 7: the even row in the low half of a byte, the odd row in the high half."""
    draw, (rows, columns) = Draw(name, shape), shape
    code = draw.codes(shape, 16, -8)
    scale = draw.scales((rows, columns // group_size), dtype)
    value = times(code, scale.repeat_interleave(group_size, 1), dtype)
    companions = {f"{UP}.weight_scale": scale}
    codes = (WEIGHT, nibbles((code & 15).T).T)
    config = modelopt("W4A16_AWQ", group_size=group_size, has_zero_point=False)
    return case(name, "int4-group", WEIGHT, value, codes, companions, config)


def sparse_24(name: str, shape: tuple[int, int], dtype: torch.dtype = BF16) -> Case:
    """Two of every four elements, in the order of columns, and a bit for each column; the others are zeros."""
    draw, (rows, columns) = Draw(name, shape), shape
    pairs = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]])
    kept = pairs[draw.codes((rows, columns // 4), 6).long()].reshape(rows, columns).bool()
    is_fp8 = dtype == E4M3
    some = draw.bytes((rows, columns // 2), E4M3)
    stored = some if is_fp8 else (some.to(F32) * 0.37).to(dtype)
    value = torch.zeros(shape)
    value[kept] = stored.to(F32).reshape(-1)
    bits = torch.nn.functional.pad(kept, (0, -columns % 8)).reshape(rows, -1, 8)
    companions = {
        f"{UP}.shape": torch.tensor([[rows], [columns]], dtype=I64),
        f"{UP}.bitmask": (bits.to(I64) << torch.arange(8)).sum(-1).to(U8),
    }
    config = compressed("float-quantized" if is_fp8 else "dense", 8, "channel", kind="float")
    if is_fp8:
        companions[f"{UP}.weight_scale"] = scale = draw.scales((rows, 1), BF16)
        value, dtype = value * scale.to(F32), BF16
    else:
        config["quantization_config"]["config_groups"] = {}
    config["quantization_config"]["sparsity_config"] = {
        "format": "sparse-24-bitmask",
        "global_sparsity": 0.5,
        "sparsity_structure": "2:4",
        "targets": ["Linear"],
        "ignore": [],
    }
    codes = (f"{UP}.compressed", stored)
    return case(name, "sparse-24", WEIGHT, value.to(dtype), codes, companions, config)


def torchao(
    name: str,
    shape: tuple[int, int],
    kind: str,
    dtype: str = "bfloat16",
    *,
    by_row: bool = True,
    symmetric: bool = True,
) -> Case:
    """Tensors of a subclass in parts, whose metadata is in the header: the product in float32, rounded to its dtype."""
    draw = Draw(name, shape)
    scale = draw.scales((shape[0], 1) if by_row else (1, 1), F32)
    data: dict[str, object] = {
        "block_size": [1 if by_row else shape[0], shape[1]],
        "act_quant_kwargs": None,
        "dtype": {"_type": "torch.dtype", "_data": dtype},
    }
    companions = {f"{UP}._weight_scale": scale}
    names = ["qdata", "scale"]
    if kind == "Float8Tensor":
        stored = draw.bytes(shape, E4M3)
        exact = stored.to(F32)
        data |= {"mm_config": None, "kernel_preference": {"_type": "KernelPreference", "_data": "AUTO"}}
    else:
        stored = draw.codes(shape, 256, -128).to(I8)
        zero = draw.codes(tuple(scale.shape), 1 if symmetric else 256, 0 if symmetric else -128).to(I8)
        exact = stored.to(F32) - zero.to(F32)
        companions[f"{UP}._weight_zero_point"] = zero
        names.append("zero_point")
        data["reduce_range"] = False
    value = times(exact, scale, getattr(torch, dtype))
    metadata = {
        WEIGHT: json.dumps({"_type": kind, "_data": data, "_tensor_data_names": names}),
        "model.norm.weight": json.dumps({"_type": "Tensor"}),
        "tensor_names": json.dumps([WEIGHT, "model.norm.weight"]),
    }
    config: Config = {"quantization_config": {"quant_method": "torchao", "quant_type": {}}}
    scheme = "torchao-float8" if kind == "Float8Tensor" else "torchao-int8"
    codes = (f"{UP}._weight_qdata", stored)
    return case(name, scheme, WEIGHT, value, codes, companions, config, metadata=metadata)


def torchao_groups(
    name: str, shape: tuple[int, ...], kind: str, *, factors: tuple[int, ...] | None = None
) -> Case:
    """The MXTensor and NVFP4Tensor of torchao: MXFP4, MXFP8, or NVFP4 with or without a scale for all."""
    draw, size = Draw(name, shape), 16 if kind == "nvfp4" else 32
    grid, prefix = (*shape[:-1], shape[-1] // size), f"{UP}._weight_"
    scale = draw.bytes(grid, E4M3) if kind == "nvfp4" else draw.exponents(grid, E8M0)
    wide = scale.to(F32) if kind == "nvfp4" else power(scale)
    companions, names = {f"{prefix}scale": scale}, ["qdata", "scale"]
    if factors is not None:
        whole = torch.rand(factors, generator=draw.generator) * 3e-4
        wide = wide * whole
        companions[f"{prefix}per_tensor_scale"] = whole
        names.append("per_tensor_scale")
    stored = draw.bytes(shape, E4M3) if kind == "mxfp8" else draw.codes(shape, 16)
    exact = stored.to(F32) if kind == "mxfp8" else fp4(stored)
    dtype = {"_type": "torch.dtype", "_data": "bfloat16"}
    data: dict[str, object] = {"block_size": size, "orig_dtype": dtype, "is_swizzled_scales": False}
    if kind != "nvfp4":
        element = "float8_e4m3fn" if kind == "mxfp8" else "float4_e2m1fn_x2"
        data["elem_dtype"] = {"_type": "torch.dtype", "_data": element}
    what = {
        "_type": "NVFP4Tensor" if kind == "nvfp4" else "MXTensor",
        "_data": data,
        "_tensor_data_names": names,
    }
    value = times(exact, wide.repeat_interleave(size, -1), BF16)
    codes = (f"{prefix}qdata", stored if kind == "mxfp8" else nibbles(stored))
    config: Config = {"quantization_config": {"quant_method": "torchao", "quant_type": {}}}
    scheme = "torchao-float8" if kind == "mxfp8" else kind
    metadata = {WEIGHT: json.dumps(what), "tensor_names": json.dumps([WEIGHT])}
    return case(name, scheme, WEIGHT, value, codes, companions, config, metadata=metadata)


RARE_CASES = named(
    partial(mlx, "mlx 4", (24, 128), 4, 64),
    partial(mlx, "mlx 4 f16", (7, 96), 4, 32, F16),
    partial(mlx, "mlx 4 f32", (9, 64), 4, 32, F32),
    partial(mlx, "mlx 8", (11, 128), 8, 64),
    partial(mlx, "mlx 8 f16", (6, 64), 8, 32, F16),
    partial(mlx, "mlx 2", (13, 128), 2, 128),
    partial(mlx, "mlx 2 f32", (5, 64), 2, 32, F32),
    partial(mlx, "mlx of transformers", (16, 128), 4, 64, offsets="qbiases"),
    partial(mlx, "mlx of transformers f16", (7, 64), 8, 32, F16, offsets="qbiases"),
    partial(mlx, "mlx 3", (14, 64), 3, 32),
    partial(mlx, "mlx 5", (9, 96), 5, 32, F16),
    partial(mlx, "mlx 6", (11, 128), 6, 64),
    partial(mlx_fp4, "mlx mxfp4", (12, 96), "mxfp4"),
    partial(mlx_fp4, "mlx nvfp4", (9, 96), "nvfp4"),
    partial(modelopt_int4, "int4 of ModelOpt", (24, 128), 64),
    partial(modelopt_int4, "int4 of ModelOpt bf16", (10, 96), 32, BF16),
    partial(sparse_24, "sparse 24", (24, 64)),
    partial(sparse_24, "sparse 24 ragged f16", (13, 36), F16),
    partial(sparse_24, "sparse 24 f32", (5, 44), F32),
    partial(sparse_24, "sparse 24 fp8", (33, 60), E4M3),
    partial(torchao, "torchao float8", (24, 64), "Float8Tensor"),
    partial(torchao, "torchao float8 tensor f32", (7, 33), "Float8Tensor", "float32", by_row=False),
    partial(torchao, "torchao float8 f16", (19, 50), "Float8Tensor", "float16"),
    partial(torchao_groups, "torchao mxfp8", (24, 96), "mxfp8"),
    partial(torchao_groups, "torchao mxfp4", (7, 96), "mxfp4"),
    partial(torchao_groups, "torchao nvfp4", (9, 80), "nvfp4", factors=()),
    partial(torchao_groups, "torchao nvfp4 of one scale", (12, 64), "nvfp4"),
    partial(torchao_groups, "torchao nvfp4 experts", (3, 5, 64), "nvfp4", factors=(3, 1, 1)),
    partial(torchao, "torchao int8", (24, 64), "Int8Tensor"),
    partial(torchao, "torchao int8 asymmetric", (17, 35), "Int8Tensor", symmetric=False),
    partial(torchao, "torchao int8 tensor f32", (7, 33), "Int8Tensor", "float32", by_row=False),
)
