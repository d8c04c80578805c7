"""The arguments of `rustload diff`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_diff"]

P = TypeVar("P", bound=argparse.ArgumentParser)

EPILOG = """\
exit codes:
  0    the same: names, dtypes and shapes, and with --data all elements
  1    different
  2    wrong usage
  3    something could not be read, or the output could not be written
"""


def add_diff(commands: argparse._SubParsersAction[P], formatter: Callable[..., argparse.HelpFormatter]) -> P:
    """Adds the command."""
    diff = commands.add_parser(
        "diff",
        help="compare two checkpoints of any formats",
        description="Compares the tensors of two checkpoints, whatever their formats and however\n"
        "they are divided among files. Reads metadata only, unless --data is given, and\n"
        "imports neither torch nor NumPy.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    add = diff.add_argument
    add("a", metavar="A", help="a file, a directory of shards, or an index file")
    add("b", metavar="B", help="another one")
    repeated: Any = {"action": "append", "default": []}
    add("--data", action="store_true", help="compare every element, by its bytes")
    add(
        "--atol",
        type=_tolerance,
        default=0.0,
        metavar="X",
        help="elements that differ by at most X are close",
    )
    add(
        "--rtol", type=_tolerance, default=0.0, metavar="X", help="the same, in proportion to the number in B"
    )
    add("--cast", action="store_true", help="two dtypes are no difference if elements are equal after a cast")
    add("--dequantize", action="store_true", help="compare quantized tensors as the numbers they stand for")
    add("--select", metavar="P", help="only names that match P; may be repeated", **repeated)
    add("--key", metavar="K", help="the key under which the tensors of A are nested")
    add("--strip", metavar="PREFIX", help="remove this prefix from names of A", **repeated)
    add("--rename", metavar="OLD=NEW", type=_rename, help="rename a tensor or prefix of A", **repeated)
    add(
        "--json",
        action="store_true",
        help="print everything as one JSON document (see docs/reference/cli.md)",
    )
    return diff


def _tolerance(text: str) -> float:
    """A number from 0 on."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"a number from 0 on, not {text!r}")
    return number


def _rename(text: str) -> tuple[str, str | None]:
    """`OLD=NEW`; without NEW, the tensors are left out."""
    old, equals, new = text.partition("=")
    if not (old and equals):
        raise argparse.ArgumentTypeError(f"OLD=NEW, not {text!r}")
    return old, new or None
