"""Checkpoints of every published quantized scheme with what they mean: `CASES`, by name a function that makes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quantized_codes import CODE_CASES
from quantized_floats import FLOAT_CASES
from quantized_ints import INT_CASES

if TYPE_CHECKING:
    from collections.abc import Callable

    from quantized_case import Case, Tensors

CASES: dict[str, Callable[[], Case]] = {**FLOAT_CASES, **INT_CASES, **CODE_CASES}


def logical(found: Case) -> Tensors:
    """What a reader that dequantizes shows."""
    return {**found.weights, **found.plain}
