"""Writes docs/limits.md from the extension's limits: `python docs/make_limits.py`."""

from __future__ import annotations

from pathlib import Path

from rustload import Limits

PAGE = Path(__file__).with_name("limits.md")

HEAD = """\
# Limits

A file cannot make the reader do more than these. They are asked before memory is allocated and while a pickle runs, and a file
beyond one is a `rustload.LimitError` that names it. Files from honest writers fit the defaults. Raise a limit for a file you
trust, or lower some where files come from strangers and memory is short:

```python
import rustload

rustload.open("model.pt", limits=rustload.Limits(tensors=10_000_000))
```

This page is made by `docs/make_limits.py`.

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
