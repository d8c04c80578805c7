"""`rustload schema`: prints the JSON schema of what a command prints with `--json`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import rustload

if TYPE_CHECKING:
    import argparse

__all__ = ["SCHEMAS", "add_arguments", "run"]

SCHEMAS = ("info", "diff", "stats", "convert", "scan", "doctor")
"""The commands with `--json`: each has a file in `rustload/_schemas`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Prints the JSON schema (draft 2020-12) of what a command of this version prints\nwith --json."
    )
    parser.add_argument("name", metavar="COMMAND", choices=SCHEMAS, help=", ".join(SCHEMAS))


def run(args: argparse.Namespace) -> int:
    """Prints a schema and returns the exit code."""
    folder = os.path.dirname(rustload.__file__)
    with open(os.path.join(folder, "_schemas", f"{args.name}.json"), encoding="utf-8") as file:
        sys.stdout.write(file.read())
    return 0
