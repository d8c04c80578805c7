"""`Statistics`: what the numbers of a tensor are like, and the call that finds it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from rustload import _rustload
from rustload._common.json_values import Signed
from rustload._common.request import Request
from rustload._common.sizes import whole_number
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rustload._common.options import StatsOptions

BINS_MAX = 1 << 16


class ExponentCount(NamedTuple):
    """The finite numbers with magnitudes from 2**`exponent` to below 2**(`exponent` + 1).

    Attributes:
        exponent: The binary exponent.
        negative: How many are negative.
        positive: How many are positive.
    """

    exponent: Signed
    negative: int
    positive: int


class Histogram(NamedTuple):
    """The finite numbers in bins of equal width, as by `numpy.histogram`.

    Attributes:
        min: The lower edge of the first bin.
        max: The upper edge of the last bin, which contains it.
        counts: The numbers in each bin. A bin contains its lower edge.
    """

    min: float
    max: float
    counts: list[int]


class Statistics(NamedTuple):
    """What the numbers of a tensor are like. A complex number counts as two, its real and its imaginary part.

    Attributes:
        total: The numbers that were read; 0 for packed dtypes, which have no numbers.
        nan: Those that are NaN.
        positive_infinity: Those that are infinity.
        negative_infinity: Those that are -infinity.
        zeros: Those that are 0 or -0.
        subnormal: Those whose magnitude is not 0 and below the smallest normal number of their dtype.
        min: The smallest finite number: an int for integers and bools; None if there is none.
        max: The largest finite number, as `min`.
        mean: The mean of the finite numbers; None if there are none, and in JSON if it is beyond float64.
        std: Their standard deviation: the root of the mean squared distance from the mean (`ddof=0`).
        distinct: The number of different bit patterns, for dtypes of at most 16 bits; None for others.
        exponents: The finite numbers but zeros and subnormal ones by their magnitude, from the smallest that there is up.
        histogram: The finite numbers in bins of equal width, if asked for with `bins=` and there are any; else None.
        sampled: Whether only a sample of the elements was read.
    """

    total: int
    nan: int
    positive_infinity: int
    negative_infinity: int
    zeros: int
    subnormal: int
    min: float | int | None
    max: float | int | None
    mean: float | None
    std: float | None
    distinct: int | None
    exponents: list[ExponentCount]
    histogram: Histogram | None
    sampled: bool

    def __repr__(self) -> str:
        """The numbers; of the longer fields, how many there are."""
        shown = self._asdict()
        shown["exponents"] = f"<{len(self.exponents)}>"
        shown["histogram"] = None if self.histogram is None else f"<{len(self.histogram.counts)} bins>"
        return f"Statistics({', '.join(f'{name}={value}' for name, value in shown.items())})"

    @property
    def infinite(self) -> int:
        """The numbers that are infinity or -infinity."""
        return self.positive_infinity + self.negative_infinity

    @property
    def finite(self) -> int:
        """The numbers that are neither NaN nor infinite."""
        return self.total - self.nan - self.infinite


# Of a dtype without numbers.
NOTHING = Statistics(0, 0, 0, 0, 0, 0, None, None, None, None, None, [], None, sampled=False)


def _count(name: str, value: Any, most: int | None = None) -> int | None:
    """The number that an argument is; None for None.

    Raises:
        TypeError: It is not an integer.
        ValueError: It is below 1 or above `most`.
    """
    if value is None:
        return None
    count = whole_number(value)
    if count is None:
        raise _error("Type", f"is an int, not {value!r}", argument=name)
    if count < 1 or (most is not None and count > most):
        upper = f" to {most:,}" if most else " on"
        raise _error("Value", f"is a number from 1{upper}, not {value!r}", argument=name)
    return count


def statistics_of(
    cores: Sequence[_rustload.Tensor | _rustload.Joined], options: StatsOptions
) -> list[Statistics]:
    """The statistics of tensors, in their order."""
    sample, bins = _count("sample", options["sample"]), _count("bins", options["bins"], BINS_MAX)
    request = Request(dequantize=options["dequantize"], threads=options["threads"])
    tensors = list(cores)
    found = _rustload.statistics(tensors, request, bins=bins, sample=sample, threads=request.threads)
    return [
        NOTHING if one is None else _made(one, sampled=one["total"] < _numbers(core))
        for core, one in zip(tensors, found, strict=True)
    ]


def _numbers(core: _rustload.Tensor | _rustload.Joined) -> int:
    return math.prod(core.shape) * (2 if core.dtype.startswith("complex") else 1)


def _made(found: dict[str, Any], *, sampled: bool) -> Statistics:
    histogram = found["histogram"]
    return Statistics(
        **found
        | {
            "exponents": [ExponentCount(*count) for count in found["exponents"]],
            "histogram": None if histogram is None else Histogram(*histogram),
            "sampled": sampled,
        }
    )
