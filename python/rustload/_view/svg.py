"""The treemap as an SVG image: repeated blocks folded, coloured by dtype, light or dark as the reader's system is.

Text and shapes only: no script, no link, no font from elsewhere.
"""

from __future__ import annotations

import html
import os
from typing import TYPE_CHECKING

from rustload import _rustload
from rustload._common.columns import columns_of
from rustload._common.sizes import format_bytes
from rustload._common.terminal import count
from rustload._describe.text import rounded, tree_of
from rustload._view.palette import DARK, INK, LIGHT, colour_of
from rustload._view.treemap import Rect, squarify
from rustload.errors import _clipped, _printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustload._common.tree import Node
    from rustload._describe.describe import Described

SVG_GENERATOR = "<!-- generator: rustload "
"""The beginning of an image, up to the version."""
WIDTH, HEIGHT = 960, 520
HEADER, FOOTER, MARGIN = 34, 30, 12
GROUP_HEAD = 18
LEVELS_MAX = 8
BOXES_MAX = 1500
"""The most rectangles, so that the image stays small whatever the file has."""
SMALLEST = 5.0
"""The shortest side of a rectangle that is divided, or drawn at all if there are larger ones."""
UNIFORM_SHARE = 0.9
"""The share of bytes of one dtype from which on colours stand for modules."""
COLUMN_WIDTH = 6.9
"""The width of a column of the fixed-width font, with some room."""


def svg_image(described: Described) -> str:
    """The image of what `describe` returned."""
    title = os.path.basename(described["path"].rstrip("/"))
    root = tree_of(described)
    dtypes = [
        (f"{seen['dtype']} {format_bytes(seen['nbytes'])}", seen["dtype"]) for seen in described["dtypes"]
    ]
    modules = _modules(root) if _is_uniform(described) else []
    if modules:
        legend = _legend([(node.label or title, colour) for colour, node in enumerate(modules)], dtypes[0][0])
    else:
        legend = _legend([(text, colour_of(dtype)) for text, dtype in dtypes], "")
    image = _Image({id(node): number % len(LIGHT) for number, node in enumerate(modules)})
    facts = ", ".join(
        [
            count(len(described["tensors"]), "tensor"),
            f"{rounded(described['elements']).strip(' ()') or format(described['elements'], ',')} elements",
            format_bytes(described["nbytes"]),
        ]
    )
    inside = Rect(MARGIN, HEADER, WIDTH - 2 * MARGIN, HEIGHT - HEADER - FOOTER)
    image.children(root.children, inside, 1, 0)
    body = "\n".join(image.out)
    name = _fitted(title, int((WIDTH - 2 * MARGIN - len(facts) * 7.2) // 8.2))
    return (
        f"{SVG_GENERATOR}{_rustload.__version__} -->\n"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{_escaped(f"treemap of {title}: {facts}")}">\n<style>{_style()}</style>\n'
        f'<rect class="p" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n'
        '<pattern id="tied" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<path class="h" d="M0 0V8"/></pattern>\n'
        f'<text class="t b" x="{MARGIN}" y="22">{_escaped(name)}</text>'
        f'<text class="t" x="{WIDTH - MARGIN}" y="22" text-anchor="end">{_escaped(facts)}</text>\n'
        f"{body}\n{legend}\n</svg>\n"
    )


class _Image:
    """Collects the shapes."""

    def __init__(self, modules: Mapping[int, int]) -> None:
        """Colours by module, if there are any, and else by dtype."""
        self.out: list[str] = []
        self._boxes = 0
        self._modules = modules

    def children(self, nodes: list[Node], inside: Rect, times: int, level: int, colour: int = 0) -> None:
        """Divides a rectangle among nodes, which stand for so many equal subtrees and have so many groups around them."""
        found = sorted((node for node in nodes if node.nbytes > 0), key=lambda node: -node.nbytes)
        for node, rect in zip(found, squarify([node.nbytes for node in found], inside), strict=True):
            if self._boxes < BOXES_MAX and min(rect.width, rect.height) >= 1:
                self._node(node, rect, times, level, self._modules.get(id(node), colour))

    def _node(self, node: Node, rect: Rect, times: int, level: int, colour: int) -> None:
        x, y = round(rect.x), round(rect.y)
        width, height = round(rect.x + rect.width) - x - 1, round(rect.y + rect.height) - y - 1
        if width < 1 or height < 1:
            return
        self._boxes += 1
        inner = Rect(x + 2, y + GROUP_HEAD, width - 3, height - GROUP_HEAD - 1)
        size = format_bytes(node.nbytes * times)
        divided = node.children and level < LEVELS_MAX and min(inner.width, inner.height) >= 2 * SMALLEST
        style = "g" if divided else f"c{colour if self._modules else _colour(node)}"
        self.out.append(f'<rect class="{style}" x="{x}" y="{y}" width="{width}" height="{height}"/>')
        if node.leaf is not None and node.leaf.tied and not divided:
            self.out.append(f'<rect fill="url(#tied)" x="{x}" y="{y}" width="{width}" height="{height}"/>')
        label = node.label + (f" ×{node.times}" if node.leaf is not None and node.times > 1 else "")  # noqa: RUF001 - "times"
        columns = int((width - 8) // COLUMN_WIDTH)
        if divided:
            self._text(label, size, x, y + 13, width, "t b", columns)
            self.children(node.children, inner, times * node.times, level + 1, colour)
        elif height >= 14:
            self._text(
                label, size if height < 32 else "", x, y + min(13, height // 2 + 4), width, "i", columns
            )
            if height >= 32 and len(size) <= columns:
                self.out.append(f'<text class="i s" x="{x + 4}" y="{y + 27}">{size}</text>')

    def _text(self, label: str, size: str, x: int, y: int, width: int, style: str, columns: int) -> None:
        """A label, and the size at the end of its line where both fit."""
        shown = _fitted(label, columns)
        if len(shown) > 1:
            self.out.append(f'<text class="{style}" x="{x + 4}" y="{y}">{_escaped(shown)}</text>')
        if size and columns_of(label) + len(size) + 2 <= columns:
            kind = style.replace(" b", "")
            self.out.append(
                f'<text class="{kind} s" x="{x + width - 4}" y="{y}" text-anchor="end">{size}</text>'
            )


def _is_uniform(described: Described) -> bool:
    """Whether nearly all bytes are of one dtype, so that colours by dtype would show little."""
    return (
        bool(described["dtypes"]) and described["dtypes"][0]["nbytes"] > UNIFORM_SHARE * described["nbytes"]
    )


def _modules(root: Node) -> list[Node]:
    """The modules that have colours: the largest is divided as long as it has more than half of all bytes.

    They are up to ten, or the parts of the root, however many these are.
    """
    # Bytes, and how many equal subtrees the node stands for: the nodes below a fold have the bytes of one.
    found = [(root.nbytes, 1, root)]
    while True:
        found.sort(key=lambda module: -module[0])
        nbytes, times, node = found[0]
        times *= node.times
        parts = [(child.nbytes * times, times, child) for child in node.children if child.nbytes]
        too_many = len(found) > 1 and len(found) - 1 + len(parts) > len(LIGHT)
        if not parts or nbytes <= root.nbytes / 2 or too_many:
            return [module for _, _, module in found]
        found[:1] = parts


def _colour(node: Node) -> int:
    """The colour of the dtype with the most bytes, going down to the largest child."""
    while node.leaf is None:
        node = max(node.children, key=lambda child: child.nbytes)
    return colour_of(node.leaf.dtype)


def _fitted(text: str, columns: int) -> str:
    """The text in so many columns; empty if that leaves too little of it."""
    text = _printable(_clipped(text))
    if columns_of(text) <= columns:
        return text
    while text and columns_of(text) > columns - 1:
        text = text[:-1]
    return f"{text}…" if len(text) > 1 else ""


def _legend(items: list[tuple[str, int]], end: str) -> str:
    """Names and colours in a line, as many as fit before the text at its end."""
    out: list[str] = []
    x = float(MARGIN)
    for name, colour in items:
        text = _fitted(name, 30)
        width = 30 + len(text) * COLUMN_WIDTH
        if x + width > WIDTH - MARGIN - len(end) * COLUMN_WIDTH:
            break
        out.append(
            f'<rect class="c{colour}" x="{x:.0f}" y="{HEIGHT - 21}" width="11" height="11" rx="2"/>'
            f'<text class="t s" x="{x + 17:.0f}" y="{HEIGHT - 11}">{_escaped(text)}</text>'
        )
        x += width
    if end:
        out.append(
            f'<text class="t s" x="{WIDTH - MARGIN}" y="{HEIGHT - 11}" text-anchor="end">{_escaped(end)}</text>'
        )
    return "".join(out)


def _style() -> str:
    def colours(fills: tuple[str, ...], ink: str, page: str, group: str, text: str) -> str:
        classes = "".join(f".c{number}{{fill:{fill}}}" for number, fill in enumerate(fills))
        return (
            f".p{{fill:{page}}}.g{{fill:{group}}}.t{{fill:{text}}}.i{{fill:{ink}}}.h{{stroke:{ink}}}{classes}"
        )

    return (
        "text{font:12px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace}.s{font-size:11px}.b{font-weight:600}"
        ".h{stroke-width:2;stroke-opacity:.2}"
        + colours(LIGHT, INK[0], "#ffffff", "#e9edf1", "#14181d")
        + f"@media(prefers-color-scheme:dark){{{colours(DARK, INK[1], '#161c23', '#252e38', '#eef2f6')}}}"
    )


def _escaped(text: str) -> str:
    return html.escape(_printable(text), quote=True)
