"""`dtype=` and `transpose=`, which may be one value, a mapping from glob patterns, or a callable."""

from __future__ import annotations

from collections.abc import Mapping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rustload._common.rules import TensorInfo


def value_for(value: Any, tensor: TensorInfo) -> Any:
    """Resolves an argument for one tensor: the value itself, a callable's result, or the value of the first matching pattern."""
    if isinstance(value, Mapping):
        from rustload._common.patterns import matches

        return next((found for pattern, found in value.items() if matches(tensor.name, pattern)), None)
    # A class is a NumPy scalar type here, not a rule to call.
    if callable(value) and not isinstance(value, type):
        return value(tensor)
    return value
