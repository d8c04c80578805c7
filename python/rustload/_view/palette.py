"""The colours of the treemap, in light and dark: fills with text on them at a contrast of at least 4.5:1."""

from __future__ import annotations

LIGHT = (
    "#a3c8f0", "#8ed3c3", "#f3c684", "#f2aaa0", "#e7b1d8", "#c5b5ef", "#b0d69a", "#d9c2a6", "#e2dc8c", "#c8ced8",
)  # fmt: skip
DARK = (
    "#2c5c94", "#1c6b60", "#80560d", "#8c3e37", "#833a6e", "#5a489a", "#426c2a", "#6c5036", "#63600f", "#4a5361",
)  # fmt: skip
INK = ("#14181d", "#f4f6f9")
"""The text on the fills, in light and in dark."""

OTHER = len(LIGHT) - 1
BY_DTYPE = {
    "bfloat16": 0,
    "float16": 1,
    "float32": 2,
    "float64": 7,
    "uint8": 5,
    "int8": 4,
    "bool": 8,
    "int64": 6,
    "int32": 6,
    "int16": 6,
    "float8": 3,
}
"""The numbers of the colours by what a dtype's name begins with; the script of the page has them too."""


def colour_of(dtype: str) -> int:
    """The number of a dtype's colour, the same in all pages."""
    return next((colour for start, colour in BY_DTYPE.items() if dtype.startswith(start)), OTHER)


def css_variables(colours: tuple[str, ...]) -> str:
    """`--c0` and so on."""
    return "".join(f"--c{number}:{colour};" for number, colour in enumerate(colours))
