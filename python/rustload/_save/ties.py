"""Names of one and the same tensor: which of them are written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from rustload import _rustload
from rustload._common.patterns import matches
from rustload._common.request import Request
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rustload._save.arrays import Values

__all__ = ["Ties", "dropped_names"]

Ties: TypeAlias = Literal["copy", "drop", "error"]


def dropped_names(
    items: dict[str, Any], values: dict[str, Values], ties: Ties, keep: Iterable[str]
) -> dict[str, str]:
    """The names that are left out, each with the name that is written for it.

    Raises:
        ValueError: Names are tied, and `ties` is "error".
    """
    if ties == "copy":
        return {}
    groups: dict[Any, list[str]] = {}
    aliases = _lazy_aliases(values)
    for name, value in items.items():
        groups.setdefault(aliases.get(name) or _identity(value), []).append(name)
    tied = [names for names in groups.values() if len(names) > 1]
    if ties == "error" and tied:
        listed = "; ".join(" = ".join(map(repr, names[:4])) for names in tied[:4])
        more = f" and {len(tied) - 4} more" if len(tied) > 4 else ""
        raise _make("Value", "TiedTensors", f"these names have one tensor: {listed}{more}")
    patterns = [keep] if isinstance(keep, str) else list(keep)
    dropped: dict[str, str] = {}
    for names in tied:
        preferred = [name for name in names if any(matches(name, pattern) for pattern in patterns)]
        kept = (preferred or names)[0]
        dropped |= dict.fromkeys((name for name in names if name != kept), kept)
    return dropped


def _lazy_aliases(values: dict[str, Values]) -> dict[str, str]:
    """For each lazy tensor of a checkpoint, the first name of the same tensor."""
    names = [name for name, value in values.items() if isinstance(value, _rustload.Tensor)]
    cores = [values[name] for name in names]
    steps = _rustload.steps(cores, [Request()], [0] * len(cores), by_file=False)  # type: ignore[arg-type]
    return {names[index]: names[first] for index, first, _ in steps}


def _identity(value: Any) -> Any:
    """Equal for arrays that are one and the same: the same elements of the same memory, of the same dtype."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor) and value.layout == torch.strided:
        if value.numel() == 0 or value.device.type == "meta":
            return id(value)
        place = (str(value.device), value.data_ptr(), tuple(value.shape), value.stride())
        return (*place, value.dtype, value.is_conj(), value.is_neg())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray) and value.size:
        return ("numpy", value.ctypes.data, value.shape, value.strides, value.dtype.str)
    return id(value)
