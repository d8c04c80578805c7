"""The argument `cast=`: who casts for a result on a GPU."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from rustload.errors import _make

__all__ = ["Cast", "checked_cast"]

Cast: TypeAlias = Literal["auto", "cpu", "gpu"]


def checked_cast(cast: Any) -> Cast:
    """The argument, if it is one of the three.

    Raises:
        ValueError: It is not.
    """
    if cast not in ("auto", "cpu", "gpu"):
        raise _make("Value", "Value", f"cast= is 'auto', 'cpu' or 'gpu', not {cast!r}")
    return cast  # type: ignore[no-any-return]
