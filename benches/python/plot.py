"""Draws results as SVG: a bar for each loader of each case, as long as its time; loaders that beat rustload are marked."""

from __future__ import annotations

from html import escape
from typing import Any

WIDTH, LABEL, ROW, GAP = 960, 330, 18, 34
OURS, THEIRS, LIMIT, FASTER = "#2b6cb0", "#a0aec0", "#d69e2e", "#c53030"


def svg(results: list[dict[str, Any]]) -> str:
    """The picture; each case has its own scale, from 0 to its slowest loader."""
    parts: list[str] = []
    top = 12
    for case in results:
        switch = ", torch with huge pages" if case["torch_huge_pages"] else ""
        parts.append(_text(8, top + 13, f"{case['case']}{switch}", weight="bold"))
        top += 20
        longest = max(row["median_s"] for row in case["rows"])
        for row in case["rows"]:
            parts += _bar(row, top, longest)
            top += ROW
        top += GAP - ROW
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="white"/>', *parts, "</svg>", ""])


def _bar(row: dict[str, Any], top: int, longest: float) -> list[str]:
    name: str = row["way"]
    ours, limit = name.startswith("rustload"), name == "(limit)"
    faster = row["times_rustload"] < 1 and not ours and not limit
    colour = OURS if ours else LIMIT if limit else FASTER if faster else THEIRS
    length = max(1.0, row["median_s"] / longest * (WIDTH - LABEL - 130))
    label = f"{row['median_s'] * 1e3:,.1f} ms" + (" (faster than rustload)" if faster else "")
    return [
        _text(LABEL - 6, top + 13, name, anchor="end"),
        f'<rect x="{LABEL}" y="{top + 2}" width="{length:.1f}" height="{ROW - 4}" fill="{colour}"/>',
        _text(LABEL + length + 5, top + 13, label),
    ]


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'
