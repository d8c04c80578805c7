"""`did you mean: ...`, said in one way wherever a name is not there; the search is the core's, and bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rustload import _rustload

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean", "similar"]


def similar(name: str, names: Iterable[object], count: int = 3) -> list[str]:
    """The names that may have been meant, the likest first."""
    return _rustload.similar(name.encode(errors="replace").decode(), names, count)


def did_you_mean(found: Iterable[str]) -> str | None:
    """The words around names that may have been meant; None where there are none."""
    names = ", ".join(dict.fromkeys(found))
    return f"did you mean: {names}" if names else None
