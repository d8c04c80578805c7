"""What is thought of a file or of one thing in it."""

from __future__ import annotations

from typing import Literal, TypeAlias

__all__ = ["ORDER", "Verdict"]

Verdict: TypeAlias = Literal["inert", "unknown", "would execute"]

ORDER: dict[str, int] = {"inert": 0, "unknown": 1, "would execute": 2}
"""The worse, the higher."""
