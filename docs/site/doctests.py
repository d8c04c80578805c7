"""An extension of griffe, which reads docstrings for mkdocstrings: examples become code, where Markdown would see quotations."""

from __future__ import annotations

import re

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^.+\n?)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts fences around examples that stand outside of an `Examples:` section."""

    def on_object(self, *, obj: griffe.Object, **kwargs: object) -> None:  # noqa: ARG002 - griffe passes more
        """Changes the docstring of one object."""
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with a fence around each example."""
    return EXAMPLE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text)
