"""`rustload manifest`: writes the digests of files, which other commands compare their bytes with."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import rustload
from rustload import _rustload
from rustload._cli.arguments import file, size
from rustload._cli.exit_codes import READ_FAILED
from rustload._cli.report import report_error
from rustload._common.paths import is_same_file, refuse_input
from rustload._remote.urls import is_url, local_path, name_of
from rustload.errors import RustloadError

if TYPE_CHECKING:
    import argparse

EPILOG = """\
The manifest is not signed: keep it, or a digest of it, where you trust it.

exit codes:
  0    all files were hashed
  2    wrong usage
  3    a file could not be read, or the manifest could not be written
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Writes the SHA-256 digests of the pieces of a file, or of all files in a\n"
        "folder, as an unsigned statement of OpenSSF model signing. With --manifest,\n"
        "other commands read nothing that differs from it."
    )
    parser.epilog = EPILOG
    add = parser.add_argument
    add("path", metavar="PATH", type=file, help="a file or a folder")
    add(
        "--piece",
        type=size,
        default=8 << 20,
        metavar="SIZE",
        help="the bytes of a piece, such as 1MiB (the default is 8MiB): reading a byte of it reads all of it",
    )
    add("-o", "--output", metavar="FILE", help="write to FILE, not to stdout")
    add("--overwrite", action="store_true", help="replace FILE if it exists")


def run(args: argparse.Namespace) -> int:
    """Writes the manifest and returns the exit code."""
    try:
        if is_url(args.path):
            raise ValueError(f"{name_of(args.path)}: only files on disk are hashed: download it")
        made = rustload.Manifest.of(args.path, piece=args.piece)
        if args.output is not None:
            _check_output(local_path(args.output), args.path, made)
        name = os.fsencode(os.path.basename(os.path.abspath(args.path)))
        text = made.to_json(name.decode(errors="replace"))
        if args.output is not None:
            _rustload.PreparedText(args.output, text, overwrite=args.overwrite, sync=True).commit()
    except (RustloadError, OSError, ValueError) as error:
        report_error(error, args.options)
        return READ_FAILED
    if args.output is None:
        sys.stdout.write(text)
    return 0


def _check_output(output: str, path: str, made: rustload.Manifest) -> None:
    """Takes an earlier manifest, which the new one replaces, off its list; refuses any other file that was hashed."""
    paths = {name: os.path.join(path, name) for name in made.files}
    kept = {name: listed for name, listed in made.files.items() if not is_same_file(output, paths[name])}
    if len(kept) < len(made.files) and _is_manifest(output):
        made._take(kept)
    else:
        refuse_input(output, (path, *paths.values()))


def _is_manifest(path: str) -> bool:
    try:
        rustload.Manifest(path)
    except (RustloadError, ValueError):
        return False
    return True
