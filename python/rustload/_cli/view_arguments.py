"""The arguments of `rustload view`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_view"]

P = TypeVar("P", bound=argparse.ArgumentParser)

EPILOG = """\
exit codes:
  0    everything was written
  2    wrong usage
  3    something could not be read, or the output could not be written
"""


def add_view(
    commands: argparse._SubParsersAction[P],
    formatter: Callable[..., argparse.HelpFormatter],
    path: Callable[[str], str],
) -> None:
    """Adds the command; `path` checks a path to read."""
    view = commands.add_parser(
        "view",
        help="write a page that shows a checkpoint",
        description="Writes one HTML file that shows what a checkpoint holds: a treemap of bytes,\n"
        "a tree of tensors with a search, dtypes, files, tied weights, values that are\n"
        "no tensors, and the findings of a scan. The page makes no requests.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    add = view.add_argument
    add("path", metavar="PATH", type=path, help="a file, a directory of shards, or an index file")
    add(
        "-o",
        "--output",
        metavar="FILE",
        help="the page (the default is NAME.rustload.html in the working directory)",
    )
    add("--svg", metavar="FILE", help="write the treemap as an image; without -o, no page is written")
    add(
        "--stats",
        choices=("none", "sample", "full"),
        default="none",
        help="read a sample of each tensor, or all, and show statistics and histograms",
    )
    add("--no-scan", dest="scan", action="store_false", help="do not scan the files")
    add("--force", action="store_true", help="replace files that rustload view did not write, too")
    add("--open", action="store_true", help="open the page in the browser")
