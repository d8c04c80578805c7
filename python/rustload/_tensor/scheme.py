"""What a quantized weight is decoded from."""

from __future__ import annotations

from typing import NamedTuple


class Scheme(NamedTuple):
    """What a quantized weight is decoded from, in a checkpoint that was opened with `dequantize=True`.

    Attributes:
        name: The scheme: `"fp8"`, `"int4"`, `"nvfp4"`, `"mxfp4"`, `"gptq"`, `"awq"`, `"bnb-nf4"` and the like.
        bits: The bits of a code.
        stored: The names of the tensors that it is made of: the codes first.
        stored_nbytes: Their bytes.
    """

    name: str
    bits: int
    stored: tuple[str, ...]
    stored_nbytes: int
