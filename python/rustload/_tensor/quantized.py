"""What is left of a checkpoint's tensors when quantized weights are dequantized."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustload._tensor.handle import LazyTensor


def without_companions(tensors: Mapping[str, LazyTensor]) -> dict[str, LazyTensor]:
    """The tensors without the scales, and what else belongs to quantized weights, of those that are dequantized.

    Raises:
        UnsupportedError: A tensor is in a scheme that is not known (code `QuantUnknown`).
    """
    codes = set()
    for tensor in tensors.values():
        if tensor._is_scaled():
            tensor._core.check_scheme()
            codes.add(tensor.name)
    companions = {name for name, tensor in tensors.items() if tensor._core.companion_of in codes}
    return {name: tensor for name, tensor in tensors.items() if name not in companions}
