"""The command line: `command` reads the arguments, `info`, `scan` and `doctor` do the work.

Data goes to stdout, talk to stderr.
"""

from rustload._cli.command import main

__all__ = ["main"]
