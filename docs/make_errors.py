"""Writes docs/reference/errors.md from the extension's catalogue: `python docs/make_errors.py`."""

from __future__ import annotations

from pathlib import Path

import rustload
from rustload import _rustload
from rustload.errors import _CLASSES

PAGE = Path(__file__).parent / "reference" / "errors.md"

HEAD = """\
# Errors

Every error of rustload has a stable `code`; the message may change between versions, the code does not. `path`, `member` and
`offset` give the location if it is known: `offset` counts bytes in the archive member, or in the file. The next step
is a note of the exception; it may be more specific than the one on this page.

```python
import rustload

try:
    rustload.open("notes.txt")
except rustload.FormatError as error:
    print(error.code, error.path, error.offset)
except OSError as error:
    print(error.errno)
```

`docs/make_errors.py` generates this page.
"""

# What a kind means and which class is raised; the order of the sections.
KINDS = {
    "Io": "The cause is outside the file's content: a missing file, a permission, a failing disk.",
    "Format": "The file is damaged, or its writer is at fault.",
    "Unsupported": "A legitimate file or request that rustload cannot serve yet.",
    "Disallowed": 'You decide whether to trust the file: `unknown="error"` refuses it, or its legacy magic number is a call.',
    "Limit": "The file exceeds a limit: raise the limit, or reject the file. The error has `name`, `limit` and `found`.",
    "NotFound": "The call asks for a tensor that does not exist. The note suggests similar names.",
    "Value": "The call, or one of its arguments, is at fault.",
    "Type": "An argument of the call is at fault.",
    "Index": "The index is at fault.",
    "Buffer": "The call requires a view where none is possible.",
    "Device": "The driver or the GPU is at fault, or there is none.",
    "Memory": "The machine does not have enough memory.",
    "Cancelled": "Nothing is at fault: the work was cancelled, for example by Ctrl-C.",
    "Internal": "A bug in rustload: please report it.",
}


def page() -> str:
    """The page's text."""
    out = [HEAD]
    codes = _rustload.CODES
    missing = {kind for _, kind, _, _ in codes} - KINDS.keys()
    if missing:
        raise SystemExit(f"docs/make_errors.py does not describe: {', '.join(sorted(missing))}")
    for kind, who in KINDS.items():
        rows = [(code, what, then) for code, found, what, then in codes if found == kind]
        name = "OSError" if kind == "Io" else _CLASSES[kind].__name__
        shown = f"rustload.{name}" if hasattr(rustload, name) else name
        out.append(
            f"\n## {shown}\n\n{who}\n\n| code | meaning | likely cause and next step |\n|---|---|---|\n"
        )
        out += [f"| `{code}` | {what} | {then} |\n" for code, what, then in rows]
    return "".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
