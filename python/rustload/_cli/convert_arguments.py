"""The arguments of `rustload convert`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["add_convert"]

P = TypeVar("P", bound=argparse.ArgumentParser)

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


def add_convert(
    commands: argparse._SubParsersAction[P], formatter: Callable[..., argparse.HelpFormatter]
) -> None:
    """Adds the command."""
    convert = commands.add_parser(
        "convert",
        help="write a checkpoint as safetensors",
        description="Writes a checkpoint of any format as safetensors: a file, or a folder of\n"
        "transformers, diffusers or PEFT. Runs nothing that it names, and imports\n"
        "neither torch nor NumPy. The target appears when it is complete.",
        epilog=EPILOG,
        formatter_class=formatter,
    )
    add = convert.add_argument
    add("src", metavar="SRC", help="a file, a folder, or an index file")
    target = convert.add_mutually_exclusive_group()
    target.add_argument("dst", nargs="?", metavar="DST", help="a file or a folder")
    target.add_argument("-o", "--output", metavar="DST", help="the same")
    repeated: Any = {"action": "append", "default": []}
    add(
        "--dtype",
        type=_dtype,
        metavar="[P=]D",
        help="cast all floats, or names that match P, to D",
        **repeated,
    )
    add("--transpose", metavar="P", help="swap the last two dimensions of names that match P", **repeated)
    add(
        "--fingerprint",
        choices=("structure", "data"),
        help="record a digest of SRC in the header: of names, dtypes and shapes, or of the elements too",
    )
    add("--allow-lossy", action="store_true", help="allow casts such as float to int")
    add("--dequantize", action="store_true", help="dequantize quantized tensors")
    add("--select", metavar="P", help="only names that match P, as in SRC; may be repeated", **repeated)
    add("--key", metavar="K", help="only tensors under this key, without it in their names")
    add("--strip", metavar="PREFIX", help="remove this prefix from names", **repeated)
    add(
        "--rename",
        type=_rename,
        metavar="OLD=NEW",
        help="rename a name or prefix; OLD= leaves it out",
        **repeated,
    )
    add(
        "--max-shard-size",
        type=_size,
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
    add("--keep", metavar="P", help="of tied names, write those that match P", **repeated)
    add("--discard", metavar="P", help="of tied names, leave out those that match P", **repeated)
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
    add("--metadata", type=_pair, metavar="KEY=TEXT", help="add a text to the header", **repeated)
    add("--copy-others", action="store_true", help="copy the folder's other files, never pickles")
    add("--objects", metavar="FILE", help="write the values that are no tensors as JSON")
    add("--overwrite", action="store_true", help="replace what exists; other files in a folder are kept")
    add("-q", "--quiet", action="store_true", help="print nothing but errors and warnings")
    add(
        "--json",
        action="store_true",
        help="print the report as one JSON document (see docs/reference/cli.md)",
    )


def _rename(text: str) -> tuple[str, str]:
    """`OLD=NEW`, divided at the first `=`; `OLD=`, where OLD may have others."""
    return (text[:-1], "") if len(text) > 1 and text.endswith("=") else _pair(text)


def _pair(text: str) -> tuple[str, str]:
    """`NAME=TEXT`, divided at the first `=`."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=TEXT")
    return key, value


def _dtype(text: str) -> tuple[str | None, str]:
    from rustload._common.dtype_args import dtype_name

    pattern, equals, name = text.rpartition("=")
    try:
        return (pattern if equals else None), dtype_name(name)
    except ValueError as error:
        near = "; ".join(getattr(error, "__notes__", []))
        raise argparse.ArgumentTypeError(f"{error}{f' ({near})' if near else ''}") from None


def _size(text: str) -> int:
    from rustload._common.sizes import parse_bytes

    try:
        return parse_bytes(text, "SIZE")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
