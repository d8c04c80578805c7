"""`rustload convert`: writes a checkpoint as safetensors files."""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import rustload
from rustload._cli.arguments import REPEATED, add_json, dtype, file, keywords, pair, rename, size
from rustload._cli.exit_codes import READ_FAILED, USAGE, VERIFY_FAILED
from rustload._cli.report import Error, print_document, report_error, report_warnings
from rustload._common.rules import PlainWithPatterns
from rustload._common.terminal import Page, print_messages
from rustload._describe.scanned import scanned
from rustload._describe.text import scan_text
from rustload._remote.hub import is_offline
from rustload._remote.urls import is_url
from rustload.errors import RustloadError

if TYPE_CHECKING:
    from collections.abc import Sequence

EPILOG = """\
Without DST, a file is written beside SRC with its name, and the files of a
folder are written into it. DST is a folder unless it ends with .safetensors.

exit codes:
  0    everything was written
  2    wrong usage
  3    something could not be read or written; nothing is left of it, except
       for --resume
  4    what was read back is not what was written (--verify)
"""


_CONVERT = rustload.convert
"""The function whose keywords are options."""


class Document(TypedDict):
    """What was written: `report`, or `error` if it failed.

    Attributes:
        report: What was written.
        error: Why nothing was.
    """

    report: NotRequired[rustload.SaveReport]
    error: NotRequired[Error]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Writes a checkpoint of any format as safetensors: a file, or a folder of\n"
        "transformers, diffusers or PEFT. Runs nothing that it names, and imports\n"
        "neither torch nor NumPy. The target appears when it is complete."
    )
    parser.epilog = EPILOG
    add = parser.add_argument
    add("src", metavar="SRC", type=file, help="a file, a folder, an index file, or a URL")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("dst", nargs="?", metavar="DST", help="a file or a folder")
    target.add_argument("-o", "--output", metavar="DST", help="the same")
    add(
        "--dtype",
        type=_dtype,
        metavar="[P=]D",
        help="cast all floats, or names that match P, to D; may be repeated",
        **REPEATED,
    )
    add(
        "--transpose",
        metavar="P",
        help="swap the last two dimensions of names that match P; may be repeated",
        **REPEATED,
    )
    add(
        "--fingerprint",
        choices=("structure", "data"),
        help="record a digest of SRC in the header: of names, dtypes and shapes, or of the elements too",
    )
    add("--allow-lossy", action="store_true", help="allow casts such as float to int")
    add("--dequantize", action="store_true", help="write the weights that quantized tensors stand for")
    add("--select", metavar="P", help="only names that match P, as in SRC; may be repeated", **REPEATED)
    add("--key", metavar="K", help="only tensors under this key, without it in their names")
    add("--strip", metavar="PREFIX", help="remove this prefix from names; may be repeated", **REPEATED)
    add(
        "--rename",
        type=rename,
        metavar="OLD=NEW",
        help="rename a name or prefix; OLD= leaves it out; may be repeated",
        **REPEATED,
    )
    add(
        "--max-shard-size",
        type=size,
        metavar="SIZE",
        help="divide the tensors into files of at most SIZE, such as 5GB",
    )
    add("--name", help="the name of the files in DST, without .safetensors")
    add(
        "--ties",
        choices=("auto", "copy", "drop", "error"),
        default="auto",
        help="write tied names in full (copy), one of each (drop), or refuse (error); auto, the default, leaves out the output\n"
        "head where config.json says that it is the embedding",
    )
    add("--keep", metavar="P", help="of tied names, write those that match P; may be repeated", **REPEATED)
    add(
        "--discard",
        metavar="P",
        help="of tied names, leave out those that match P; may be repeated",
        **REPEATED,
    )
    add(
        "--write-manifest",
        action="store_true",
        help="write the digests of what is written to DST.manifest.json (see rustload manifest)",
    )
    add("--verify", action="store_true", help="read everything back and compare it before DST appears")
    add(
        "--resume", action="store_true", help="keep what is written if this fails, for the same command later"
    )
    add(
        "--progress",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="show a progress bar on stderr (the default on a terminal)",
    )
    add(
        "--metadata",
        type=pair,
        metavar="KEY=TEXT",
        help="add a text to the header; may be repeated",
        **REPEATED,
    )
    add("--copy-others", action="store_true", help="copy the folder's other files, never pickles")
    add(
        "--keep-config", action="store_true", help="leave config.json as it is after --dtype and --dequantize"
    )
    add("--objects", metavar="FILE", help="write the non-tensor values as JSON")
    add("--overwrite", action="store_true", help="replace what exists; other files in a folder are kept")
    add("-q", "--quiet", action="store_true", help="print nothing but errors and warnings")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Converts a checkpoint and returns the exit code."""
    options = keywords(_CONVERT, args) | {
        "rename": dict(args.rename) or None,
        "dtype": _dtype_rule(args.dtype),
        "transpose": dict.fromkeys(args.transpose, True) or None,
        "metadata": dict(args.metadata) or None,
        "progress": _on_terminal() and not args.quiet if args.progress is None else args.progress,
    }
    document: Document = {}
    code = 0
    _warn_of_code(args.src, args.manifest)
    with report_warnings(args.options):
        try:
            report = rustload.convert(args.src, args.output if args.dst is None else args.dst, **options)
        except (RustloadError, OSError, ValueError, TypeError, MemoryError) as error:
            code = VERIFY_FAILED if getattr(error, "code", None) == "VerifyFailed" else READ_FAILED
            if getattr(error, "argument", None) == "dst":
                code = USAGE  # it is missing, or is none for this source
            document["error"] = report_error(error, args.options)
        except KeyboardInterrupt as interrupt:
            print_messages(f"rustload: interrupted: {note}" for note in getattr(interrupt, "__notes__", ()))
            raise
    if args.json:
        if not code:
            document["report"] = report
        print_document(document)
    elif not (code or args.quiet):
        page = Page(sys.stdout, "never")
        page.line(str(report) + (", read back and compared" if args.verify else ""))
        page.flush()
    if not (code or args.quiet):
        _note_others(report.not_copied, copy_others=args.copy_others)
    return code


def _note_others(names: Sequence[str], *, copy_others: bool) -> None:
    """Says that a folder was written without the configuration that loaders need, or without pickles beside it."""
    if copy_others and names:
        what = "it is a pickle" if len(names) == 1 else "they are pickles"
        listed = ", ".join(names[:4]) + ", ..." * (len(names) > 4)
        print_messages([f"rustload: not copied, as {what}: {listed}"])
    for name in ("config.json", "model_index.json"):
        if not copy_others and name in names:
            print_messages([f"rustload: {name} and other files were not copied: --copy-others copies them"])
            break


def _warn_of_code(path: str, manifest: str | None) -> None:
    """Says what unpickling the source would execute; of a URL, only where it is in the Hub's cache."""
    if is_url(path) and not is_offline():
        return
    try:
        with warnings.catch_warnings(action="ignore"), rustload.open(path, manifest=manifest) as checkpoint:
            seen = scanned(checkpoint, manifest)
    except (RustloadError, OSError, ValueError, TypeError, MemoryError):
        return  # the conversion says why, or converts several checkpoints
    if seen is not None and seen["verdict"] == "would execute":
        print_messages([f"rustload: scan: {scan_text(seen)}"])


def _on_terminal() -> bool:
    return sys.stderr is not None and not sys.stderr.closed and sys.stderr.isatty()


def _dtype_rule(given: list[tuple[str | None, str]]) -> Any:
    """`--dtype`: the dtype of all floats, and those of patterns, which count first."""
    patterns = [(pattern, dtype) for pattern, dtype in given if pattern is not None]
    plain = [dtype for pattern, dtype in given if pattern is None]
    if not patterns:
        return plain[-1] if plain else None
    return PlainWithPatterns(dict(patterns), plain[-1]) if plain else dict(patterns)


def _dtype(text: str) -> tuple[str | None, str]:
    pattern, equals, name = text.rpartition("=")
    return (pattern if equals else None), dtype(name)
