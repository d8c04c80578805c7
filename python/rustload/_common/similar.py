"""The note `did you mean: ...` for names that do not exist. The search is in the core and has a bounded cost."""

from __future__ import annotations

from rustload import _rustload
from rustload.errors import _shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


def similar(name: str, names: Iterable[object], count: int = 3) -> list[str]:
    """The names that are most similar to `name`, the best match first."""
    return _rustload.similar(name.encode(errors="replace").decode(), names, count)


def did_you_mean(found: Iterable[str]) -> str | None:
    """The text of the note; None without names."""
    names = ", ".join(dict.fromkeys(map(_shown, found)))
    return f"did you mean: {names}" if names else None
