"""`python -m rustload`: the command line."""

from __future__ import annotations

import sys

from rustload._cli import main

if __name__ == "__main__":
    sys.exit(main())
