"""`describe`: what a checkpoint holds, as the document that `rustload info --json` prints."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Any

from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._tensor.handle import LazyTensor

__all__ = ["TEXT_SHOWN_MAX_CHARS", "describe", "short_text"]

# The most characters to show of a str.
TEXT_SHOWN_MAX_CHARS = 60

SCALARS = (type(None), bool, int, float, complex, str)
CONTAINERS = (dict, list, tuple, set, frozenset, deque, bytes, bytearray)


def describe(
    checkpoint: Checkpoint,
    path: str,
    chosen: Mapping[str, LazyTensor] | None = None,
    pattern: str | None = None,
) -> dict[str, Any]:
    """The entry of a checkpoint in the JSON document of `rustload info`; reads no tensor data.

    Args:
        checkpoint: The checkpoint.
        path: Its path, without secrets.
        chosen: The tensors to count and list; None for all.
        pattern: The pattern that chose them; None for all.
    """
    chosen = checkpoint if chosen is None else chosen
    described = []
    dtypes: dict[str, dict[str, int]] = {}
    identities: set[object] = set()
    elements = nbytes = 0
    for name, tensor in chosen.items():
        core = tensor._core
        identity = (core.storage, core.offset, core.dtype, core.shape, core.strides)
        repeats = identity in identities and core.size > 0
        identities.add(identity)
        entry = {
            "name": name,
            "dtype": core.dtype,
            "shape": list(core.shape),
            "strides": list(core.strides),
            "nbytes": core.nbytes,
            "storage": list(core.storage),
            "storage_offset": core.offset,
            "contiguous": core.is_contiguous,
            "parameter": core.is_parameter,
            "repeats": repeats,
        }
        described.append(entry)
        if not repeats:
            seen = dtypes.setdefault(core.dtype, {"tensors": 0, "nbytes": 0})
            seen["tensors"] += 1
            seen["nbytes"] += core.nbytes
            elements += core.size
            nbytes += core.nbytes
    values, notes = _values(checkpoint)
    notes += _unknown_schemes(chosen)
    by_size = sorted(dtypes.items(), key=lambda item: -item[1]["nbytes"])
    return {
        "path": path,
        "format": checkpoint.format,
        "files": checkpoint.files,
        "elements": elements,
        "nbytes": nbytes,
        "storage_nbytes": checkpoint.nbytes,
        **({} if pattern is None else {"filter": pattern, "tensors_in_all": len(checkpoint)}),
        "dtypes": [{"dtype": dtype, **seen} for dtype, seen in by_size],
        "tied": [group for group in checkpoint.tied if any(name in chosen for name in group)],
        "values": values,
        "opaque": [found._asdict() for found in checkpoint.opaque],
        "globals": checkpoint.globals,
        "notes": checkpoint.notes + notes,
        "metadata": checkpoint.metadata,
        "tensors": described,
    }


def _unknown_schemes(chosen: Mapping[str, LazyTensor]) -> list[str]:
    """A note on quantized weights that `dequantize=True` refuses."""
    unknown = [name for name, tensor in chosen.items() if tensor._core.has_unknown_scheme]
    if not unknown:
        return []
    text = f"{len(unknown):,} tensor(s) are codes of a quantization that is not known, such as {unknown[0]!r}"
    return [f"{text}: dequantize=True is an error for them"]


def _values(checkpoint: Checkpoint) -> tuple[list[dict[str, Any]], list[str]]:
    """The plain values and containers at the top level of the pickles, and a note if they are not available."""
    if checkpoint.format == "safetensors":
        return [], []
    try:
        roots = checkpoint._core.objects(lambda _tensor: NotImplemented)
    except RustloadError as error:
        return [], [f"the values are not shown: {error}"]
    values = []
    pairs = (pair for root in roots if isinstance(root, dict) for pair in root.items())
    for key, value in pairs:
        entry = {"name": key if isinstance(key, str) else short_text(key), "type": type(value).__name__}
        if type(value) in SCALARS:
            values.append({**entry, "value": value if _is_json(value) else short_text(value)})
        elif isinstance(value, CONTAINERS):
            values.append({**entry, "length": len(value)})
    return values, []


def _is_json(value: Any) -> bool:
    """Whether JSON can represent the value so that other programs can read it: no inf, nan, complex or ints beyond 64 bits."""
    if isinstance(value, int):
        return value.bit_length() <= 64
    return math.isfinite(value) if isinstance(value, float) else not isinstance(value, complex)


def short_text(value: Any) -> str:
    """A scalar as short text; only the type of other values, whose contents may be large."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"int of {value.bit_length():,} bits"
    if isinstance(value, str):
        return repr(value[:TEXT_SHOWN_MAX_CHARS]) + ("..." if len(value) > TEXT_SHOWN_MAX_CHARS else "")
    return repr(value) if type(value) in SCALARS else f"<{type(value).__name__}>"
