"""The files of the cases, each built once.

They are kept read-only in `.cache/attacks`, in a folder named by a digest of this package's sources. A file is built when it is first
asked for, apart, and then renamed: two processes that ask at once build the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attacks.registry import Case

SOURCES = Path(__file__).parent
CACHE = SOURCES.parents[2] / ".cache" / "attacks"


@functools.cache
def folder() -> Path:
    """The folder of the files that these sources build; those of other sources are removed."""
    digest = hashlib.sha256(f"{sys.version} {zlib.ZLIB_RUNTIME_VERSION}".encode())
    for source in sorted(SOURCES.glob("*.py")):
        digest.update(source.read_bytes())
    found = CACHE / digest.hexdigest()[:16]
    found.mkdir(parents=True, exist_ok=True)
    for other in CACHE.iterdir():
        if other != found:
            shutil.rmtree(other, ignore_errors=True)
    return found


def path(case: Case) -> Path:
    """The case's file, alone in a folder."""
    kept = folder() / case.label / case.filename
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        made = folder() / f"{case.label}.{os.getpid()}"
        made.write_bytes(case.data())
        made.chmod(0o444)
        made.replace(kept)
    return kept
