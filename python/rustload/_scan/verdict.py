"""The verdict on a file or on one finding."""

from __future__ import annotations

from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["inert", "unknown", "would execute"]

ORDER: dict[str, int] = {"inert": 0, "unknown": 1, "would execute": 2}
"""The severity order: a higher number is worse."""
