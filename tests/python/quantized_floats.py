"""Checkpoints of fp8, NVFP4 and MXFP4 with what they mean (`quantized_files`)."""

import json
from functools import partial

import torch
from quantized_case import (
    BF16,
    E4M3,
    E5M2,
    E8M0,
    F16,
    F32,
    I8,
    U8,
    Case,
    Config,
    Draw,
    Shape,
    as_float,
    case,
    compressed,
    fp4,
    grid,
    joined,
    modelopt,
    named,
    nibbles,
    power,
    spread,
    times,
)

UP = "model.layers.0.mlp.up_proj"
EXPERTS = "model.layers.0.mlp.experts"

DEEPSEEK: Config = {
    "quantization_config": {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": [128, 128],
    }
}
FP8_TENSOR: Config = {"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}}
FBGEMM: Config = {"quantization_config": {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}}
MXFP8: Config = {"quantization_config": {"quant_method": "mxfp8", "modules_to_not_convert": ["lm_head"]}}
MXFP4: Config = {
    "quantization_config": {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.embed_tokens", "lm_head"],
    }
}
DEEPSEEK_V4: Config = {
    "quantization_config": {**DEEPSEEK["quantization_config"], "scale_fmt": "ue8m0"},
    "expert_dtype": "fp4",
}


HF_QUANT_CONFIG: Config = {
    "producer": {"name": "modelopt", "version": "0.47.0"},
    "quantization": {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "group_size": 16,
        "exclude_modules": ["lm_head"],
    },
}


def blocks(*size: int) -> Config:
    return {"quantization_config": {**DEEPSEEK["quantization_config"], "weight_block_size": list(size)}}


def fp8(
    name: str,
    shape: Shape,
    scale_shape: Shape = (),
    dtype: torch.dtype = F32,
    *,
    block: tuple[int, int] | None = None,
    names: tuple[str, str] = (f"{UP}.weight", f"{UP}.weight_scale_inv"),
    config: Config | None = None,
    codes: torch.dtype = E4M3,
    scheme: str | None = None,
    input_scale: str | None = None,
) -> Case:
    """fp8 with a scale for all, for each row or for each block; it is multiplied with, also if its name says `inv`."""
    draw = Draw(name, shape)
    weight = draw.bytes(shape, codes)
    scale = draw.scales(grid(shape, block) if block else scale_shape, dtype)
    factor = as_float(scale)
    if block:
        wide = spread(factor, shape, block)
    elif factor.ndim == 1 and factor.numel() > 1:
        wide = factor.reshape(-1, *[1] * (len(shape) - 1))
    else:
        wide = factor.reshape(1) if factor.numel() == 1 else factor
    result = F32 if block or dtype in (U8, E8M0) else dtype
    scheme = scheme or ("fp8-block" if block else "fp8-tensor" if scale.numel() == 1 else "fp8-channel")
    ignored = {input_scale: torch.tensor([0.25])} if input_scale else None
    value = times(weight, wide, result)
    return case(name, scheme, names[0], value, (names[0], weight), {names[1]: scale}, config or {}, ignored)


def nvfp4(
    name: str,
    shape: Shape,
    global_scale: float,
    global_shape: Shape = (),
    *,
    divides: bool = False,
    prefix: str = UP,
    sidecar: bool = False,
) -> Case:
    """Two codes in a byte, a scale of fp8 for 16 codes, and one float32 for all, which divides or multiplies."""
    draw = Draw(name, shape)
    code, scale = draw.codes(shape, 16), draw.bytes((*shape[:-1], shape[-1] // 16), E4M3)
    whole = (torch.rand(global_shape, generator=draw.generator) + 0.5) * global_scale
    each = whole.reshape(-1, *[1] * (len(shape) - 1))
    factor = scale.to(F32) / each if divides else scale.to(F32) * each
    value = times(fp4(code), factor.repeat_interleave(16, -1), BF16)
    stored = f"{prefix}.weight_packed" if divides else f"{prefix}.weight"
    second = f"{prefix}.weight_global_scale" if divides else f"{prefix}.weight_scale_2"
    inputs = f"{prefix}.input_global_scale" if divides else f"{prefix}.input_scale"
    if divides:
        config = compressed("nvfp4-pack-quantized", 4, "tensor_group", kind="float", group_size=16)
    else:
        config = {} if sidecar else modelopt("NVFP4", group_size=16)
    found = case(
        name,
        "nvfp4",
        f"{prefix}.weight",
        value,
        (stored, nibbles(code)),
        {f"{prefix}.weight_scale": scale, second: whole},
        config,
        {inputs: torch.tensor([torch.inf])},
    )
    return found._replace(sidecars={"hf_quant_config.json": HF_QUANT_CONFIG} if sidecar else None)


def mxfp4(
    name: str, shape: Shape, names: tuple[str, str], dtype: tuple[torch.dtype, torch.dtype], config: Config
) -> Case:
    """Two codes in a byte, and an exponent for 32 codes."""
    draw = Draw(name, shape)
    code, scale = draw.codes(shape, 16), draw.exponents((*shape[:-1], shape[-1] // 32), dtype[1])
    value = times(fp4(code), power(scale).repeat_interleave(32, -1), BF16)
    logical = names[0].removesuffix("_packed")
    codes = (names[0], nibbles(code).view(dtype[0]))
    return case(name, "mxfp4", logical, value, codes, {names[1]: scale}, config)


def gpt_oss(name: str, shape: tuple[int, int, int], projection: str = "gate_up_proj") -> Case:
    """MXFP4 in blocks of 16 bytes; the logical weight has the last two axes exchanged."""
    draw, (experts, rows, columns), path = Draw(name, shape), shape, f"{EXPERTS}.{projection}"
    code, scale = draw.codes(shape, 16), draw.exponents((experts, rows, columns // 32))
    value = times(fp4(code), power(scale).repeat_interleave(32, -1), BF16)
    codes = (f"{path}_blocks", nibbles(code).reshape(experts, rows, columns // 32, 16))
    found = case(name, "mxfp4", path, value.transpose(1, 2), codes, {f"{path}_scales": scale}, MXFP4)
    found.tensors[f"{path}_bias"] = torch.linspace(-2, 2, experts * rows).reshape(experts, rows).to(BF16)
    return found


def deepseek_v4(name: str) -> Case:
    """Experts in FP4 beside fp8 with blocks of 128 x 128."""
    expert, shared = "layers.0.ffn.experts.0.w1", "layers.0.ffn.shared_experts.w1"
    config = DEEPSEEK_V4
    names = (f"{shared}.weight", f"{shared}.scale")
    return joined(
        name,
        "mixed",
        mxfp4(name, (24, 160), (f"{expert}.weight", f"{expert}.scale"), (I8, E8M0), config),
        fp8(name, (260, 130), (), E8M0, block=(128, 128), names=names, config=config),
    )


def fp8_of_four_axes(name: str, shape: tuple[int, int]) -> Case:
    """Scales of blocks with the axes inside of blocks, which ModelOpt writes."""
    found = fp8(name, shape, block=BLOCK, names=BY_SCALE, config=modelopt("FP8_PB_WO"))
    scale = found.tensors[BY_SCALE[1]]
    found.tensors[BY_SCALE[1]] = scale[:, None, :, None].contiguous()
    return found


def comfy_fp8(name: str, shape: tuple[int, int], beside: str) -> Case:
    """fp8 as ComfyUI writes it: with a marker of the whole file, a description beside the codes, or one in the header."""
    own = json.dumps({"format": "float8_e4m3fn", "full_precision_matrix_mult": True})
    scale = "scale_weight" if beside == "marker" else "weight_scale"
    inputs = f"{UP}.{'scale_input' if beside == 'marker' else 'input_scale'}"
    found = fp8(name, shape, (), names=(f"{UP}.weight", f"{UP}.{scale}"), input_scale=inputs)
    if beside == "header":
        layers = json.dumps({"format_version": "1.0", "layers": {UP: json.loads(own)}})
        return found._replace(metadata={"_quantization_metadata": layers})
    marker = ("scaled_fp8", torch.empty(0, dtype=E4M3))
    layer = (f"{UP}.comfy_quant", torch.frombuffer(bytearray(own.encode()), dtype=U8))
    beside_name, tensor = marker if beside == "marker" else layer
    found.tensors[beside_name] = tensor
    return found._replace(ignored=(*found.ignored, beside_name))


WEIGHT = f"{UP}.weight"
BY_SCALE, PLAIN_SCALE = (WEIGHT, f"{UP}.weight_scale"), (WEIGHT, f"{UP}.scale")
GATE = (f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.gate_up_proj_scale_inv")
STACKED = (f"{EXPERTS}.w1_weight", f"{EXPERTS}.w1_weight_scale")
V4_EXPERT = ("layers.1.ffn.experts.7.w2.weight", "layers.1.ffn.experts.7.w2.scale")
V4_INVERSE = (V4_EXPERT[0], f"{V4_EXPERT[0]}_scale_inv")
PACKED = (f"{UP}.weight_packed", f"{UP}.weight_scale")
KIMI = tuple(
    f"model.layers.1.block_sparse_moe.experts.2.w1.{one}" for one in ("weight_packed", "weight_scale")
)
BLOCK = (128, 128)
CT_TENSOR = compressed("float-quantized", 8, "tensor", kind="float")
CT_CHANNEL = compressed("float-quantized", 8, "channel", kind="float")
CT_BLOCK = compressed("float-quantized", 8, "block", kind="float", block=BLOCK)
CT_MXFP8 = compressed("mxfp8-quantized", 8, "group", kind="float", group_size=32, scale_dtype="torch.uint8")
CT_MXFP4 = compressed(
    "mxfp4-pack-quantized", 4, "group", kind="float", group_size=32, scale_dtype="torch.uint8"
)
MODELOPT_MXFP4 = modelopt("W4A8_MXFP4_FP8", group_size=32)
MX = partial(fp8, block=(1, 32), scheme="mxfp8")

FLOAT_CASES = named(
    partial(fp8, "fp8 block 128", (256, 384), block=BLOCK, config=DEEPSEEK),
    partial(fp8, "fp8 block 128 ragged", (192, 300), block=BLOCK, config=DEEPSEEK),
    partial(fp8, "fp8 block 128 of 576 rows", (576, 257), block=BLOCK, config=DEEPSEEK),
    partial(fp8, "fp8 block 128 bf16", (200, 300), (), BF16, block=BLOCK, config=DEEPSEEK),
    partial(fp8, "fp8 block 128 f16", (129, 255), (), F16, block=BLOCK, config=DEEPSEEK),
    partial(
        fp8, "fp8 block 128 e8m0", (1100, 300), (), E8M0, block=BLOCK, names=PLAIN_SCALE, config=DEEPSEEK_V4
    ),
    partial(fp8, "fp8 block 128 e5m2", (130, 140), block=BLOCK, config=DEEPSEEK, codes=E5M2),
    partial(fp8, "fp8 block 128 without a config", (300, 200), block=BLOCK),
    partial(fp8, "fp8 block 128 of few rows", (5, 640), block=BLOCK),
    partial(fp8, "fp8 block 128 of few columns", (640, 5), block=BLOCK),
    partial(fp8, "fp8 block 128 of one column", (200, 1), block=BLOCK),
    partial(fp8, "fp8 block 128 of one number", (1, 1), block=BLOCK),
    partial(fp8, "fp8 block 1x128", (40, 300), block=(1, 128), config=blocks(1, 128)),
    partial(fp8, "fp8 block 64x64", (130, 200), block=(64, 64), config=blocks(64, 64)),
    partial(fp8, "fp8 block 32x96", (70, 200), block=(32, 96), config=blocks(32, 96)),
    partial(
        fp8,
        "fp8 block of compressed-tensors",
        (200, 300),
        (),
        BF16,
        block=BLOCK,
        names=BY_SCALE,
        config=CT_BLOCK,
    ),
    partial(
        fp8, "fp8 block of ModelOpt", (256, 256), block=BLOCK, names=BY_SCALE, config=modelopt("FP8_PB_WO")
    ),
    partial(fp8_of_four_axes, "fp8 block of ModelOpt with four axes", (256, 384)),
    partial(comfy_fp8, "fp8 of ComfyUI with a marker", (24, 40), "marker"),
    partial(comfy_fp8, "fp8 of ComfyUI with a description", (24, 40), "tensor"),
    partial(comfy_fp8, "fp8 of ComfyUI with a header", (24, 40), "header"),
    partial(fp8, "fp8 experts by block", (3, 200, 300), block=BLOCK, names=GATE, config=DEEPSEEK),
    partial(
        fp8, "fp8 experts by block bf16", (2, 256, 130), (), BF16, block=BLOCK, names=STACKED, config=DEEPSEEK
    ),
    partial(fp8, "fp8 experts of layers by block", (2, 2, 128, 129), block=BLOCK, names=GATE),
    partial(fp8, "fp8 one scale for each expert", (5, 12, 20), (5,), names=STACKED),
    partial(fp8, "fp8 one scale of 1x1 for each expert", (5, 12, 20), (5, 1, 1), names=GATE),
    partial(fp8, "fp8 experts by channel", (3, 12, 20), (3, 12, 1), names=STACKED),
    partial(
        fp8,
        "fp8 tensor []",
        (37, 53),
        (),
        names=BY_SCALE,
        config=modelopt("FP8"),
        input_scale=f"{UP}.input_scale",
    ),
    partial(fp8, "fp8 tensor [1] bf16", (37, 53), (1,), BF16, names=BY_SCALE, config=CT_TENSOR),
    partial(fp8, "fp8 tensor [1] f16", (8, 64), (1,), F16, names=BY_SCALE, config=CT_TENSOR),
    partial(fp8, "fp8 tensor [1,1]", (200, 300), (1, 1), config=FP8_TENSOR),
    partial(
        fp8,
        "fp8 tensor of Mistral",
        (64, 48),
        (),
        names=(WEIGHT, f"{UP}.qscale_weight"),
        config=FP8_TENSOR,
        input_scale=f"{UP}.qscale_act",
    ),
    partial(fp8, "fp8 channel [N,1] bf16", (33, 257), (33, 1), BF16, names=BY_SCALE, config=CT_CHANNEL),
    partial(fp8, "fp8 channel [N,1] f32", (21, 130), (21, 1), names=BY_SCALE, config=CT_CHANNEL),
    partial(fp8, "fp8 channel [N,1] f16", (48, 260), (48, 1), F16, names=BY_SCALE, config=CT_CHANNEL),
    partial(fp8, "fp8 channel [N,1] of fbgemm", (33, 65), (33, 1), names=BY_SCALE, config=FBGEMM),
    partial(
        fp8, "fp8 channel [N]", (33, 65), (33,), names=BY_SCALE, config=modelopt("FP8_PER_CHANNEL_PER_TOKEN")
    ),
    partial(fp8, "fp8 channel [N] e5m2", (20, 31), (20,), names=PLAIN_SCALE, codes=E5M2),
    partial(MX, "mxfp8 u8", (24, 96), (), U8, config=MXFP8),
    partial(MX, "mxfp8 e8m0", (5, 160), (), E8M0, names=BY_SCALE, config=MXFP8),
    partial(MX, "mxfp8 of compressed-tensors", (33, 64), (), U8, names=BY_SCALE, config=CT_MXFP8),
    partial(
        MX, "mxfp8 of ModelOpt", (16, 128), (), U8, names=BY_SCALE, config=modelopt("MXFP8", group_size=32)
    ),
    partial(MX, "mxfp8 experts", (3, 7, 64), (), U8, names=GATE, config=MXFP8),
    partial(deepseek_v4, "DeepSeek-V4"),
    partial(nvfp4, "nvfp4 of ModelOpt []", (24, 64), 3e-4),
    partial(nvfp4, "nvfp4 of ModelOpt [1]", (7, 48), 3e-4, (1,)),
    partial(nvfp4, "nvfp4 of ModelOpt with a sidecar", (16, 80), 3e-4, sidecar=True),
    partial(nvfp4, "nvfp4 of ModelOpt large", (33, 272), 0.9),
    partial(nvfp4, "nvfp4 of ModelOpt tiny", (32, 128), 1e-38),
    partial(nvfp4, "nvfp4 experts of ModelOpt", (3, 10, 64), 3e-4, (3,), prefix=EXPERTS),
    partial(nvfp4, "nvfp4 of compressed-tensors [1]", (24, 64), 3500.0, (1,), divides=True),
    partial(nvfp4, "nvfp4 of compressed-tensors []", (7, 48), 3500.0, divides=True),
    partial(nvfp4, "nvfp4 of compressed-tensors small", (33, 272), 0.3, (1,), divides=True),
    partial(mxfp4, "mxfp4 i8", (32, 256), V4_EXPERT, (I8, E8M0), DEEPSEEK_V4),
    partial(mxfp4, "mxfp4 i8 small", (3, 32), V4_EXPERT, (I8, E8M0), DEEPSEEK_V4),
    partial(mxfp4, "mxfp4 i8 of transformers", (5, 64), V4_INVERSE, (I8, E8M0), DEEPSEEK_V4),
    partial(mxfp4, "mxfp4 of compressed-tensors", (17, 96), PACKED, (U8, U8), CT_MXFP4),
    partial(mxfp4, "mxfp4 of compressed-tensors large", (64, 320), PACKED, (U8, U8), CT_MXFP4),
    partial(mxfp4, "mxfp4 of Kimi", (16, 64), (KIMI[0], KIMI[1]), (U8, U8), CT_MXFP4),
    partial(mxfp4, "mxfp4 of ModelOpt", (10, 128), BY_SCALE, (U8, U8), MODELOPT_MXFP4),
    partial(gpt_oss, "gpt-oss", (2, 24, 96)),
    partial(gpt_oss, "gpt-oss odd", (3, 7, 32)),
    partial(gpt_oss, "gpt-oss down", (1, 33, 160), "down_proj"),
)
