"""Checkpoints of GPTQ, AWQ and bitsandbytes with what they mean (`quantized_files`)."""

import json
from functools import partial

import torch
from quantized_case import (
    BF16,
    F16,
    F32,
    I8,
    I32,
    U8,
    Case,
    Config,
    Draw,
    case,
    dense,
    named,
    times,
    words,
)

Q = "model.layers.0.self_attn.q_proj"

NF4_VALUES = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
FP4_FRACTIONS = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def gptq(
    name: str,
    shape: tuple[int, int],
    bits: int,
    group_size: int,
    *,
    version: str | None = "gptq",
    dtype: torch.dtype = F16,
    g_idx: str | None = "ordered",
    zeros: str = "drawn",
    symmetric: bool = False,
    quantizer: str | None = None,
    sidecar: bool = False,
) -> Case:
    """Codes packed along K and zero points along N, of [K, N]. The form `gptq` stores a zero point less one.

    `zeros`: of every value, or those of symmetric codes, or of these the ones that `gptq_v2` has. A stored field of all ones
    means 0 to a reader that adds one to each field, but GPTQModel adds to the whole word.
    """
    rows, columns = shape
    size = columns if group_size == -1 else group_size
    draw, count, limit = Draw(name, shape, bits), -(-columns // size), 1 << bits
    code = draw.codes((columns, rows), limit)
    scale = draw.scales((count, rows), dtype)
    group = torch.arange(columns, dtype=I32) // size
    if g_idx == "shuffled":
        group = draw.groups(columns, size)
    whole_words = quantizer is not None and bits in (2, 4, 8)
    if zeros == "drawn":
        zero = stored = draw.codes((count, rows), limit)
        if version != "gptq_v2":
            zero = after_words(stored, bits) if whole_words else (stored + 1) % limit
    else:
        zero = torch.full((count, rows), limit // 2, dtype=I32)
        stored = zero if zeros == "of v2" or version == "gptq_v2" else zero - 1
    companions = {f"{Q}.qzeros": dense(stored, bits), f"{Q}.scales": scale}
    if g_idx is not None:
        companions[f"{Q}.g_idx"] = group
    value = times(code - zero[group.long()], scale[group.long()], dtype).T
    settings: Config = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": group_size,
        "desc_act": g_idx == "shuffled",
        "sym": symmetric,
        "checkpoint_format": version,
        "meta": {"quantizer": [quantizer]} if quantizer else None,
    }
    settings = {key: one for key, one in settings.items() if one is not None}
    codes = (f"{Q}.qweight", dense(code, bits, 0))
    config = {} if sidecar else {"quantization_config": settings}
    found = case(name, "gptq", f"{Q}.weight", value, codes, companions, config)
    return found._replace(sidecars={"quantize_config.json": settings} if sidecar else None)


def after_words(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """The fields after one is added to each without stopping at its highest bit, which carries into the next."""
    fields = stored.reshape(len(stored), -1, 32 // bits).to(torch.int64)
    places = torch.arange(32 // bits) * bits
    total = (fields << places).sum(-1) + int((1 << places).sum())
    return ((total[..., None] >> places) & ((1 << bits) - 1)).to(I32).reshape(stored.shape)


def awq(
    name: str,
    shape: tuple[int, int],
    group_size: int,
    dtype: torch.dtype = F16,
    *,
    short_keys: bool = False,
) -> Case:
    """Codes of [K, N] packed along N, eight columns in a word in an order of their own, and zero points as they are."""
    rows, columns = shape
    size = columns if group_size == -1 else group_size
    draw, count = Draw(name, shape), columns // size
    code, zero = draw.codes((columns, rows), 16), draw.codes((count, rows), 16)
    scale = draw.scales((count, rows), dtype)
    group = torch.arange(columns) // size
    value = times(code - zero[group], scale[group], dtype).T
    settings: Config = {"quant_method": "awq", "zero_point": True, "version": "gemm"}
    names = ("w_bit", "q_group_size") if short_keys else ("bits", "group_size")
    settings.update(zip(names, (4, group_size), strict=True))
    companions = {f"{Q}.qzeros": in_awq_order(zero), f"{Q}.scales": scale}
    codes = (f"{Q}.qweight", in_awq_order(code))
    return case(name, "awq", f"{Q}.weight", value, codes, companions, {"quantization_config": settings})


def in_awq_order(codes: torch.Tensor) -> torch.Tensor:
    return words(codes.reshape(len(codes), -1, 8)[..., AWQ_ORDER].long(), 4)


def nested_map() -> torch.Tensor:
    """256 values as the map of quantized scales has them: denser near 0, of both signs, sorted."""
    half = torch.logspace(-7, 0, 127, base=10.0)
    return torch.cat((-half.flip(0), torch.zeros(2), half)).to(F32)


def four_bits(
    name: str,
    shape: tuple[int, ...],
    kind: str = "nf4",
    dtype: str = "bfloat16",
    blocksize: int = 64,
    *,
    nested: bool = False,
    storage: torch.dtype = U8,
) -> Case:
    """bitsandbytes: blocks of the flattened weight with one scale each; the even element in the high half of a byte."""
    draw, size = Draw(name, shape, kind), torch.Size(shape).numel()
    table = torch.tensor(NF4_VALUES if kind == "nf4" else (*FP4_FRACTIONS, *(-one for one in FP4_FRACTIONS)))
    if kind == "fp4":
        table[8] = 0.0
    code = draw.codes((size,), 16)
    count = -(-size // blocksize)
    path = f"{Q}.weight"
    state: dict[str, object] = {
        "quant_type": kind,
        "blocksize": blocksize,
        "dtype": dtype,
        "shape": list(shape),
    }
    companions = {f"{path}.quant_map": table}
    if nested:
        inner = draw.codes((count,)).to(U8)
        scale = draw.scales((-(-count // 256),), F32, edges=False)
        offset = 0.013671875 + 2.0**-20
        absmax = nested_map()[inner.long()] * scale.repeat_interleave(256)[:count] + offset
        companions |= {
            f"{path}.absmax": inner,
            f"{path}.nested_absmax": scale,
            f"{path}.nested_quant_map": nested_map(),
        }
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
    else:
        absmax = draw.scales((count,), F32)
        companions[f"{path}.absmax"] = absmax
    each = absmax.repeat_interleave(blocksize)[:size]
    value = times(table[code.long()], each, getattr(torch, dtype)).reshape(shape)
    written = torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=U8)
    companions[f"{path}.quant_state.bitsandbytes__{kind}"] = written
    even = torch.nn.functional.pad(code, (0, size % 2))
    stored = (even[::2] << 4 | even[1::2]).to(U8).view(storage).reshape(-1, 1)
    settings: Config = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": kind,
        "bnb_4bit_use_double_quant": nested,
        "bnb_4bit_quant_storage": str(storage).removeprefix("torch."),
        "bnb_4bit_compute_dtype": "bfloat16",
    }
    return case(
        name, f"bnb-{kind}", path, value, (path, stored), companions, {"quantization_config": settings}
    )


def eight_bits(name: str, shape: tuple[int, int]) -> Case:
    """bitsandbytes: int8, and the largest absolute value of each row."""
    draw = Draw(name, shape)
    code, largest = draw.codes(shape, 256, -128).to(I8), draw.scales((shape[0],), F32) * 100
    value = code.to(F32) * largest[:, None] * torch.tensor(1 / 127, dtype=torch.float64).to(F32)
    companions = {f"{Q}.SCB": largest, f"{Q}.weight_format": torch.tensor(0, dtype=U8)}
    config: Config = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    return case(name, "bnb-int8", f"{Q}.weight", value, (f"{Q}.weight", code), companions, config)


MODEL = "gptqmodel:7.7.0"

CODE_CASES = named(
    partial(gptq, "gptq symmetric", (64, 128), 4, 32, zeros="middle", symmetric=True),
    partial(gptq, "gptq v1", (24, 96), 4, 32),
    partial(gptq, "gptq v1 one group", (16, 40), 4, -1),
    partial(gptq, "gptq v1 without g_idx", (40, 64), 4, 16, g_idx=None),
    partial(gptq, "gptq v1 shuffled", (32, 128), 4, 32, g_idx="shuffled"),
    partial(gptq, "gptq v1 without a format", (8, 64), 4, 32, version=None),
    partial(gptq, "gptq v1 last group short", (16, 80), 4, 32),
    partial(gptq, "gptq v1 bf16", (24, 64), 4, 32, dtype=BF16),
    partial(gptq, "gptq v1 f32", (24, 64), 4, 32, dtype=F32),
    partial(gptq, "gptq v1 of GPTQModel", (24, 96), 4, 32, quantizer=MODEL),
    partial(gptq, "gptq v1 with zeros of v2", (24, 96), 4, 32, zeros="of v2", symmetric=True),
    partial(gptq, "gptq v2", (24, 96), 4, 32, version="gptq_v2"),
    partial(gptq, "gptq v2 of a sidecar", (24, 96), 4, 32, version="gptq_v2", sidecar=True),
    partial(gptq, "gptq v2 shuffled", (16, 64), 4, 16, version="gptq_v2", g_idx="shuffled"),
    partial(gptq, "gptq 8 bits", (20, 64), 8, 32),
    partial(gptq, "gptq 8 bits v2 bf16", (12, 96), 8, 32, version="gptq_v2", dtype=BF16),
    partial(gptq, "gptq 8 bits shuffled of GPTQModel", (256, 64), 8, 16, g_idx="shuffled", quantizer=MODEL),
    partial(gptq, "gptq 8 bits symmetric", (12, 36), 8, -1, zeros="middle", symmetric=True),
    partial(gptq, "gptq 2 bits", (32, 96), 2, 32),
    partial(gptq, "gptq 2 bits v2", (48, 64), 2, 16, version="gptq_v2"),
    partial(gptq, "gptq 2 bits of GPTQModel", (32, 64), 2, 32, quantizer=MODEL),
    partial(gptq, "gptq 3 bits", (32, 96), 3, 32),
    partial(gptq, "gptq 3 bits v2 shuffled", (64, 128), 3, 64, version="gptq_v2", g_idx="shuffled"),
    partial(gptq, "gptq 3 bits of GPTQModel", (96, 32), 3, 16, quantizer=MODEL),
    partial(awq, "awq", (64, 128), 32),
    partial(awq, "awq one group odd", (8, 37), -1),
    partial(awq, "awq short keys", (24, 192), 64, short_keys=True),
    partial(awq, "awq bf16", (40, 96), 16, BF16),
    partial(four_bits, "nf4", (24, 64)),
    partial(four_bits, "nf4 odd", (7, 37)),
    partial(four_bits, "nf4 f32 ragged", (33, 50), dtype="float32", blocksize=128),
    partial(four_bits, "nf4 f16 as bf16", (20, 32), dtype="float16", storage=BF16),
    partial(four_bits, "nf4 as f32", (9, 40), storage=F32),
    partial(four_bits, "nf4 nested", (160, 130), nested=True),
    partial(four_bits, "nf4 nested odd f32", (45, 61), dtype="float32", nested=True),
    partial(four_bits, "nf4 nested as bf16", (130, 160), nested=True, storage=BF16),
    partial(four_bits, "nf4 of 3 axes", (3, 10, 16)),
    partial(four_bits, "fp4", (24, 64), "fp4"),
    partial(four_bits, "fp4 odd f32", (11, 13), "fp4", "float32"),
    partial(four_bits, "fp4 f16 blocks of 256", (40, 50), "fp4", "float16", 256),
    partial(four_bits, "fp4 nested", (64, 300), "fp4", nested=True),
    partial(eight_bits, "bnb int8", (32, 48)),
    partial(eight_bits, "bnb int8 odd", (17, 31)),
    partial(eight_bits, "bnb int8 one row", (1, 260)),
)
