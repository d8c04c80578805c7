"""What a quantized checkpoint holds and means, and the steps that the makers of such checkpoints share.

Everything is written from the published layouts, with torch alone. A code is an integer of a few bits, a scale is a float.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
I8, I32, I64, U8 = torch.int8, torch.int32, torch.int64, torch.uint8
E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu

Shape = tuple[int, ...]
Tensors = dict[str, torch.Tensor]
Config = dict[str, Any]

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class Case(NamedTuple):
    """A checkpoint, and what its quantized weights mean."""

    name: str
    scheme: str
    tensors: Tensors
    """As stored: codes, companions, and tensors that are not quantized."""
    config: Config
    """The content of config.json, or nothing."""
    weights: Tensors
    """By logical name: the dequantized weight in its result dtype, contiguous in its logical shape."""
    codes: dict[str, str]
    """By logical name: the stored tensor of codes."""
    companions: dict[str, tuple[str, ...]]
    """By logical name: what else is needed to read the weight, or describes it."""
    ignored: tuple[str, ...] = ()
    """Stored scales of activations, which no weight is multiplied with."""
    metadata: dict[str, str] | None = None
    """The `__metadata__` of a safetensors file."""
    sidecars: dict[str, Config] | None = None
    """By name: JSON files beside the checkpoint that describe the quantization."""

    @property
    def plain(self) -> Tensors:
        """The tensors that are what they are."""
        hidden = {*self.codes.values(), *self.ignored}
        hidden.update(name for names in self.companions.values() for name in names)
        return {name: tensor for name, tensor in self.tensors.items() if name not in hidden}


def case(
    name: str,
    scheme: str,
    logical: str,
    value: torch.Tensor,
    codes: tuple[str, torch.Tensor],
    companions: Tensors,
    config: Config,
    ignored: Tensors | None = None,
    metadata: dict[str, str] | None = None,
) -> Case:
    """A checkpoint of one quantized weight and a norm."""
    stored = {codes[0]: codes[1], **companions, **(ignored or {})}
    return Case(
        name=name,
        scheme=scheme,
        tensors={
            "model.norm.weight": torch.linspace(-1, 1, 7).to(BF16),
            **{key: tensor.contiguous() for key, tensor in stored.items()},
        },
        config=config,
        weights={logical: value.contiguous()},
        codes={logical: codes[0]},
        companions={logical: tuple(companions)},
        ignored=tuple(ignored or ()),
        metadata=metadata,
    )


def joined(name: str, scheme: str, *parts: Case) -> Case:
    """One checkpoint of several schemes, with the first config."""
    whole = Case(name, scheme, {}, parts[0].config, {}, {}, {})
    for part in parts:
        whole.tensors.update(part.tensors)
        whole.weights.update(part.weights)
        whole.codes.update(part.codes)
        whole.companions.update(part.companions)
    return whole._replace(ignored=tuple(one for part in parts for one in part.ignored))


class Draw:
    """Random codes and scales from a seed."""

    def __init__(self, *seed: object) -> None:
        number = 0
        for character in repr(seed):
            number = (number * 131 + ord(character)) % (1 << 61)
        self.generator = torch.Generator().manual_seed(number)

    def codes(self, shape: Shape, count: int = 256, first: int = 0) -> torch.Tensor:
        """Integers from `first`, `count` of them, each as often as the others: int32."""
        size = math.prod(shape)
        values = torch.arange(size, dtype=I32) % count + first
        return values[torch.randperm(size, generator=self.generator)].reshape(shape)

    def bytes(self, shape: Shape, dtype: torch.dtype = U8) -> torch.Tensor:
        """Elements of one byte, of every value."""
        return self.codes(shape).to(U8).view(dtype)

    def scales(self, shape: Shape, dtype: torch.dtype, *, edges: bool = True) -> torch.Tensor:
        """Positive numbers as scales are; among many, also those that a product over- or underflows with."""
        if dtype in (U8, E8M0):
            return self.exponents(shape, dtype, edges=edges)
        found = torch.rand(shape, generator=self.generator) * 0.02 + 1e-3
        flat = found.to(dtype).reshape(-1)
        if edges and len(flat) >= 16:
            limits = torch.finfo(dtype)
            some = (0.0, -0.0, -0.0123, limits.tiny, limits.tiny / 8, limits.max, limits.max / 5, math.inf)
            at = torch.randperm(len(flat), generator=self.generator)[: len(some)]
            flat[at] = torch.tensor(some, dtype=torch.float64).to(dtype)
        return flat.reshape(shape)

    def exponents(self, shape: Shape, dtype: torch.dtype = U8, *, edges: bool = True) -> torch.Tensor:
        """Scales that are a power of two, of one byte each; with `edges`, also the least, the largest and NaN."""
        found = self.codes(shape, 46, 90).to(U8).reshape(-1)
        if edges and len(found) >= 8:
            at = torch.randperm(len(found), generator=self.generator)[:4]
            found[at] = torch.tensor([0, 1, 254, 255], dtype=U8)
        return found.reshape(shape).view(dtype)

    def groups(self, columns: int, size: int) -> torch.Tensor:
        """The group of each column, in no order."""
        return (torch.arange(columns, dtype=I32) // size)[torch.randperm(columns, generator=self.generator)]


def power(exponents: torch.Tensor) -> torch.Tensor:
    """2 ** (byte - 127) as float32, by its bits; the byte 255 is NaN."""
    byte = exponents.view(U8).to(I32)
    pattern = torch.where(byte == 0, 0x00400000, byte << 23)
    return torch.where(byte == 255, 0x7FC00000, pattern).to(I32).view(F32)


def fp4(codes: torch.Tensor) -> torch.Tensor:
    """The values of the codes 0 to 15 as float32: 8 is -0.0."""
    values = torch.tensor([*FP4_VALUES, *(-one for one in FP4_VALUES)])
    return values[codes.long()]


def nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Two codes in a byte, the even column in the low half."""
    return (codes[..., ::2] | codes[..., 1::2] << 4).to(U8)


def dense(codes: torch.Tensor, bits: int, dim: int = -1) -> torch.Tensor:
    """Codes of `bits` each without gaps in words of 32 bits, the first in the lowest bits; zeros fill the last word."""
    moved = codes.movedim(dim, -1).to(I64)
    single = (moved[..., None] >> torch.arange(bits)) & 1
    flat = single.reshape(*moved.shape[:-1], -1)
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[-1] % 32))
    return words(flat.reshape(*moved.shape[:-1], -1, 32), 1).movedim(-1, dim)


def whole_fields(codes: torch.Tensor, bits: int, dim: int = -1) -> torch.Tensor:
    """As `dense`, but no code crosses from one word into the next: the highest bits are unused."""
    moved, count = codes.movedim(dim, -1).to(I64), 32 // bits
    moved = torch.nn.functional.pad(moved, (0, -moved.shape[-1] % count))
    return words(moved.reshape(*moved.shape[:-1], -1, count), bits).movedim(-1, dim)


def words(fields: torch.Tensor, bits: int) -> torch.Tensor:
    """The last axis as fields of one int32."""
    total = (fields << torch.arange(fields.shape[-1]) * bits).sum(-1)
    return torch.where(total >= 1 << 31, total - (1 << 32), total).to(I32)


def spread(scales: torch.Tensor, shape: Shape, block: tuple[int, int]) -> torch.Tensor:
    """The scale of each element, from one for each block of rows and columns."""
    rows, columns = shape[-2:]
    tall = scales.repeat_interleave(block[0], -2)[..., :rows, :]
    return tall.repeat_interleave(block[1], -1)[..., :columns]


def grid(shape: Shape, block: tuple[int, int]) -> Shape:
    return (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))


def times(value: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """One product of each element in float32, rounded once."""
    return (value.to(F32) * scale.to(F32)).to(dtype)


def named(*makers: partial[Case]) -> dict[str, Callable[[], Case]]:
    """Functions by the name of the case that each makes, its first argument."""
    found = {str(one.args[0]): one for one in makers}
    assert len(found) == len(makers)
    return dict(found)


def as_float(scale: torch.Tensor) -> torch.Tensor:
    """The scales as float32; those of one byte are exponents."""
    return power(scale) if scale.dtype in (U8, E8M0) else scale.to(F32)


def modelopt(algorithm: str, **more: object) -> Config:
    found = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"], **more}
    return {"quantization_config": found}


def compressed(
    form: str,
    bits: int,
    strategy: str,
    *,
    kind: str = "int",
    symmetric: bool = True,
    group_size: int | None = None,
    block: tuple[int, int] | None = None,
    actorder: str | None = None,
    scale_dtype: str | None = None,
) -> Config:
    """What compressed-tensors writes in config.json."""
    weights = {
        "num_bits": bits,
        "type": kind,
        "symmetric": symmetric,
        "strategy": strategy,
        "group_size": group_size,
        "block_structure": list(block) if block else None,
        "actorder": actorder,
        "scale_dtype": scale_dtype,
        "dynamic": False,
    }
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "format": form}
    return {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": form,
            "quantization_status": "compressed",
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
        }
    }
