"""The data of the page: what the core says of a checkpoint and of a scan, in columns, and what only the package knows."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._describe.describe import value_text
from rustload._scan.report import ScanReport
from rustload.errors import _clipped, _printable

if TYPE_CHECKING:
    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._common.request import Request
    from rustload._describe.describe import ContainerValue, Described, PlainValue

LABEL_CHARS_MAX = 400
"""The most characters of a name."""
TEXT_CHARS_MAX = 2000
"""The most characters of a text, such as a value."""
ITEMS_MAX = 2000
"""The most items of a list; the page says how many are left out."""


def document(
    checkpoint: Checkpoint,
    described: Described,
    scanned: ScanReport | str | None = None,
    request: Request | None = None,
    *,
    sample: bool = False,
) -> dict[str, Any]:
    """The data of the page.

    Args:
        checkpoint: The checkpoint.
        described: What `describe` returned of it.
        scanned: The report of a scan; a text that says why not; None if none was requested.
        request: The conversion before statistics; None for no statistics.
        sample: Whether to read about 65,536 elements of each tensor, instead of all.
    """
    report = scanned.to_json() if isinstance(scanned, ScanReport) else None
    data: dict[str, Any] = json.loads(_rustload.document(checkpoint._core, report, request, sample=sample))
    if isinstance(scanned, str):
        data["scan"] = {"verdict": "unknown", "error": _text(scanned), "files": []}
    return data | {
        "name": _text(os.path.basename(described["path"].rstrip("/")) or described["path"]),
        "files": [
            {"name": _text(os.path.basename(path)), "size": _size(path)} for path in described["files"]
        ],
        "values": _items([_value(found) for found in described["values"]]),
        "notes": _items([_text(note) for note in described["notes"]]),
    }


def _text(text: str, most: int = TEXT_CHARS_MAX) -> str:
    """A text from a file: printable, without its middle if it is long."""
    return _printable(_clipped(text, most))


def _items(items: list[Any]) -> dict[str, Any]:
    """A list for the page, cut, with the number of all its items."""
    return {"count": len(items), "items": items[:ITEMS_MAX]}


def _size(path: str) -> int | None:
    """The size of a file; None for one that is not on disk."""
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return None


def _value(found: PlainValue | ContainerValue) -> list[str]:
    """Name, type and text of a value beside the tensors."""
    if "length" in found:
        text = f"{found['length']:,} {'item' if found['length'] == 1 else 'items'}"
    else:
        text = value_text(found)
    return [_text(found["name"], LABEL_CHARS_MAX), found["type"], _text(text)]
