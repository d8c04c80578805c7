"""The columns that text takes on a terminal: wide characters take two, combining ones none.

The widths are those of Unicode's East Asian Width (UAX #11), from the version of Unicode that Python has. An ambiguous
character takes one column, as on terminals outside of East Asian locales.
"""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_EMOJI_STYLE = "\ufe0f"
"""VARIATION SELECTOR-16: the character before it is shown as an emoji, so in two columns."""
_CHARS_PER_COLUMN_MAX = 8
"""The most characters of a clipped text for each column: combining characters take none."""


def columns_of(text: str) -> int:
    """The number of columns that printable text takes on a terminal; its colours take none."""
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    if text.isascii():
        return len(text)
    return sum(_widths(text))


def pad(text: str, columns: int) -> str:
    """The text with spaces after it, up to so many columns."""
    return text + " " * (columns - columns_of(text))


def clip(text: str, columns: int) -> str:
    """The text, cut to at most so many columns; a cut text ends with `...`. Base and combining characters stay together."""
    if columns_of(text) <= columns and len(text) <= columns * _CHARS_PER_COLUMN_MAX:
        return text
    return _head(text, max(columns - 3, 0)) + "..."


def wrap(text: str, columns: int) -> list[str]:
    """The text in lines of at most so many columns, broken at spaces, and inside of words that are longer than a line."""
    lines: list[str] = []
    left = 0  # the columns that the last line has left
    for word in re.findall(r"\S+", text):
        pieces = _cut(word, columns)
        if len(pieces) == 1 and (width := columns_of(f" {word}")) <= left:
            lines[-1] += f" {word}"
            left -= width
        else:
            lines += pieces
            left = columns - columns_of(pieces[-1])
    return lines


def _cut(word: str, columns: int) -> list[str]:
    """The pieces of a word, each of at most so many columns, or of one character."""
    if word.isascii():
        return [word[at : at + columns] for at in range(0, len(word), columns)]
    pieces: list[str] = []
    start = taken = 0
    for position, width in enumerate(_widths(word)):
        taken += width
        if position > start and (taken > columns or position - start >= columns * _CHARS_PER_COLUMN_MAX):
            pieces.append(word[start:position])
            start, taken = position, width
    return [*pieces, word[start:]]


def _head(text: str, columns: int) -> str:
    """The longest beginning that takes at most so many columns."""
    if text.isascii():
        return text[:columns]
    taken = 0
    for position, width in enumerate(_widths(text)):
        taken += width
        if taken > columns or position >= columns * _CHARS_PER_COLUMN_MAX:
            return text[:position]
    return text


def _widths(text: str) -> list[int]:
    """The columns of each character."""
    from unicodedata import category, east_asian_width  # imported only for text beyond ASCII

    widths: list[int] = []
    for char in text:
        if char < "\x7f" or (char == _EMOJI_STYLE and widths and widths[-1] == 1):
            width = 1
        elif category(char) in ("Mn", "Me", "Cf") or _is_later_jamo(char):
            width = 0
        else:
            width = 2 if east_asian_width(char) in "WF" else 1
        widths.append(width)
    return widths


def _is_later_jamo(char: str) -> bool:
    """Whether it is a vowel or a final consonant of Hangul, which joins the syllable before it."""
    return "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7ff"
