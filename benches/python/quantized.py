"""Cases that dequantize one large weight, beside the torch expressions of the library that packs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import safetensors
import torch

import rustload

from .case import CACHE, FRESH, MIB, DataCase, safe_open

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Tensors = dict[str, torch.Tensor]

FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
FP4_TABLE = torch.tensor([*FP4, *(-one for one in FP4)])
NF4_TABLE = torch.linspace(-1, 1, 16)
"""The library reads the table of the file too; its numbers do not change the time."""
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
BLOCK = 64
"""Codes of nf4 to a scale."""
HEADER_BYTES = 64 << 10
"""What may be read beside the tensors."""


class Scheme(NamedTuple):
    """A packed weight, and how torch decodes it."""

    title: str
    packed: Callable[[int, int], Tensors]
    """Random codes and scales of a weight of so many rows and columns."""
    decoded: Callable[[Tensors], torch.Tensor]
    """The weight, in the dtype that the library gives."""
    name: str = "w.weight"


class DequantizeCase(DataCase):
    """Load one quantized weight as the 16-bit floats that it means."""

    allocates = True
    suffix = ".safetensors"
    limit = "reading the file from the page cache with one thread, and filling a touched buffer of the result's size"

    def __init__(self, scheme: Scheme, rows: int, columns: int) -> None:
        self.scheme, self.rows, self.columns = scheme, rows, columns
        self.title = f"dequantize {scheme.title}, {rows}x{columns}, {self.suffix}"

    @property
    def nbytes(self) -> int:
        return self.path.stat().st_size

    @property
    def arena(self) -> int:
        return 12 * self.rows * self.columns  # torch's temporaries are of 4 bytes

    @property
    def path(self) -> Path:
        name = self.scheme.title.replace(" ", "-").lower()
        return CACHE / f"dequantize-{name}-{self.rows}x{self.columns}{self.suffix}"

    def tensors(self) -> Tensors:
        torch.manual_seed(0)
        return {name: one.contiguous() for name, one in self.scheme.packed(self.rows, self.columns).items()}

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, (_, _, decoded, name) = self.path, self.scheme

        def ours(threads: int | None = None) -> Tensors:
            with rustload.open(path, framework="torch", dequantize=True) as checkpoint:
                lazy = checkpoint[name]
                # The product of fp8 is float32 unless a dtype is asked for.
                dtype = "bfloat16" if lazy.dtype == "float32" else None
                return {name: lazy.materialize(dtype=dtype, threads=threads)}

        return {
            "rustload": ours,
            "rustload, one thread": lambda: ours(1),
            f"rustload, {FRESH}": ours,
            "safe_open, torch": lambda: {name: decoded(dict(safe_open(path)))},
        }

    def limit_probe(self) -> Callable[[], object]:
        target, buffer = torch.ones(self.rows * self.columns, dtype=torch.bfloat16), bytearray(b"1" * MIB)

        def probe() -> object:
            with self.path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
            return target.zero_()

        return probe


class ExpertCase(DequantizeCase):
    """Open a file of experts that are packed as Kimi's, and load the three weights of one."""

    experts = 8

    def __init__(self, rows: int, columns: int) -> None:
        super().__init__(Scheme("one expert", pack_int4, decode_int4), rows, columns)
        self.title = f"dequantize one int4 expert of {self.experts}, 3 x {rows}x{columns}, {self.suffix}"
        shapes = {"gate": (rows, columns), "up": (rows, columns), "down": (columns, rows)}
        self.weights = {f"{{}}.{name}_proj.weight": shape for name, shape in shapes.items()}

    @property
    def nbytes(self) -> int:
        """Codes and scales of one expert."""
        return 3 * self.rows * self.columns * 9 // 16

    @property
    def arena(self) -> int:
        return 3 * super().arena

    def tensors(self) -> Tensors:
        torch.manual_seed(0)
        return {
            stored.replace("w.weight", name.format(expert)): tensor
            for expert in range(self.experts)
            for name, shape in self.weights.items()
            for stored, tensor in pack_int4(*shape).items()
        }

    def ways(self) -> dict[str, Callable[[], Any]]:
        path, expert = self.path, self.experts - 2
        names = [name.format(expert) for name in self.weights]

        def ours(threads: int | None = None) -> Tensors:
            with rustload.open(path, framework="torch", dequantize=True) as checkpoint:
                return dict(checkpoint.select(names).materialize(threads=threads))

        def torchs() -> Tensors:
            with safetensors.safe_open(path, framework="pt") as file:
                parts = ("_packed", "_scale")
                return {
                    name: decode_int4({f"w.weight{part}": file.get_tensor(name + part) for part in parts})
                    for name in names
                }

        return {
            "rustload": ours,
            "rustload, one thread": lambda: ours(1),
            f"rustload, {FRESH}": ours,
            "safe_open, torch": torchs,
        }

    def check(self) -> None:
        super().check()
        before = bytes_read()
        self.ways()["rustload"]()
        assert bytes_read() - before <= 1.05 * self.nbytes + HEADER_BYTES, "it reads that expert alone"

    def limit_probe(self) -> Callable[[], object]:
        target = torch.ones(3 * self.rows * self.columns, dtype=torch.bfloat16)
        buffer, nbytes, path = bytearray(b"1" * MIB), self.nbytes, self.path

        def probe() -> object:
            with path.open("rb", buffering=0) as file:
                for _ in range(0, nbytes, MIB):
                    file.readinto(buffer)
            return target.zero_()

        return probe


def bytes_read() -> int:
    """The bytes that this process has read by system calls."""
    return int(Path("/proc/self/io").read_text().split()[1])


def dequantizing(*, quick: bool) -> Iterator[DequantizeCase]:
    """One case for each way to pack, of weights as large as those of published models; and one expert of Kimi's size."""
    yield ExpertCase(*((256, 512) if quick else (2048, 7168)))
    rows, columns = (256, 512) if quick else (4096, 14336)
    yield from (DequantizeCase(scheme, rows, columns) for scheme in SCHEMES)


def random_bytes(*shape: int) -> torch.Tensor:
    """Bytes of every value."""
    return torch.randint(256, shape, dtype=torch.uint8)


def random_words(*shape: int) -> torch.Tensor:
    """Words of 32 bits, of random bits."""
    return random_bytes(*shape[:-1], shape[-1] * 4).view(torch.int32)


def random_scales(*shape: int) -> torch.Tensor:
    """Scales as those of weights, float32."""
    return torch.rand(shape) * 0.02 + 1e-3


def in_groups(found: torch.Tensor, size: int) -> torch.Tensor:
    """The last dimension as two, of which the last has this size."""
    return found.view(*found.shape[:-1], -1, size)


def nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Two codes to a byte, the first in the low half."""
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def fields(packed: torch.Tensor, dim: int) -> torch.Tensor:
    """Eight codes to a word: those of a word become neighbours in `dim`."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    if dim == 0:
        return ((packed[:, None] >> shifts[:, None]) & 15).flatten(0, 1)
    return ((packed[..., None] >> shifts) & 15).flatten(-2)


def pack_fp8(rows: int, columns: int) -> Tensors:
    """As transformers and DeepSeek do."""
    weight = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    return {"w.weight": weight, "w.weight_scale_inv": random_scales(rows // 128, columns // 128)}


def decode_fp8(found: Tensors) -> torch.Tensor:
    """One product in float32, rounded to bfloat16."""
    weight, scale = found["w.weight"], found["w.weight_scale_inv"]
    blocks = weight.float().view(len(scale), 128, -1, 128) * scale[:, None, :, None]
    return blocks.view(weight.shape).bfloat16()


def pack_int4(rows: int, columns: int) -> Tensors:
    """As compressed-tensors does: eight codes along a row in a word."""
    return {
        "w.weight_packed": random_words(rows, columns // 8),
        "w.weight_scale": random_scales(rows, columns // 32).bfloat16(),
        "w.weight_shape": torch.tensor([rows, columns]),
    }


def decode_int4(found: Tensors) -> torch.Tensor:
    """Products in the dtype of the scales."""
    codes = (fields(found["w.weight_packed"], 1) - 8).to(torch.int8)
    groups = in_groups(codes.bfloat16(), 32) * found["w.weight_scale"][..., None]
    return groups.flatten(-2)


def pack_nvfp4(rows: int, columns: int) -> Tensors:
    """As compressed-tensors does."""
    return {
        "w.weight_packed": random_bytes(rows, columns // 2),
        "w.weight_scale": torch.rand(rows, columns // 16).to(torch.float8_e4m3fn),
        "w.weight_global_scale": torch.tensor([3e3]),
    }


def decode_nvfp4(found: Tensors) -> torch.Tensor:
    """Products in float32, rounded to bfloat16."""
    codes = FP4_TABLE.bfloat16()[nibbles(found["w.weight_packed"]).int()]
    scale = found["w.weight_scale"].float() / found["w.weight_global_scale"]
    return (in_groups(codes, 16) * scale[..., None]).flatten(-2).bfloat16()


def pack_mxfp4(rows: int, columns: int) -> Tensors:
    """As gpt-oss has its experts."""
    experts = 4
    shape = (experts, columns // experts, rows // 32)
    return {
        "w.gate_up_proj_blocks": random_bytes(*shape, 16),
        "w.gate_up_proj_scales": torch.randint(100, 130, shape, dtype=torch.uint8),
    }


def decode_mxfp4(found: Tensors) -> torch.Tensor:
    """Powers of two in bfloat16; the last two dimensions are exchanged."""
    codes = FP4_TABLE.bfloat16()[nibbles(found["w.gate_up_proj_blocks"]).int()]
    exponents = found["w.gate_up_proj_scales"].int() - 127
    return torch.ldexp(codes, exponents[..., None]).flatten(-2).transpose(1, 2).contiguous()


def pack_gptq(rows: int, columns: int) -> Tensors:
    """Eight codes along a column in a word, and symmetric zero points, stored less one."""
    groups = columns // 128
    return {
        "w.qweight": random_words(columns // 8, rows),
        "w.qzeros": torch.full((groups, rows // 8), 0x77777777, dtype=torch.int32),
        "w.scales": random_scales(groups, rows).half(),
        "w.g_idx": (torch.arange(columns) // 128).int(),
    }


def decode_gptq(found: Tensors) -> torch.Tensor:
    """Products in float16, then the weight as linear layers have it."""
    group = found["w.g_idx"].long()
    codes, zeros = fields(found["w.qweight"], 0), (fields(found["w.qzeros"], 1) + 1) & 15
    return (found["w.scales"][group] * (codes - zeros[group])).T.contiguous()


def pack_awq(rows: int, columns: int) -> Tensors:
    """Eight codes along a row in a word, in an order of their own."""
    groups = columns // 128
    return {
        "w.qweight": random_words(columns, rows // 8),
        "w.qzeros": random_words(groups, rows // 8),
        "w.scales": random_scales(groups, rows).half(),
    }


def decode_awq(found: Tensors) -> torch.Tensor:
    """Products in float16, then the weight as linear layers have it."""

    def ordered(packed: torch.Tensor) -> torch.Tensor:
        codes = fields(packed, 1).to(torch.int8)
        return in_groups(codes, 8)[..., AWQ_ORDER].flatten(-2)

    codes, zeros = ordered(found["w.qweight"]), ordered(found["w.qzeros"])
    zeros, scales = (one.repeat_interleave(128, 0) for one in (zeros, found["w.scales"]))
    return ((codes - zeros) * scales).T.contiguous()


def pack_nf4(rows: int, columns: int) -> Tensors:
    """Two codes to a byte, the first in the high half."""
    state = (
        f'{{"quant_type": "nf4", "blocksize": {BLOCK}, "dtype": "bfloat16", "shape": [{rows}, {columns}]}}'
    )
    return {
        "w.weight": random_bytes(rows * columns // 2, 1),
        "w.weight.absmax": random_scales(rows * columns // BLOCK),
        "w.weight.quant_map": NF4_TABLE,
        "w.weight.quant_state.bitsandbytes__nf4": torch.tensor(list(state.encode()), dtype=torch.uint8),
    }


def decode_nf4(found: Tensors) -> torch.Tensor:
    """Products in float32, rounded to bfloat16."""
    packed, absmax = found["w.weight"], found["w.weight.absmax"]
    codes = torch.stack((packed >> 4, packed & 15), -1).view(len(absmax), -1)
    state = bytes(found["w.weight.quant_state.bitsandbytes__nf4"].tolist())
    rows, columns = map(int, state.decode().rpartition("[")[2].rstrip("]}").split(","))
    return (found["w.weight.quant_map"][codes.int()] * absmax[:, None]).bfloat16().view(rows, columns)


SCHEMES = (
    Scheme("fp8 in blocks of 128", pack_fp8, decode_fp8),
    Scheme("int4 in groups of 32", pack_int4, decode_int4),
    Scheme("NVFP4", pack_nvfp4, decode_nvfp4),
    Scheme("MXFP4 of four experts", pack_mxfp4, decode_mxfp4, "w.gate_up_proj"),
    Scheme("GPTQ of 4 bits", pack_gptq, decode_gptq),
    Scheme("AWQ", pack_awq, decode_awq),
    Scheme("nf4 of bitsandbytes", pack_nf4, decode_nf4),
)
