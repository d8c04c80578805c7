"""The command line: `command` parses the arguments; `info`, `convert`, `scan` and `doctor` are the subcommands.

Data goes to stdout, messages to stderr.
"""

from rustload._cli.command import main

__all__ = ["main"]
