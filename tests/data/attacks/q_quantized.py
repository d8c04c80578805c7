"""Q: quantized checkpoints whose codes, scales and descriptions contradict each other, opened with `dequantize=True`."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING

from attacks.pickles import named, storage, tensor
from attacks.registry import Fails, family
from attacks.streams import info, safetensors
from attacks.zips import around

if TYPE_CHECKING:
    from collections.abc import Callable

    from attacks.registry import Build

Tensors = dict[str, tuple[str, list[int], bytes]]

SIZES = {"U8": 1, "I8": 1, "F8_E4M3": 1, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8}


def i32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def i64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def f32(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def zeros(dtype: str, *shape: int) -> tuple[str, list[int], bytes]:
    return dtype, list(shape), bytes(SIZES[dtype] * math.prod(shape))


def file(tensors: Tensors) -> Callable[[], bytes]:
    """A safetensors file of tensors of the module `a`."""

    def build() -> bytes:
        header, data = {}, b""
        for name, (dtype, shape, content) in tensors.items():
            header[f"a.{name}"] = info(dtype, shape, len(data), len(data) + len(content))
            data += content
        return safetensors(header, data)

    return build


def described(text: bytes, codes: int = 32) -> Tensors:
    """nf4 codes of 2 * `codes` numbers in a block with this description."""
    return {
        "weight": zeros("U8", codes, 1),
        "weight.absmax": zeros("F32", 1),
        "weight.quant_map": zeros("F32", 16),
        "weight.quant_state.bitsandbytes__nf4": ("U8", [len(text)], text),
    }


def text(**more: object) -> bytes:
    """The description of 8 x 8 numbers."""
    found = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [8, 8], **more}
    return json.dumps(found).encode()


GPTQ: Tensors = {
    "qweight": zeros("I32", 4, 8),
    "qzeros": ("I32", [2, 1], i32(0x77777777, 0x77777777)),
    "scales": zeros("F16", 2, 8),
    "g_idx": ("I32", [32], i32(*[0] * 16, *[1] * 16)),
}
PACKED: Tensors = {
    "weight_packed": zeros("I32", 2, 8),
    "weight_scale": zeros("BF16", 2, 2),
    "weight_shape": ("I64", [2], i64(2, 64)),
}
NVFP4: Tensors = {
    "weight_packed": zeros("U8", 2, 16),
    "weight_scale": zeros("F8_E4M3", 2, 2),
    "weight_global_scale": ("F32", [1], f32(1)),
}


def fails(code: str, name: str = "a.weight") -> Fails:
    return Fails(code, lambda ckpt: ckpt[name].bytes(), "reading")


def add(
    ident: str, what: str, builds: dict[str, Build] | Build, load: Fails, suffix: str = ".safetensors"
) -> None:
    family(ident, what, builds, load, "", suffix=suffix, options={"dequantize": True})


add("Q07", "codes without what they are multiplied by", {
    "fp8": file({"weight": zeros("F8_E4M3", 2, 2)}), "bytes": file({"weight": zeros("U8", 2, 2)}),
}, fails("QuantUnknown"))  # fmt: skip
add(
    "Q07", "", {"blocks": file({"up_blocks": zeros("U8", 2, 2, 1, 16)})}, fails("QuantUnknown", "a.up_blocks")
)
INDICES = {"past": 2, "negative": -1, "largest": 2**31 - 1, "least": -(2**31)}
add("Q01", "an index of groups of GPTQ that is of none", {
    name: file({**GPTQ, "g_idx": ("I32", [32], i32(*[0] * 31, value))}) for name, value in INDICES.items()
}, fails("TensorBounds"))  # fmt: skip
add("Q01", "", {
    f"packed_{name}": file({**PACKED, "weight_g_idx": ("I32", [64], i32(*[0] * 63, value))}) for name, value in INDICES.items()
}, fails("TensorBounds"))  # fmt: skip


def within(size: tuple[int, ...], offset: int) -> bytes:
    return tensor(size, offset=offset, on=storage("torch.IntStorage", numel=32))


def aliased() -> bytes:
    """Codes of GPTQ, whose zero points and group indices are on their storage."""
    halves = tensor((2, 8), on=storage("torch.HalfStorage", key="1", numel=16))
    found = {"a.qweight": within((4, 8), 0), "a.qzeros": within((2, 1), 30), "a.scales": halves}
    return around(named(found), storages={"0": bytes(128), "1": bytes(32)})


add("Q02", "zero points in the bytes of the codes", aliased, fails("TensorBounds", "a.qweight"), ".bin")
add("Q03", "a description of 4-bit blocks with other keys, or with keys twice, or nested", {
    "key": file(described(text(other=1))), "twice": file(described(text()[:-1] + b',"blocksize":32}')), "list": file(described(b"[]")),
    "nested": file(described(b'{"shape":' + b"[" * 2000 + b"]" * 2000 + b"}")), "cut": file(described(text()[:-1])),
    "block": file(described(text(blocksize=0))), "rank": file(described(text(shape=[[8], 8]))),
}, fails("QuantUnknown"))  # fmt: skip
add("Q03", "", {
    "long": file(described(text() + b" " * 4096)), "empty": file(described(text(shape=[]))), "none": file(described(text(shape=[0, 8]))),
}, fails("TensorBounds"))  # fmt: skip
add("Q04", "scales, zero points or indices of another shape than the codes", {
    "scales": file({**GPTQ, "scales": zeros("F16", 2, 7)}), "groups": file({**GPTQ, "scales": zeros("F16", 3, 8)}),
    "zeros": file({**GPTQ, "qzeros": zeros("I32", 2, 9)}), "index": file({**GPTQ, "g_idx": zeros("I32", 31)}),
    "no_zeros": file({**GPTQ, "qzeros": zeros("I32", 0, 1)}), "no_groups": file({**GPTQ, "scales": zeros("F16", 0, 8)}),
}, fails("TensorBounds", "a.qweight"))  # fmt: skip
add("Q05", "a stated shape that contradicts the codes", {
    name: file({**PACKED, "weight_shape": ("I64", [2], i64(*shape))})
    for name, shape in {"wide": (2, 1 << 62), "negative": (2, -64), "rows": (3, 64), "none": (2, 0), "other": (2, 66)}.items()
}, fails("TensorBounds", "a.weight_packed"))  # fmt: skip
add("Q06", "sizes of which the product does not fit 64 bits", {
    "description": file(described(text(shape=[1 << 62, 1 << 62]))),
}, fails("TensorBounds"))  # fmt: skip
add("Q06", "", {
    "words": file({"weight": zeros("U32", 0, 1 << 40), "scales": zeros("F16", 0, 1 << 40), "biases": zeros("F16", 0, 1 << 40)}),
}, fails("QuantUnknown"))  # fmt: skip
add("Q06", "", {
    "rows": file({**GPTQ, "qweight": zeros("I32", 1 << 60, 0)}), "zeros": file({**GPTQ, "qzeros": zeros("I32", 0, 1 << 60)}),
}, fails("TensorBounds", "a.qweight"))  # fmt: skip
add("Q08", "a scale for all that divides and is zero or infinite", {
    name: file({**NVFP4, "weight_global_scale": ("F32", [1], f32(value))})
    for name, value in {"zero": 0.0, "minus_zero": -0.0, "infinite": math.inf, "nan": math.nan}.items()
}, fails("TensorBounds", "a.weight_packed"))  # fmt: skip
