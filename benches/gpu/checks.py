"""A comparison, the place of its results, and what came of many of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from . import samples

if TYPE_CHECKING:
    from collections.abc import Iterator

SYNC: dict[str, Any] = {"sync": True}
ASYNC: dict[str, Any] = {"sync": False}
# What is checked, what was found, what is expected, and whether NaNs may differ.
Check: TypeAlias = tuple[str, torch.Tensor, torch.Tensor, bool]


@dataclass
class Outcome:
    """What came of one way of asking.

    Attributes:
        way: How rustload was asked.
        checks: Tensors compared.
        wrong: What differs, or what was raised.
    """

    way: str
    checks: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass
class Place:
    """Where results shall be."""

    device: str

    @property
    def is_cuda(self) -> bool:
        """Whether that is a GPU."""
        return self.device != "cpu"

    @property
    def casts(self) -> tuple[dict[str, Any], ...]:
        """The places of a cast that can be asked for."""
        return tuple({"cast": place} for place in ("auto", "cpu", "gpu")) if self.is_cuda else ({},)


def outcome(way: str, checks: Iterator[Check]) -> Outcome:
    """Counts checks and keeps what is wrong; an exception ends the way and is wrong."""
    found = Outcome(way)
    try:
        for what, got, expected, is_cast in checks:
            found.checks += 1
            if not (samples.is_same_number if is_cast else samples.is_same)(got, expected):
                found.wrong.append(what)
            del got
    except Exception as error:  # noqa: BLE001 - it belongs into the report, and the other ways go on
        found.wrong.append(f"{type(error).__name__} after {found.checks} checks: {error}")
    return found


def placed(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """The tensor, which must be where it was asked for."""
    assert tensor.device.type == torch.device(place.device).type, f"a result on {tensor.device}"
    return tensor
