"""`rustload verify`: compares files with a manifest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rustload._cli.arguments import add_color, file
from rustload._cli.exit_codes import GATE_FAILED, USAGE
from rustload._cli.report import report_error
from rustload._common.manifest import manifest_of
from rustload._common.terminal import Page, count
from rustload._remote.resolve import remote_source
from rustload.errors import RustloadError

if TYPE_CHECKING:
    import argparse

EPILOG = """\
exit codes:
  0    all listed files are as listed
  1    a file differs or is missing; or PATH is a file that is not listed
  2    nobody can tell: wrong usage, a manifest that is not valid, or a file that
       cannot be read
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Reads a file, or all listed files of a folder, and compares them with a\n"
        "manifest: one of rustload manifest, a statement of model signing, or the lines\n"
        "of sha256sum. Signatures are not verified."
    )
    parser.epilog = EPILOG
    parser.add_argument(
        "path",
        metavar="PATH",
        type=file,
        help="a file or a folder, or the URL of one (of a folder, with / at its end)",
    )
    parser.add_argument(
        "--manifest",
        metavar="FILE",
        required=True,
        help="the manifest; hf for what the Hub or its cache states",
    )
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Compares the files and returns the exit code."""
    try:
        source = remote_source(args.path)
        manifest = manifest_of(args.manifest, source)
        compared = manifest._compared(source)
        unlisted = manifest.unlisted(source) if isinstance(source, str) else []
    except (RustloadError, OSError, ValueError) as error:
        report_error(error, args.options)
        return GATE_FAILED if getattr(error, "code", None) == "ManifestMissing" else USAGE
    page = Page(sys.stdout, args.color)
    faults = [fault for fault in compared.values() if fault]
    for fault in faults:
        name = page.safe(fault.file)
        match fault.what:
            case "missing":
                page.line(f"{name}: missing")
            case "size":
                page.line(f"{name}: has another size")
            case "differs":
                page.line(f"{name}: differs somewhere in bytes {fault.offset} to {fault.end}")
    if unlisted:
        page.line(f"not listed: {', '.join(map(page.safe, unlisted))}")
    if not faults:
        page.line(f"{count(len(compared), 'listed file')}: no difference")
    page.flush()
    return GATE_FAILED if faults else 0
