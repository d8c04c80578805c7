"""Draws the bytes of the largest rank for each number of ranks, as SVG."""

from __future__ import annotations

from docs.make_pictures import NAMES, ROW, WIDTH, bar, svg, text


def draw(curves: dict[str, dict[int, float]], size: float) -> str:
    """A bar for each way, of the kind of file of which it reads the most, and a line at the share of a rank.

    Args:
        curves: For each way the MiB that the largest rank read or mapped, by the number of ranks.
        size: The size of the model in MiB.
    """
    worlds = sorted({world for curve in curves.values() for world in curve} - {1})
    scale = (WIDTH - NAMES - 100) / max(number for curve in curves.values() for number in curve.values())
    parts, y = [], 20
    for world in worlds:
        ways: dict[str, float] = {}
        for name, curve in curves.items():
            way = name.partition(", ")[0]
            ways[way] = max(ways.get(way, 0), curve[world])
        share = NAMES + size / world * scale
        parts.append(text(0, y, f"Read by the largest of {world} ranks", "h"))
        parts.append(text(share + 6, y, f"the share of a rank: {size / world:,.0f} MiB", "r"))
        bottom = y + ROW * len(ways) + 8
        parts.append(f'<path class="l" d="M{share:.4g} {y - 8}V{bottom}" stroke-dasharray="3 3"/>')
        for way, most in sorted(ways.items(), key=lambda item: item[1]):
            y += ROW
            parts.append(text(NAMES - 10, y, way, "e"))
            parts.append(bar(NAMES, y, most * scale, "a" if way in ("load_into", "Reader") else "b"))
            parts.append(text(NAMES + most * scale + 8, y, f"{most:,.0f} MiB", "q"))
        y += ROW + 12
    return svg(y - 16, f"MiB that the largest rank reads of a model of {size:,.0f} MiB", parts)
