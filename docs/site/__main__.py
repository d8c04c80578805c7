"""Builds the site into target/docs/html: `make docs`, or `python -m docs.site` where requirements/docs.txt is installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from docs.site.api import PAGES, pages
from docs.site.browser import build
from docs.site.check import check
from docs.site.stage import ROOT, Stage, nav

HERE = Path(__file__).parent
FOLDER = ROOT / "target" / "docs"
SHIM = "https://unpkg.com/iframe-worker/shim"
"""What zensical's offline mode would load, so that pages opened from a folder can search."""


def main() -> None:
    """Stages the pages, builds them strictly, and checks the result."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    Stage(FOLDER / "pages").add_pages(pages())
    shutil.copyfile(HERE / "site.css", FOLDER / "pages" / "site.css")
    (FOLDER / "zensical.toml").write_text(config(), encoding="utf-8")
    site = FOLDER / "html"
    shutil.rmtree(site, ignore_errors=True)
    environment = os.environ | {"NO_COLOR": "1"}
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if subprocess.run(command, cwd=FOLDER, env=environment, check=False).returncode:
        raise SystemExit("zensical did not build the site")
    use_our_shim(site)
    if wrong := check(site):
        raise SystemExit("\n".join(wrong))
    print(f"{sum(1 for _ in site.rglob('*.html'))} pages: {site / 'index.html'}")
    print(build(site))


def config() -> str:
    """The text of zensical.toml, with the navigation."""
    text = (HERE / "zensical.toml").read_text(encoding="utf-8")
    found = nav((ROOT / "docs" / "README.md").read_text(encoding="utf-8"))
    reference = next(section["Reference"] for section in found if "Reference" in section)
    assert isinstance(reference, list)
    reference[:0] = [{title: f"api/{file}.md"} for file, (title, _) in PAGES.items()]
    text = text.replace("[project]\n", f"[project]\nnav = {inline(found)}\n", 1)
    tomllib.loads(text)
    return text


def inline(value: object) -> str:
    """A value as TOML on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {inline(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value)


def use_our_shim(site: Path) -> None:
    """Replaces the script that offline mode loads from a server by the one beside this file."""
    shutil.copyfile(HERE / "worker.js", site / "assets" / "javascripts" / "worker.js")
    for file in site.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        up = "../" * (len(file.relative_to(site).parts) - 1)
        file.write_text(text.replace(SHIM, f"{up}assets/javascripts/worker.js"), encoding="utf-8")


if __name__ == "__main__":
    main()
