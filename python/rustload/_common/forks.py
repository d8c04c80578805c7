"""Callbacks at forks, where there are forks: Windows has none."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def _no_forks(**_: Callable[[], Any]) -> None:
    """Registers nothing."""


register_at_fork = getattr(os, "register_at_fork", _no_forks)
