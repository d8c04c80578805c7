"""What the files beside a checkpoint say of its dtype and quantization: after a conversion, they say what was written."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from rustload._common.rules import DEFAULT_CAST_DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Others", "converted_others"]

_CONFIG = "config.json"

_SIDECARS = ("hf_quant_config.json", "quantize_config.json")
"""Files that describe a quantization and nothing else."""

_KEYS = ("quantization_config", "compression_config", "quantization", "expert_dtype")
"""The keys of `config.json`, and of the configurations in it, that describe a quantization."""

_CONFIG_MAX_BYTES = 16 << 20


class Others(NamedTuple):
    """The other files of a folder.

    Attributes:
        copies: Those that are copied: their paths in the folder, and their paths or objects.
        texts: Those that are written anew: their paths in the folder, and their texts.
        changed: What differs from the source, a text for each file.
    """

    copies: list[tuple[str, Any]]
    texts: list[tuple[str, str]]
    changed: list[str]


def converted_others(
    copies: list[tuple[str, Any]], dtypes: Mapping[str, str | None], *, dequantized: bool
) -> Others:
    """The other files of a folder whose weights were converted.

    Args:
        copies: The files.
        dtypes: The dtype of most floats that are written into a folder, by its path; None without floats.
        dequantized: Whether weights were dequantized.
    """
    others = Others([], [], [])
    for path, source in copies:
        folder, name = os.path.split(path)
        if dequantized and name in _SIDECARS:
            others.changed.append(f"{path} left out")
            continue
        config = _read(source) if name == _CONFIG else None
        changes = [] if config is None else _change(config, dtypes.get(folder), dequantized=dequantized)
        if changes:
            others.texts.append((path, json.dumps(config, indent=2, ensure_ascii=False) + "\n"))
            others.changed.append(f"{path} {' and '.join(changes)}")
        else:
            others.copies.append((path, source))
    return others


def _read(source: Any) -> dict[str, Any] | None:
    """The configuration at a path or in an object; None if it is none."""
    if isinstance(source, str):
        with open(source, "rb") as file:
            content = file.read(_CONFIG_MAX_BYTES + 1)
    else:
        content = bytes(source.read_ranges([(0, min(source.size, _CONFIG_MAX_BYTES + 1))])[0])
    try:
        found = json.loads(content) if len(content) <= _CONFIG_MAX_BYTES else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _change(config: dict[str, Any], dtype: str | None, *, dequantized: bool) -> list[str]:
    """Takes out what describes a quantization, and corrects the dtype. Returns what was changed."""
    removed: set[str] = set()
    corrected = False
    parts = [config]
    while parts:
        part = parts.pop()
        for key in _KEYS if dequantized else ():
            if key in part:
                del part[key]
                removed.add(key)
        for key in ("torch_dtype", "dtype") if dtype is not None else ():
            stated = part.get(key)
            if isinstance(stated, str) and stated != dtype and stated in DEFAULT_CAST_DTYPES:
                part[key] = dtype
                corrected = True
        parts += [value for key, value in part.items() if key.endswith("_config") and isinstance(value, dict)]
    without = [f"without {', '.join(sorted(removed))}"] if removed else []
    return without + [f"with dtype {dtype}"] * corrected
