"""The command line: `command` finds the command that is given; each command is a module with `add_arguments` and `run`.

Data goes to stdout, messages to stderr.
"""

from rustload._cli.command import main

__all__ = ["main"]
