"""Checkpoints that a reader with dequantization must refuse, and tensors that look quantized and are not (`quantized_files`)."""

import json
from collections.abc import Callable
from functools import partial

import torch
from quantized_case import (
    BF16,
    E4M3,
    E8M0,
    F16,
    F32,
    I8,
    I32,
    I64,
    U8,
    Case,
    Config,
    Draw,
    Tensors,
)
from quantized_files import CASES


def changed(
    name: str, of: str, changes: dict[str, torch.Tensor | None], config: Config | None = None
) -> Case:
    """A case with other tensors under the names that end so, or without them; a new name begins as the codes' does."""
    found = CASES[of]()
    ((weight, codes),) = found.codes.items()
    tensors = dict(found.tensors)
    for ending, tensor in changes.items():
        at = [one for one in tensors if one.endswith(ending)] or [codes.rpartition(".")[0] + ending]
        assert len(at) == 1
        if tensor is None:
            del tensors[at[0]]
        else:
            tensors[at[0]] = tensor
    settings = dict(found.config)
    if config:
        settings["quantization_config"] = {**found.config["quantization_config"], **config}
    there = tuple(one for one in found.companions[weight] if one in tensors)
    return found._replace(name=name, tensors=tensors, config=settings, weights={}, companions={weight: there})


def state(**entries: object) -> torch.Tensor:
    """The JSON of bitsandbytes for a weight of 24 x 64, with other entries."""
    known = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [24, 64], **entries}
    return torch.frombuffer(bytearray(json.dumps(known).encode()), dtype=U8)


def comfy(name: str, of: str, layer: object) -> Case:
    """A case that ComfyUI describes beside the codes, without a configuration."""
    text = torch.frombuffer(bytearray(json.dumps(layer).encode()), dtype=U8)
    return changed(name, of, {".comfy_quant": text})._replace(config={})


def foreign(name: str, method: str, codes: str, tensors: Tensors, **settings: object) -> Case:
    """A scheme that only its own library reads."""
    config = {"quantization_config": {"quant_method": method, **settings}}
    return Case(name, "unknown", tensors, config, {}, {"a.weight": codes}, {"a.weight": ()})


def ones(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def some(*shape: int, dtype: torch.dtype = U8) -> torch.Tensor:
    size = dtype.itemsize
    return Draw("some", shape).bytes((*shape[:-1], shape[-1] * size)).view(dtype)


JSON = ".quant_state.bitsandbytes__nf4"
LONG = {"padding": "x" * 5000}

MAKERS = (
    # fp8 [192, 300] with blocks of 128 x 128
    partial(changed, "fp8 without scales", "fp8 block 128 ragged", {"_scale_inv": None}),
    partial(changed, "fp8 with two scales", "fp8 block 128 ragged", {".weight_scale": ones(1)}),
    partial(changed, "fp8 with another grid", "fp8 block 128 ragged", {"_scale_inv": ones(3, 3)}),
    partial(changed, "fp8 with a row too few", "fp8 block 128 ragged", {"_scale_inv": ones(1, 3)}),
    partial(changed, "fp8 with scales of 1 axis", "fp8 block 128 ragged", {"_scale_inv": ones(6)}),
    partial(changed, "fp8 with integers", "fp8 block 128 ragged", {"_scale_inv": ones(2, 3, dtype=I64)}),
    # int4 [64, 224] in groups of 32
    partial(changed, "pack without scales", "pack 4 group 32 of Kimi", {"weight_scale": None}),
    partial(changed, "pack without a shape", "pack 4 group 32 of Kimi", {"weight_shape": None}),
    partial(
        changed, "pack of another shape", "pack 4 group 32 of Kimi", {"weight_shape": torch.tensor([64, 256])}
    ),
    partial(
        changed,
        "pack of a negative shape",
        "pack 4 group 32 of Kimi",
        {"weight_shape": torch.tensor([-64, 224])},
    ),
    partial(
        changed,
        "pack of a large shape",
        "pack 4 group 32 of Kimi",
        {"weight_shape": torch.tensor([64, 1 << 62])},
    ),
    partial(
        changed, "pack of 3 axes", "pack 4 group 32 of Kimi", {"weight_shape": torch.tensor([64, 224, 1])}
    ),
    partial(
        changed, "pack with odd groups", "pack 4 group 32 of Kimi", {"weight_scale": ones(64, 5, dtype=BF16)}
    ),
    partial(
        changed, "pack with fp8 scales", "pack 4 group 32 of Kimi", {"weight_scale": some(64, 7, dtype=E4M3)}
    ),
    partial(changed, "pack with few zeros", "pack 4 group asymmetric", {"zero_point": ones(1, 3, dtype=I32)}),
    partial(changed, "pack with a float zero", "pack 4 group asymmetric", {"zero_point": ones(2, 3)}),
    partial(
        changed,
        "pack with a group too many",
        "pack 4 group g_idx",
        {"g_idx": torch.full((128,), 4, dtype=I32)},
    ),
    partial(changed, "pack with a short g_idx", "pack 4 group g_idx", {"g_idx": ones(127, dtype=I32)}),
    # FP4
    partial(changed, "nvfp4 without a second scale", "nvfp4 of ModelOpt []", {"weight_scale_2": None}),
    partial(changed, "nvfp4 with two second scales", "nvfp4 of ModelOpt []", {"weight_scale_2": ones(2)}),
    partial(
        changed, "nvfp4 over 0", "nvfp4 of compressed-tensors [1]", {"weight_global_scale": torch.zeros(1)}
    ),
    partial(changed, "nvfp4 with swizzled scales", "nvfp4 of ModelOpt []", {"weight_scale": some(128 * 4)}),
    partial(
        changed, "nvfp4 with few scales", "nvfp4 of ModelOpt []", {"weight_scale": some(24, 3, dtype=E4M3)}
    ),
    partial(
        changed, "int4 of scaled inputs", "int4 of ModelOpt", {".pre_quant_scale": ones(128, dtype=BF16)}
    ),
    partial(changed, "mxfp4 with few scales", "mxfp4 i8", {".scale": some(32, 7, dtype=E8M0)}),
    partial(changed, "mxfp4 with float scales", "mxfp4 i8", {".scale": ones(32, 8)}),
    partial(changed, "gpt-oss without scales", "gpt-oss", {"_scales": None}),
    partial(changed, "gpt-oss with few scales", "gpt-oss", {"_scales": some(2, 24, 2)}),
    partial(changed, "gpt-oss with blocks of 8", "gpt-oss", {"_blocks": some(2, 24, 3, 8)}),
    # GPTQ [24, 96] and AWQ [64, 128] in groups of 32
    partial(changed, "gptq without zeros", "gptq v1", {"qzeros": None}),
    partial(changed, "gptq of marlin", "gptq v1", {}, {"checkpoint_format": "marlin"}),
    partial(changed, "gptq of bit planes", "gptq v1", {}, {"checkpoint_format": "gptq_p"}),
    partial(changed, "gptq with a group too many", "gptq v1", {"g_idx": torch.full((96,), 3, dtype=I32)}),
    partial(changed, "gptq with a negative group", "gptq v1", {"g_idx": torch.full((96,), -1, dtype=I32)}),
    partial(changed, "gptq with a float g_idx", "gptq v1", {"g_idx": torch.zeros(96)}),
    partial(changed, "gptq with a short g_idx", "gptq v1", {"g_idx": torch.zeros(95, dtype=I32)}),
    partial(changed, "gptq with few zeros", "gptq v1", {"qzeros": ones(3, 2, dtype=I32)}),
    partial(changed, "gptq with few scales", "gptq v1", {".scales": ones(2, 24, dtype=F16)}),
    partial(changed, "awq of gemv", "awq", {}, {"version": "gemv"}),
    partial(changed, "awq of marlin", "awq", {"qzeros": None}, {"version": "marlin"}),
    partial(changed, "awq with few scales", "awq", {".scales": ones(3, 64, dtype=F16)}),
    partial(changed, "gptq of 64 bits", "gptq v1", {"qweight": some(6, 24, dtype=I64), ".g_idx": None}),
    partial(changed, "awq of scaled activations", "awq", {"mlp.act.scales": ones(128, dtype=F16)}),
    # What is said beside the tensors, of layouts that have the same tensors.
    *(
        partial(changed, name, of, {}, {"quant_method": method, **settings})
        for name, of, method, settings in (
            ("int4 of an unknown method", "pack 4 group 32 of Kimi", "int4-of-tomorrow", {}),
            ("int4 of another method", "pack 4 group 32 of Kimi", "fp8", {}),
            ("int4 of a method that is not read", "pack 4 group 32 of Kimi", "higgs", {}),
            (
                "int4 of rotated weights",
                "pack 4 group 32 of Kimi",
                "compressed-tensors",
                {"transform_config": {"config_groups": {"u": {}}}},
            ),
            ("fp8 with scales that divide", "fp8 block 128", "fp8", {"weight_scale_semantics": "inverse"}),
            ("fp8 of AWQ", "fp8 block 128", "awq", {}),
            ("mxfp4 of integers", "mxfp4 of ModelOpt", "auto-round", {"data_type": "mx_int"}),
            (
                "nvfp4 of AutoRound, second form",
                "nvfp4 of compressed-tensors [1]",
                "auto-round",
                {"data_type": "nvfp4_v2"},
            ),
            ("nvfp4 of another method", "nvfp4 of ModelOpt []", "nvfp4", {}),
            ("gptq of rotated weights", "gptq v1", "auto-round", {"rotation_config": {"size": 32}}),
            ("gptq of AutoRound without a packing", "gptq v1", "auto-round", {"sym": False}),
            ("awq in words of GPTQ", "gptq v1", "awq", {}),
        )
    ),
    partial(comfy, "nvfp4 of ComfyUI", "nvfp4 of ModelOpt []", {"format": "nvfp4"}),
    partial(comfy, "mxfp8 of ComfyUI", "fp8 channel [N,1] bf16", {"format": "mxfp8"}),
    partial(
        comfy, "int8 of ComfyUI, rotated", "int8 tensor bf16", {"format": "int8_tensorwise", "convrot": True}
    ),
    partial(comfy, "int4 pairs of ComfyUI", "int8 channel bf16", {"format": "convrot_w4a4"}),
    partial(comfy, "a description of ComfyUI without a format", "int8 channel bf16", {}),
    partial(comfy, "a description of ComfyUI in another form", "int8 channel bf16", ["int8_tensorwise"]),
    partial(
        comfy,
        "a long description of ComfyUI",
        "int8 channel bf16",
        {"format": "int8_tensorwise", "x": "x" * 5000},
    ),
    # bitsandbytes [24, 64]
    partial(changed, "nf4 without a state", "nf4", {JSON: None}),
    partial(changed, "nf4 without absmax", "nf4", {".absmax": None}),
    partial(changed, "nf4 of another shape", "nf4", {JSON: state(shape=[24, 65])}),
    partial(changed, "nf4 of a large shape", "nf4", {JSON: state(shape=[1 << 62, 64])}),
    partial(changed, "nf4 of a negative shape", "nf4", {JSON: state(shape=[-24, -64])}),
    partial(changed, "nf4 in blocks of 48", "nf4", {JSON: state(blocksize=48)}),
    partial(changed, "nf4 in blocks of 0", "nf4", {JSON: state(blocksize=0)}),
    partial(changed, "nf4 of integers", "nf4", {JSON: state(dtype="int64")}),
    partial(changed, "nf4 with a long state", "nf4", {JSON: state(**LONG)}),
    partial(changed, "nf4 with no JSON", "nf4", {JSON: torch.zeros(40, dtype=U8)}),
    partial(changed, "nf4 with a nested state", "nf4", {JSON: state(shape=[[24, 64]])}),
    partial(changed, "nf4 with a map of 15", "nf4", {".quant_map": ones(15)}),
    partial(changed, "nf4 with few absmax", "nf4", {".absmax": ones(23)}),
    partial(changed, "nf4 with a byte too few", "nf4", {"q_proj.weight": some(767, 1)}),
    partial(changed, "nf4 with few nested absmax", "nf4 nested", {".nested_absmax": ones(1)}),
    partial(changed, "bnb int8 with few scales", "bnb int8", {".SCB": ones(31)}),
    partial(changed, "bnb int8 in tiles", "bnb int8", {".weight_format": torch.tensor(1, dtype=U8)}),
    # schemes of other libraries
    partial(
        foreign,
        "hqq",
        "hqq",
        "a.W_q",
        {
            "a.W_q": some(8, 16),
            "a.scale": ones(16, 1),
            "a.zero": ones(16, 1),
            "a.shape": torch.tensor([16, 16]),
        },
    ),
    partial(
        foreign,
        "quanto",
        "quanto",
        "a.weight._data",
        {"a.weight._data": some(8, 16), "a.weight._scale": ones(16, 1), "a.weight._shift": ones(16, 1)},
        weights="int4",
    ),
    partial(
        foreign,
        "aqlm",
        "aqlm",
        "a.codes",
        {"a.codes": some(8, 2, 1, dtype=I8), "a.codebooks": ones(1, 256, 1, 8), "a.scales": ones(8, 1, 1, 1)},
    ),
    partial(
        foreign, "eetq", "eetq", "a.weight", {"a.weight": some(16, 8, dtype=I8), "a.weight_scales": ones(8)}
    ),
    partial(
        foreign,
        "bitnet",
        "bitnet",
        "a.weight",
        {"a.weight": some(4, 16), "a.weight_scale": ones(1, dtype=BF16)},
    ),
)

REFUSED: dict[str, Callable[[], Case]] = {str(one.args[0]): one for one in MAKERS}

LOOK_ALIKES: dict[str, Tensors] = {
    "real int8": {"table.values": some(8, 16, dtype=I8)},
    "an image": {"sample.image": some(3, 8, 8), "sample.mean": ones(3)},
    "int8 with a parameter": {"a.values": some(8, 16, dtype=I8), "b.weight_scale": ones(8, 1)},
    "a norm with a scale": {"q_norm.scale": ones(8), "q_norm.weight": ones(8, dtype=BF16)},
    "bf16 with a scale": {"a.weight": ones(4, 4, dtype=BF16), "a.weight_scale": ones(4, 1)},
    "bf16 with blocks of scales": {"a.weight": ones(4, 4, dtype=BF16), "a.weight_scale_inv": ones(1, 1)},
    "bf16 with two scales": {
        "a.weight": ones(4, 8, dtype=BF16),
        "a.weight_scale": ones(4),
        "a.weight_scale_2": ones(1),
    },
    "scales alone": {
        "a.weight_scale_inv": ones(2, 2),
        "b.weight_scale": ones(2),
        "c.qzeros": some(2, 2, dtype=I32),
    },
    "ids with a scale": {"a.weight": torch.arange(8).reshape(2, 4), "a.scale": ones(1)},
    "float blocks": {"m.mlp_blocks": ones(2, 4, 1, 16), "m.mlp_scales": ones(2, 4, 1)},
    "float scales and biases": {"a.weight": ones(4, 8), "a.scales": ones(4, 1), "a.biases": ones(4, 1)},
    "floats with SCB": {"a.weight": ones(4, 8), "a.SCB": ones(4)},
    "floats with absmax": {"a.weight": ones(4, 8, dtype=BF16), "a.weight.absmax": ones(1)},
    "floats with a shape": {"a.weight": ones(4, 8), "a.weight_shape": torch.tensor([4, 8])},
    "floats that are called packed": {"a.weight_packed": ones(4, 8), "a.weight_scale": ones(4, 1)},
    "scales of a cache": {"attn.k_scale": ones(1), "attn.v_scale": ones(1), "attn.k_proj.weight": ones(4, 4)},
    "a mask of bits": {"a.bitmask": some(4, 2), "a.shape": torch.tensor([4, 16])},
}
