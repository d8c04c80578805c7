"""`rustload view`: writes a page that shows a checkpoint, or its treemap as an image."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import rustload
from rustload._cli.exit_codes import READ_FAILED
from rustload._cli.report_error import report_error
from rustload._common.terminal import Page
from rustload.errors import RustloadError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

__all__ = ["run"]


def run(args: argparse.Namespace) -> int:
    """Writes the files, prints their names, and returns the exit code."""
    stats = None if args.stats == "none" else args.stats
    try:
        if args.svg is not None:
            _print(rustload.view(args.path, args.svg, svg=True, overwrite=args.force))
        if args.svg is None or args.output is not None:
            page = rustload.view(args.path, args.output, stats=stats, scan=args.scan, overwrite=args.force)
            _print(page)
            if args.open:
                import webbrowser

                webbrowser.open(page.resolve().as_uri())
    except (RustloadError, OSError, ValueError, MemoryError) as error:
        report_error(error, _as_options)
        return READ_FAILED
    return 0


def _print(written: Path) -> None:
    page = Page(sys.stdout, "never")
    page.line(page.safe(str(written)))
    page.flush()


def _as_options(text: str) -> str:
    return text.replace("overwrite=True", "--force")
