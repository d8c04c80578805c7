"""Writes docs/reference/limits.md from the extension's limits: `python docs/make_limits.py`."""

from __future__ import annotations

from pathlib import Path

from rustload import Limits

PAGE = Path(__file__).parent / "reference" / "limits.md"

HEAD = """\
# Limits

Limits bound the memory and work that a file can cause. A file that exceeds one is a `rustload.LimitError` that names it.
Files from real writers stay within the defaults. Raise a limit for a file that you trust, lower limits for other files:

```python
import rustload

rustload.open("model.pt", limits=rustload.Limits(tensors=10_000_000))
```

`docs/make_limits.py` generates this page.

| limit | default | what it bounds |
|---|---:|---|
"""


def page() -> str:
    """The page's text."""
    defaults = Limits()
    rows = [
        f"| `{name}` | {getattr(defaults, name):,} | {what} |\n" for name, what in Limits.describe().items()
    ]
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.name}")
