"""Writes cast_golden.bin: the results of torch 2.13 for special and random values, for every ordered pair of dtypes.

Where rustload defines another result than torch (see `Cast::new`), the value is left out: float to int out of range or
NaN, and fp8 overflow. The pair is then shorter; it is never changed.

Format, little-endian, repeated to the end: from (u8, index into NAMES), to (u8), count (u16), source bytes, result bytes.
Run with torch 2.13: python tests/data/make_cast_golden.py
"""

import pathlib
import struct

import torch

NAMES = (  # noqa: SIM905 - a list of quoted names is harder to read
    "bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz "
    "float8_e8m0fnu float16 bfloat16 float32 float64 complex32 complex64 complex128"
).split()
DTYPES = [getattr(torch, name) for name in NAMES]
LARGEST = {
    torch.float8_e4m3fn: 464.0,  # halfway to the next step, which is even, so this is the largest value that does not overflow
    torch.float8_e5m2: float("inf"),  # overflows to infinity in torch, too
    torch.float8_e4m3fnuz: float("inf"),  # NaN in torch, too
    torch.float8_e5m2fnuz: float("inf"),
    torch.float8_e8m0fnu: float("inf"),
}
SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, 127.5, 128.0, 255.0, 256.0, 257.0, 65504.0, 65519.9, 65520.0, 65535.0,
    65536.0, 2.0**24 + 1, 2.0**31 - 1, -(2.0**31), 2.0**32, 2.0**53 + 2, 2.0**63, -(2.0**63), 3.4028234e38, 3.5e38, 1e300,
    2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-16, 2.0**-17, 2.0**-24, 2.0**-25, 1.1 * 2.0**-25, 2.0**-126, 2.0**-127,
    1.1 * 2.0**-127, 2.0**-149, 2.0**-150, 5e-324, 1.00390625, 1.01171875, 1.0 + 2.0**-8 + 2.0**-30, 1.0 + 2.0**-11 + 2.0**-40,
    447.0, 463.9, 240.0, 247.9, 57344.0, 61439.0, float("inf"), float("-inf"), float("nan"),
]  # fmt: skip
generator = torch.Generator().manual_seed(20)


def random_bytes(count: int) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)


def sources(dtype: torch.dtype) -> torch.Tensor:
    """Values to convert: special ones, random bit patterns, and random values of moderate size."""
    if dtype == torch.bool:
        return torch.tensor([False, True] * 4)
    if dtype.itemsize == 1:
        return torch.arange(256).to(torch.uint8).view(dtype)
    if dtype.is_complex:
        half = {
            torch.complex32: torch.float16,
            torch.complex64: torch.float32,
            torch.complex128: torch.float64,
        }[dtype]
        real = sources(half)
        imaginary = real[torch.randperm(len(real), generator=generator)]
        return torch.stack([real, imaginary], dim=1).flatten().view(dtype)
    patterns = random_bytes(12 * dtype.itemsize).view(dtype)
    if dtype.is_floating_point:
        special = torch.tensor(SPECIAL, dtype=torch.float64).to(dtype)
        moderate = (torch.randn(10, dtype=torch.float64, generator=generator) * 40).to(dtype)
        return torch.cat([special, patterns, moderate])
    limits = torch.iinfo(dtype)
    edges = [limits.min, limits.max, 0, 1, limits.max - 1, limits.max // 2, limits.max // 2 + 1, 255, 127]
    edges += [v for v in (2**24 + 1, 2**24 + 3, 2**53 + 1, 65519, 65520, 2**31 + 129) if v <= limits.max]
    return torch.cat([torch.tensor(edges, dtype=dtype), patterns])


def keep(values: torch.Tensor, to: torch.dtype) -> torch.Tensor:
    """A mask of the values for which torch and rustload define the same result."""
    if values.dtype.is_complex:
        values = torch.view_as_real(values.to(torch.complex128))[:, 0]
    if not (values.dtype.is_floating_point or to in LARGEST):
        return torch.ones(len(values), dtype=torch.bool)
    exact = values.to(torch.float64)
    if to == torch.bool or to.is_complex:
        return torch.ones(len(values), dtype=torch.bool)
    if to in LARGEST:
        return ~(exact.to(torch.float32).abs() > LARGEST[to])
    if not to.is_floating_point:
        limits = torch.iinfo(to)
        return (
            (exact.trunc() >= limits.min) & (exact.trunc() <= float(limits.max)) & (exact.trunc() < 2.0**63)
        )
    return torch.ones(len(values), dtype=torch.bool)


out = bytearray()
for source, source_dtype in enumerate(DTYPES):
    for target, target_dtype in enumerate(DTYPES):
        values = sources(source_dtype)
        values = (
            values.view(torch.uint8)
            .view(len(values), -1)[keep(values, target_dtype)]
            .flatten()
            .view(source_dtype)
        )
        result = values.to(target_dtype)
        out += struct.pack("<BBH", source, target, len(values))
        out += values.view(torch.uint8).numpy().tobytes() + result.view(torch.uint8).numpy().tobytes()

path = pathlib.Path(__file__).with_name("cast_golden.bin")
path.write_bytes(out)
print(path, len(out), "bytes")
