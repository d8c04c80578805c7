"""What the files beside a checkpoint say of its dtype and quantization: after a conversion, they say what was written."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from rustload._common.files import head_of
from rustload._common.rules import DEFAULT_CAST_DTYPES

if TYPE_CHECKING:
    from collections.abc import Mapping

_CONFIG = "config.json"

_SIDECARS = ("hf_quant_config.json", "quantize_config.json")
"""Files that describe a quantization and nothing else."""

_KEYS = ("quantization_config", "compression_config", "quantization", "expert_dtype")
"""The keys of `config.json`, and of the configurations in it, that describe a quantization."""

_CONFIG_MAX_BYTES = 16 << 20
"""A longer one is none."""

Edit: TypeAlias = tuple[str, str, bytes]
"""A file of a folder that is rewritten: its path in it, its new text, and its content before."""


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
        content = head_of(source, _CONFIG_MAX_BYTES + 1) if name == _CONFIG else b""
        text, changes = _changed(content, dtypes.get(folder), dequantized=dequantized)
        if changes:
            others.texts.append((path, text))
            others.changed.append(f"{path} {changes}")
        else:
            others.copies.append((path, source))
    return others


def edits_in_place(
    root: str, dtypes: Mapping[str, str | None], *, dequantized: bool
) -> tuple[list[Edit], list[str]]:
    """The same for a folder that the weights are written into: its configurations that are rewritten, and what differs.

    Args:
        root: The folder.
        dtypes: As above.
        dequantized: As above. Files that describe nothing else are not removed.
    """
    edits, changed = [], []
    for folder, dtype in dtypes.items():
        path = os.path.join(folder, _CONFIG)
        if os.path.isfile(os.path.join(root, path)):
            content = head_of(os.path.join(root, path), _CONFIG_MAX_BYTES + 1)
            text, changes = _changed(content, dtype, dequantized=dequantized)
            if changes:
                edits.append((path, text, content))
                changed.append(f"{path} {changes}")
        for name in _SIDECARS if dequantized else ():
            path = os.path.join(folder, name)
            if os.path.isfile(os.path.join(root, path)):
                changed.append(f"{path} kept, which describes the quantization: remove it")
    return edits, changed


def _changed(content: bytes, dtype: str | None, *, dequantized: bool) -> tuple[str, str]:
    """The new text of a configuration, and what differs: nothing if it is to stay, or is none."""
    try:
        config = json.loads(content) if len(content) <= _CONFIG_MAX_BYTES else None
    except (ValueError, RecursionError):
        config = None
    changes = _change(config, dtype, dequantized=dequantized) if isinstance(config, dict) else []
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n" if changes else ""), " and ".join(changes)


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
