"""Draws the figures of the pages beside them, and a terminal: `python docs/make_pictures.py`."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
WIDTH, NAMES, ROW = 760, 290, 22

STYLE = """\
<style>text{font:13px system-ui,'DejaVu Sans',sans-serif;fill:#14181d}.h{font-weight:600}.q{fill:#57606a}.e{text-anchor:end}
.m{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}
.a{fill:#1f6feb}.b{fill:#a8b1bb}.c{fill:#d5dae0}.l{stroke:#d1242f}.r{fill:#d1242f}.w{fill:#f3f5f7}
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.q{fill:#9aa4af}.a{fill:#4a94ff}.b{fill:#66707b}.c{fill:#3a434d}
.l{stroke:#ff7b72}.r{fill:#ff7b72}.w{fill:#161c23}}</style>
"""

CASES = {
    "List 20,000 tensors of a .bin": "open and list 20,000 tensors, .bin",
    "Load 1 GB float32 from a .bin": "load a 1074 MB float32 model as owned float32, .bin",
    "Load 1 GB float32 as bfloat16": "load a 1074 MB float32 model as bfloat16, .safetensors",
    "Transpose 8192x8192 and cast to bfloat16": "load float32 8192x8192 transposed and cast to bfloat16, .bin",
    "Load a cold 1 GB safetensors file": "load a cold 1074 MB float32 model as owned float32, .safetensors",
}
"""Titles, and cases of benchmarks.json with torch's own settings; in the last one rustload loses."""

LEFT_OUT = ("rustload, fresh memory", "rustload, io='buffered'", "(limit)")


def svg(height: int, label: str, parts: list[str]) -> str:
    """A picture that follows the reader's light or dark mode."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(label, quote=True)}">\n'
    )
    return head + STYLE + "\n".join(parts) + "\n</svg>\n"


def text(x: float, y: float, content: str, kind: str = "") -> str:
    """One line of text."""
    return f'<text x="{x:.4g}" y="{y:.4g}" class="{kind}">{escape(content)}</text>'


def bar(x: float, y: float, width: float, kind: str) -> str:
    """One bar of a row."""
    return (
        f'<rect x="{x:.4g}" y="{y - 12:.4g}" width="{max(width, 1):.4g}" height="15" rx="2" class="{kind}"/>'
    )


def benchmarks() -> str:
    """Five cases, each with bars to the scale of its slowest way."""
    results = json.loads((DOCS / "explain" / "benchmarks.json").read_text(encoding="utf-8"))["results"]
    found = {one["case"]: one["rows"] for one in results if not one["torch_huge_pages"]}
    parts, y = [], 20
    for title, case in CASES.items():
        ways = {row["way"]: row["median_s"] * 1000 for row in found[case] if row["way"] not in LEFT_OUT}
        parts.append(text(0, y, title, "h"))
        for way, took in sorted(ways.items(), key=lambda item: item[1]):
            y += ROW
            long = (WIDTH - NAMES - 90) * took / max(ways.values())
            parts.append(text(NAMES - 10, y, way.replace("torch.load(mmap=True) ", "mmap=True, "), "e"))
            parts.append(bar(NAMES, y, long, "a" if way.startswith("rustload") else "b"))
            parts.append(text(NAMES + long + 8, y, f"{took:,.0f} ms", "q"))
        y += ROW + 12
    return svg(y - 16, "Time of five tasks with rustload, torch and safetensors", parts)


def memory() -> str:
    """Peaks of the loaders for one .bin as bfloat16, from the first table of memory.md."""
    page = (DOCS / "explain" / "memory.md").read_text(encoding="utf-8")
    table = page.partition("As bfloat16")[2].partition("As float32")[0]
    rows = re.findall(r"^\| \**([^|*]+?)\** \| \**(\d+)\** \((\d+)\)", table, re.MULTILINE)
    size = re.search(r"As bfloat16, (\d+) MiB", page)
    assert size, "memory.md has no size of the model"
    scale = (WIDTH - NAMES - 190) / max(int(peak) for _, peak, _ in rows)
    edge = NAMES + int(size[1]) * scale
    height = 62 + ROW * len(rows)
    parts = [
        text(0, 20, "Peak memory of loading a float32 .bin as bfloat16", "h"),
        f'<path class="l" d="M{edge:.4g} 34V{height - 8}" stroke-dasharray="3 3"/>',
        text(edge + 6, 42, f"the model: {size[1]} MiB", "r"),
    ]
    for number, (loader, peak, own) in enumerate(rows):
        y = 64 + ROW * number
        end = int(peak) * scale
        parts.append(text(NAMES - 10, y, loader, "e"))
        parts.append(bar(NAMES, y, end, "c"))
        parts.append(bar(NAMES, y, int(own) * scale, "a" if loader.startswith("rustload") else "b"))
        pages = int(peak) - int(own)
        parts.append(
            text(
                NAMES + end + 8, y, f"{peak} MiB" + (f", {pages} of it file pages" if pages > 50 else ""), "q"
            )
        )
    return svg(height, "Peak memory of six loaders", parts)


def terminal() -> str:
    """What `rustload info` prints of a model with the names and shapes of an 8B model."""
    with runpy.run_path(str(DOCS / "make_treemap.py"))["model"]() as path:
        command = [sys.executable, "-m", "rustload", "info", path.name]
        environment = os.environ | {"COLUMNS": "96", "PYTHONUTF8": "1"}
        done = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, check=True)
    lines = ["$ rustload info llama-8b.safetensors", *done.stdout.decode().rstrip().splitlines()]
    height = 30 + 18 * len(lines)
    parts = [f'<rect class="w" width="{WIDTH}" height="{height}" rx="8"/>']
    parts += [
        text(16, 28 + 18 * number, line.replace(" ", "\u00a0"), "m" if number else "m h")
        for number, line in enumerate(lines)
        if line
    ]
    return svg(height, "rustload info llama-8b.safetensors", parts)


DRAWN = {"benchmarks": benchmarks, "memory": memory, "info": terminal}


if __name__ == "__main__":
    for name, draw in DRAWN.items():
        (PICTURES / f"{name}.svg").write_text(draw(), encoding="utf-8")
        print(PICTURES / f"{name}.svg")
