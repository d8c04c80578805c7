"""`rustload view`: writes a page that shows a checkpoint, or its treemap as an image."""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING

import rustload
from rustload._cli.arguments import SOURCE, file
from rustload._cli.exit_codes import READ_FAILED
from rustload._cli.report import report_error
from rustload._common.terminal import Page
from rustload.errors import RustloadError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

EPILOG = """\
exit codes:
  0    everything was written
  2    wrong usage
  3    something could not be read, or the output could not be written
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Writes one HTML file that shows what a checkpoint holds: a treemap of bytes,\n"
        "a tree of tensors with a search, dtypes, files, tied weights, values that are\n"
        "no tensors, and the findings of a scan. The page makes no requests."
    )
    parser.epilog = EPILOG
    add = parser.add_argument
    add("path", metavar="PATH", type=file, help=SOURCE)
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
    add("--dequantize", action="store_true", help="show the weights that quantized tensors stand for")
    add("--no-scan", dest="scan", action="store_false", help="do not scan the files")
    add(
        "--force",
        dest="overwrite",
        action="store_true",
        help="replace files that rustload view did not write, too",
    )
    add("--open", action="store_true", help="open the page in the browser")


def run(args: argparse.Namespace) -> int:
    """Writes the files, prints their names, and returns the exit code."""
    named = [one for one in (args.svg, args.output) if one is not None]
    if len({os.path.realpath(one) for one in named}) < len(named):
        args.refuse(f"--svg and --output name one file: {args.svg}")
    stats = None if args.stats == "none" else args.stats
    view = functools.partial(
        rustload.view,
        args.path,
        dequantize=args.dequantize,
        manifest=args.manifest,
        overwrite=args.overwrite,
    )
    has_page = args.svg is None or args.output is not None
    written: list[Path] = []
    code = 0
    try:
        if args.svg is not None:
            written.append(view(args.svg, svg=True))
        if has_page:
            written.append(view(args.output, stats=stats, scan=args.scan))
    except (RustloadError, OSError, ValueError, MemoryError) as error:
        report_error(error, args.options)
        code = READ_FAILED
    page = Page(sys.stdout, "never")
    for path in written:
        page.line(page.safe(str(path)))
    page.flush()
    if args.open and has_page and not code:
        import webbrowser

        webbrowser.open(written[-1].resolve().as_uri())
    return code
