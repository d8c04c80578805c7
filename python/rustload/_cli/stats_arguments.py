"""The arguments of `rustload stats`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_stats"]

P = TypeVar("P", bound=argparse.ArgumentParser)

EPILOG = """\
exit codes:
  0    everything was read, and nothing has what --fail-on names
  1    a tensor has what --fail-on names: nan, inf, or only zeros (zero)
  2    wrong usage
  3    something could not be read (the rest is shown all the same), or the
       output could not be written
"""


def add_stats(commands: argparse._SubParsersAction[P], formatter: Callable[..., argparse.HelpFormatter]) -> P:
    """Adds the command."""
    stats = commands.add_parser(
        "stats",
        help="show what the numbers of tensors are like",
        description="Reads tensors and shows what their numbers are like: extremes, mean, standard\n"
        "deviation, zeros, NaN and infinities. Reads a few MiB at a time, and imports\n"
        "neither torch nor NumPy.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    add = stats.add_argument
    add("paths", nargs="+", metavar="PATH", help="a file, a directory of shards, or an index file")
    add(
        "--select",
        metavar="P",
        action="append",
        default=[],
        help="only tensors whose names match: * stands for any characters, dots too; may be repeated",
    )
    add("--sample", metavar="N", type=_number, help="read about N elements of each tensor, not all")
    add(
        "--bins",
        metavar="N",
        type=_bins,
        help="count the numbers in N bins from the smallest to the largest one, too",
    )
    add("--dequantize", action="store_true", help="look at the dequantized numbers of quantized tensors")
    add(
        "--fail-on",
        metavar="WHAT",
        type=_faults,
        default=(),
        help="exit with 1 if a tensor has this: nan, inf, zero (nothing else), or several with commas",
    )
    add(
        "--json",
        action="store_true",
        help="print everything as one JSON document (see docs/reference/cli.md)",
    )
    return stats


def _number(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit()) or int(text[:18]) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on, not {text!r}")
    return int(text[:18])


def _bins(text: str) -> int:
    bins = _number(text)
    if bins > 1 << 16:
        raise argparse.ArgumentTypeError(f"at most 65,536 bins, not {text}")
    return bins


def _faults(text: str) -> tuple[str, ...]:
    faults = tuple(text.split(","))
    for fault in faults:
        if fault not in ("nan", "inf", "zero"):
            raise argparse.ArgumentTypeError(f"nan, inf or zero, not {fault!r}")
    return faults
