"""`rustload schema`: prints the JSON schema of what a command prints with `--json`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, TypeVar

import rustload

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SCHEMAS", "add_schema", "print_schema"]

P = TypeVar("P", bound=argparse.ArgumentParser)

SCHEMAS = ("info", "diff", "stats", "convert", "scan", "doctor")
"""The commands with `--json`: each has a file in `rustload/_schemas`."""


def add_schema(
    commands: argparse._SubParsersAction[P], formatter: Callable[..., argparse.HelpFormatter]
) -> None:
    """Adds the command."""
    schema = commands.add_parser(
        "schema",
        help="print the JSON schema of a command's --json",
        description="Prints the JSON schema (draft 2020-12) of what a command of this version prints\n"
        "with --json.",
        formatter_class=formatter,
    )
    schema.add_argument("name", metavar="COMMAND", choices=SCHEMAS, help=", ".join(SCHEMAS))


def print_schema(name: str) -> int:
    """Prints a schema and returns the exit code."""
    folder = os.path.dirname(rustload.__file__)  # noqa: PTH120 - pathlib is slow to import
    with open(os.path.join(folder, "_schemas", f"{name}.json"), encoding="utf-8") as file:  # noqa: PTH118, PTH123
        sys.stdout.write(file.read())
    return 0
