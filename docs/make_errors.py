"""Writes docs/reference/errors.md from the extension's catalogue: `python docs/make_errors.py`."""

from __future__ import annotations

import re
from pathlib import Path

import rustload
from rustload import _rustload
from rustload._scan.codes import SCAN_CODES
from rustload.errors import _CLASSES, _Note

PAGE = Path(__file__).parent / "reference" / "errors.md"

HEAD = """\
# Errors

Every error has a stable `code`; its message may change. `path`, `member`, `offset` (in bytes) and `argument` say where, if known.
The next step is in italics, and in a note of the exception with the likely cause. Without one, the file is damaged or was made by
hand: fetch it again, or ask its author.

```python
import rustload

try:
    rustload.open("notes.txt")
except rustload.FormatError as error:
    print(error.code, error.path, error.offset)
except OSError as error:
    print(error.errno)
```
"""

# What a kind means and which class is raised; the order of the sections.
KINDS = {
    "Io": "A missing file, a permission, a failing disk.",
    "Format": "The file is damaged, or its writer is at fault.",
    "Unsupported": "A legitimate file or request that rustload cannot serve yet.",
    "Disallowed": 'You decide whether to trust the file: `unknown="error"` refuses it, or its legacy magic number is a call.',
    "Limit": "Raise the limit, or reject the file. The error has `name`, `limit` and `found`.",
    "NotFound": "A note suggests similar names.",
    "Value": "An argument of the call is at fault.",
    "Type": "",
    "Index": "",
    "Buffer": "No view is possible.",
    "Device": "The driver or the GPU is at fault, or there is none.",
    "Memory": "Also a `MemoryError`. `rustload doctor` and `rustload info --dtype` show what is needed and what is left.",
    "Cancelled": "The work was cancelled, for example by Ctrl-C.",
    "Internal": "",
}

# A cause in front of what to do, which need not be repeated, and what to do about a damaged file, which the head says.
CAUSE = re.compile(
    r"(The (file|pickle|metadata|download|save|index|server)|It is from|No writer|Unpicklers)\b[^:]*: (?=[a-z]+ )"
)
AGAIN = re.compile(
    r"((Fetch|Download) .* again|Fetch it again|Ask its author|Do not use .*|Other readers .*|The file is .*)\b.*"
)

SCAN = """
## Codes of a scan

A [scan](scan.md) has the codes above for what `rustload.open` refuses, and these. Their verdict is *unknown*, for what is in
italics *would execute*; notes are inert.

"""


def remedy(then: str) -> str:
    """What to do, without a common cause in front of it; nothing where the head says it."""
    cause = CAUSE.match(then)
    found = then[cause.end()].upper() + then[cause.end() + 1 :] if cause else then
    return "" if not found or AGAIN.match(found) else f" *{found}*"


def page() -> str:
    """The page's text."""
    out = [HEAD]
    codes = _rustload.CODES
    missing = {kind for _, kind, _, _ in codes} - KINDS.keys()
    if missing:
        raise SystemExit(f"docs/make_errors.py does not describe: {', '.join(sorted(missing))}")
    for kind, who in KINDS.items():
        name = "OSError" if kind == "Io" else _CLASSES[kind].__name__
        shown = f"rustload.{name}" if hasattr(rustload, name) else name
        out.append(f"\n## {shown}\n\n{who}\n\n" if who else f"\n## {shown}\n\n")
        for code, found, what, then in codes:
            if found == kind:
                out.append(f"- `{code}`: {what}{remedy(_Note(then))}\n")
    out.append(SCAN)
    above = {code for code, *_ in codes}
    for code, (verdicts, meaning, executes) in SCAN_CODES.items():
        if code in above and not executes:
            continue
        note = " (note)" if verdicts == ("inert",) else " (or note)" if "inert" in verdicts else ""
        out.append(f"- `{code}`{note}: {meaning}{f' *{executes}*' if executes else ''}\n")
    return "".join(out)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
