"""The squarified treemap: rectangles as square as possible, with areas in proportion to sizes.

After Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000). The page's script has the same layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Rect(NamedTuple):
    """A rectangle.

    Attributes:
        x: The left edge.
        y: The top edge.
        width: The width.
        height: The height.
    """

    x: float
    y: float
    width: float
    height: float


def squarify(sizes: Sequence[float], inside: Rect) -> list[Rect]:
    """A rectangle for each size, the largest first and all above zero; together they fill the given one."""
    out: list[Rect] = []
    left = float(sum(sizes))
    x, y, width, height = inside
    start = 0
    while start < len(sizes) and left > 0 and width > 0 and height > 0:
        short = min(width, height)
        scale = width * height / left
        # A row along the short side grows as long as its worst ratio of sides gets better.
        total, worst, end = 0.0, float("inf"), start
        while end < len(sizes):
            grown = total + sizes[end]
            thick = grown * scale / short
            ratio = max(sizes[start] * scale / thick / thick, thick * thick / (sizes[end] * scale))
            if ratio > worst:
                break
            total, worst, end = grown, ratio, end + 1
        thick = total * scale / short
        along = 0.0
        for size in sizes[start:end]:
            length = size / total * short
            out.append(
                Rect(x, y + along, thick, length) if width >= height else Rect(x + along, y, length, thick)
            )
            along += length
        if width >= height:
            x, width = x + thick, width - thick
        else:
            y, height = y + thick, height - thick
        left -= total
        start = end
    # Rounding has left the others without an area.
    out += [Rect(x, y, 0.0, 0.0)] * (len(sizes) - len(out))
    return out
