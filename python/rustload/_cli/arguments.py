"""Arguments that several commands have, and the types of their values."""

from __future__ import annotations

import argparse
from typing import Any

EPILOG = """\
exit codes:
  0    everything was read
  2    wrong usage
  3    something could not be read (the rest is shown all the same), or the
       output could not be written
"""

REPEATED: Any = {"action": "append", "default": []}
"""The options of an argument that may be repeated."""


SOURCE = "a file, a directory of shards, an index file, or a URL"
"""What a path of a checkpoint is."""


def add_paths(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the paths of checkpoints."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", type=file, help=f"{what}; each is shown by itself"
    )


def add_json(parser: argparse._ActionsContainer) -> None:
    """Adds `--json`."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="print everything as one JSON document (see rustload schema)",
    )


def add_manifest(parser: argparse.ArgumentParser) -> None:
    """Adds `--manifest`."""
    parser.add_argument(
        "--manifest",
        metavar="FILE",
        help="read only bytes with the digests in FILE, and no file that it does not list (see rustload manifest);\n"
        "hf: those in the cache of the Hub",
    )


def add_color(parser: argparse.ArgumentParser) -> None:
    """Adds `--color`."""
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto (the default) colours terminals, unless NO_COLOR is set",
    )


def keywords(function: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of a command that have the names of a function's keywords, without those that are not given."""
    names = function.__wrapped__.__kwdefaults__
    return {name: value for name, value in vars(args).items() if name in names and value not in (None, [])}


def file(path: str) -> str:
    """A path to read. Rejects `-`: only `scan` reads standard input, because the others need a seekable file."""
    if path == "-":
        raise argparse.ArgumentTypeError(
            "- (standard input) works only with rustload scan: pass a file (./- for one of that name)"
        )
    return path


def number(text: str) -> int:
    """A whole number from 1 on."""
    if not (text.isascii() and text.isdigit()) or int(text[:18]) < 1:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on, not {text!r}")
    return int(text[:18])


def dtype(text: str) -> str:
    """The name of a dtype."""
    from rustload._rustload import dtype_name

    try:
        return dtype_name(text)
    except ValueError as error:
        known, *near = [one for one in error.__notes__ if not one.startswith("while processing")]
        notes = "; ".join([*near, f"{known}; and short names, such as bf16, fp16 and fp32"])
        raise argparse.ArgumentTypeError(f"{error} ({notes})") from None


def size(text: str) -> int:
    """A number of bytes: 5GB."""
    from rustload._common.sizes import parse_bytes

    try:
        return parse_bytes(text, "SIZE")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pair(text: str, form: str = "KEY=TEXT") -> tuple[str, str]:
    """A pair, divided at the first `=`; `form` is how the help spells it."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form {form}")
    return key, value


def rename(text: str) -> tuple[str, str | None]:
    """`OLD=NEW`, divided at the first `=`; `OLD=`, where OLD may have others, leaves the name out."""
    return (text[:-1], None) if len(text) > 1 and text.endswith("=") else pair(text, "OLD=NEW")
