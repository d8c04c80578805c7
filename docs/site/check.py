"""Checks a built site: links lead to pages and anchors that exist, and no page loads anything from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

LINKED = ("stylesheet", "icon", "preload", "preconnect", "modulepreload")
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}


class Page(HTMLParser):
    """The links, anchors and loaded files of one page."""

    def __init__(self, text: str) -> None:
        """Reads the page."""
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what one element refers to."""
        given = dict(attrs)
        self.anchors.update(filter(None, (given.get("id"), given.get("name"))))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"] or "")
        if tag == "link" and given.get("rel") in LINKED:
            self.loads.append(given.get("href") or "")
        if tag in LOADS and given.get(LOADS[tag]):
            self.loads.append(given[LOADS[tag]] or "")


def check(site: Path) -> list[str]:
    """What is wrong with the site, a line each."""
    pages = {file: Page(file.read_text(encoding="utf-8")) for file in sorted(site.rglob("*.html"))}
    wrong = []
    for file, page in pages.items():
        shown = file.relative_to(site)
        for url in page.loads:
            parts = urlsplit(url)
            if parts.scheme not in ("", "data") or parts.netloc:
                wrong.append(f"{shown} loads {url}")
            elif not parts.scheme and not resolved(site, file, parts.path).is_file():
                wrong.append(f"{shown} loads {url}, which does not exist")
        for url in page.links:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            to = resolved(site, file, parts.path) if parts.path else file
            if to.is_dir():
                to = to / "index.html"
            if not to.is_file():
                wrong.append(f"{shown} links to {url}, which does not exist")
            elif parts.fragment and to in pages and unquote(parts.fragment) not in pages[to].anchors:
                wrong.append(f"{shown} links to {url}, which has no such anchor")
    return wrong


def resolved(site: Path, page: Path, path: str) -> Path:
    """The file that a path in a link leads to; a page for missing addresses has paths from the root of the server."""
    path = unquote(path)
    return site / path.lstrip("/") if path.startswith("/") else (page.parent / path).resolve()
