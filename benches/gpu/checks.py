"""A comparison, the device of its results, and a summary of many comparisons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from . import samples

if TYPE_CHECKING:
    from collections.abc import Iterator

SYNC: dict[str, Any] = {"sync": True}
ASYNC: dict[str, Any] = {"sync": False}
# The name of the check, the actual value, the expected value, and whether NaN payloads may differ.
Check: TypeAlias = tuple[str, torch.Tensor, torch.Tensor, bool]


@dataclass
class Outcome:
    """The result of one API call under test.

    Attributes:
        way: The API call.
        checks: Tensors compared.
        wrong: The differences, or the exception.
    """

    way: str
    checks: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass
class Place:
    """The device where results must be."""

    device: str

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU."""
        return self.device != "cpu"

    @property
    def casts(self) -> tuple[dict[str, Any], ...]:
        """The values of `cast=` that can be requested."""
        return tuple({"cast": place} for place in ("auto", "cpu", "gpu")) if self.is_cuda else ({},)


def outcome(way: str, checks: Iterator[Check]) -> Outcome:
    """Counts checks and keeps the failures; an exception ends the checks and is a failure."""
    found = Outcome(way)
    try:
        for what, got, expected, is_cast in checks:
            found.checks += 1
            if not (samples.is_same_number if is_cast else samples.is_same)(got, expected):
                found.wrong.append(what)
            del got
    except Exception as error:  # noqa: BLE001 - it is reported, and the other calls are still checked
        found.wrong.append(f"{type(error).__name__} after {found.checks} checks: {error}")
    return found


def placed(tensor: torch.Tensor, place: Place) -> torch.Tensor:
    """The tensor, after checking that it is on the requested device."""
    assert tensor.device.type == torch.device(place.device).type, f"a result on {tensor.device}"
    return tensor
