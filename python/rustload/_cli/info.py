"""`rustload info`: describes a checkpoint, as text or JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypedDict

import rustload
from rustload._cli.arguments import (
    EPILOG,
    SOURCE,
    add_color,
    add_json,
    add_paths,
    dtype,
    number,
)
from rustload._cli.exit_codes import READ_FAILED
from rustload._cli.report import Failed, print_document, report_error, selected
from rustload._common.terminal import Page
from rustload._describe.describe import Described, describe
from rustload._describe.needed import needed
from rustload._describe.scanned import scanned
from rustload._describe.text import View, show
from rustload._remote.urls import shown_path
from rustload.errors import RustloadError

if TYPE_CHECKING:
    import argparse


class Document(TypedDict):
    """What checkpoints hold.

    Attributes:
        checkpoints: One for each path, in their order.
    """

    checkpoints: list[Described | Failed]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Shows what checkpoints hold: format, sizes, dtypes, and the tree of names with\n"
        "repeated layers folded. Reads metadata only, never the tensors, and imports\n"
        "neither torch nor NumPy."
    )
    parser.epilog = EPILOG
    add_paths(parser, SOURCE)
    add = parser.add_argument
    add("--tensors", action="store_true", help="list every tensor, one per line, in place of the tree")
    add(
        "--filter",
        dest="pattern",
        metavar="PATTERN",
        help="only tensors whose names match: * is any characters, dots too, {0..7} a number of these",
    )
    add(
        "--dtype",
        type=dtype,
        metavar="DTYPE",
        help="say how much memory all tensors take as DTYPE, and whether this process may take as much",
    )
    add("--depth", metavar="N", type=number, help="show at most N levels of the tree")
    add(
        "--sort",
        choices=("file", "name", "size"),
        default="file",
        help="the order of tensors and of rows in the tree (the default is file)",
    )
    formats = parser.add_mutually_exclusive_group()
    add_json(formats)
    formats.add_argument(
        "--cyclonedx",
        action="store_true",
        help="print a CycloneDX bill of materials with the models",
    )
    add("--hashes", action="store_true", help="with --cyclonedx: read the files, and give their SHA-256")
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Shows each path and returns the exit code."""
    if args.hashes and not args.cyclonedx:
        args.refuse("--hashes needs --cyclonedx")
    if args.cyclonedx and args.pattern is not None:
        args.refuse("--cyclonedx takes no --filter: a bill of materials has everything")
    if args.cyclonedx and args.manifest is not None:
        args.refuse("--cyclonedx takes no --manifest: it reads the files itself")
    if args.cyclonedx:
        from rustload._cli import cyclonedx

        return cyclonedx.run(args.paths, hashes=args.hashes)
    found: list[Described | Failed] = []
    code = 0
    page = Page(sys.stdout, args.color)
    view = View(args.tensors, args.pattern, args.depth, args.sort)
    for position, given in enumerate(args.paths):
        path = shown_path(given)
        try:
            with rustload.open(given, manifest=args.manifest) as checkpoint:
                patterns = [] if view.pattern is None else [view.pattern]
                chosen = selected(checkpoint, patterns, args.options, path)
                described = describe(checkpoint, path, chosen, view.pattern)
                if args.dtype is not None:
                    described["memory"] = needed(chosen.values(), args.dtype)
                if seen := scanned(checkpoint, args.manifest):
                    described["scan"] = seen
        except (RustloadError, OSError, ValueError, MemoryError) as error:
            code = READ_FAILED
            found.append({"path": path, "error": report_error(error, args.options)})
            continue
        found.append(described)
        if not args.json:
            if position:
                page.line()
            show(page, described, view)
            page.flush()
    if args.json:
        print_document(Document(checkpoints=found))
    return code
