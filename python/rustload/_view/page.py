"""The page as HTML: one file without any request, whose only script is rustload's own.

The content security policy names the hash of the script and of the style, so that nothing else runs, whatever the data has. The
data is JSON in a block that browsers do not execute, without `<`, so that it cannot end the block.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._view.palette import DARK, INK, LIGHT, css_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["GENERATOR", "page"]

GENERATOR = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="rustload '
"""The beginning of a page, up to the version."""
SCRIPTS = ("data.js", "search.js", "treemap.js", "parts.js", "tree.js", "main.js")
"""The files of the script, in their order."""


def page(data: Mapping[str, Any], text: str) -> str:
    """The page.

    Args:
        data: What `document` returned.
        text: What is shown where scripts are switched off.
    """
    files = resources.files("rustload._view") / "page"
    script = "\n".join(
        ['(() => {\n"use strict";', *((files / name).read_text("utf-8") for name in SCRIPTS), "})();\n"]
    )
    style = (files / "page.css").read_text("utf-8")
    style = style.replace("/*light*/", f"--ink:{INK[0]};{css_variables(LIGHT)}")
    style = style.replace("/*dark*/", f"--ink:{INK[1]};{css_variables(DARK)}")
    parts = {
        "generator": GENERATOR + html.escape(_rustload.__version__),
        "script_hash": _hash(script),
        "style_hash": _hash(style),
        "title": html.escape(data["name"]),
        "text": html.escape(text),
        "style": style,
        "data": _json(data),
        "script": script,
    }
    frame = (files / "page.html").read_text("utf-8")
    # In one pass, so that no part is searched for the names of others.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], frame)


def _hash(content: str) -> str:
    """The source expression of a content security policy for an inline script or style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _json(data: Mapping[str, Any]) -> str:
    """JSON without characters that mean something to a parser of HTML."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
