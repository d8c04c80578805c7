"""The page as HTML: one file without any request, whose only script is rustload's own.

The content security policy names the hash of the script and of the style, so that nothing else runs, whatever the data has. The
data is JSON in a block that browsers do not execute, without `<`, so that it cannot end the block. `docs/site/browser` makes of
the same parts a page that opens files itself.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rustload._view.palette import BY_DTYPE, DARK, INK, LIGHT, OTHER, css_variables

if TYPE_CHECKING:
    from collections.abc import Mapping

GENERATOR = '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="rustload '
"""The beginning of a page, up to the version."""
SCRIPTS = ("el.js", "data.js", "search.js", "treemap.js", "parts.js", "tree.js", "main.js")
"""The files of the script, in their order. All but the first are the function that shows the data."""
SHOW = 'show(JSON.parse(document.getElementById("data").textContent));\n'
"""The script that calls it."""


def page(
    data: Mapping[str, Any],
    text: str,
    *,
    name: str,
    version: str,
    script: str = SHOW,
    scripts: str = "",
    types: str = "'none'",
) -> str:
    """The page.

    Args:
        data: What `document` returned, or what else the script takes.
        text: What is shown where scripts are switched off.
        name: What the page is of.
        version: The version of rustload.
        script: The end of the script.
        scripts: What else the policy lets run.
        types: The names of policies for trusted types, and what else the policy has.
    """
    files = Path(__file__).parent / "page"
    outer, *inner = [(files / name).read_text("utf-8") for name in SCRIPTS]
    script = "\n".join(
        [
            '(() => {\n"use strict";',
            f"const COLOURS = {json.dumps([*BY_DTYPE.items()])}, OTHER = {OTHER};",
            outer,
            "function show(data, { readNumbers, signal } = {}) {",
            *inner,
            "}",
            f"{script}}})();\n",
        ]
    )
    style = (files / "page.css").read_text("utf-8")
    style = style.replace("/*light*/", f"--ink:{INK[0]};{css_variables(LIGHT)}")
    style = style.replace("/*dark*/", f"--ink:{INK[1]};{css_variables(DARK)}")
    parts = {
        "generator": GENERATOR + html.escape(version),
        "policy": (
            f"default-src 'none'; script-src '{_hash(script)}'{scripts}; style-src '{_hash(style)}'; base-uri 'none'; "
            f"form-action 'none'; require-trusted-types-for 'script'; trusted-types {types}"
        ),
        "title": html.escape(name),
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
