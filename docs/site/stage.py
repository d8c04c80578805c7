"""Copies the documentation to a folder that zensical can build, with links rewritten to where each page will be.

The Markdown in the repository is written for GitHub. In the site, `docs/` is the root, `docs/README.md` is the first page, the
pages beside the folder are under `project/`, and a link to any other file of the repository leads to a page that shows that file.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<=\]\()(?!https?:|#)(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
NOTED_FENCE = re.compile(r"^```python .+$", re.MULTILINE)
SHOWN = {".py": "python", ".rs": "rust", ".toml": "toml", ".txt": "text", ".yaml": "yaml", ".yml": "yaml"}


class Stage:
    """The files to build from.

    Attributes:
        folder: Where they are written.
        wanted: Files and folders of the repository that pages link to, to where they are in the site.
    """

    def __init__(self, folder: Path) -> None:
        """Empties `folder`."""
        shutil.rmtree(folder, ignore_errors=True)
        self.folder = folder
        self.wanted: dict[str, str] = {}

    def add_pages(self, generated: dict[str, str]) -> None:
        """Writes all pages, what they link to, and the pages in `generated`, by their path in the site."""
        for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]):
            self._add(page.relative_to(ROOT).as_posix())
        done: set[str] = set()
        while missing := self.wanted.keys() - done:
            for source in sorted(missing):
                self._add(source)
            done |= missing
        for target, text in generated.items():
            self._write(target, text)

    def _add(self, source: str) -> None:
        path, target = ROOT / source, place(source)
        if path.is_dir():
            self._write(target, self._listing(source))
        elif path.suffix == ".md":
            self._write(target, self._rewritten(path.read_text(encoding="utf-8"), source))
        elif path.suffix in SHOWN:
            code = path.read_text(encoding="utf-8")
            self._write(target, f"# {source}\n\n````{SHOWN[path.suffix]}\n{code}````\n")
        else:
            (self.folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, self.folder / target)

    def _listing(self, source: str) -> str:
        """A page in place of a folder's listing on GitHub."""
        lines = [f"# {PurePosixPath(source).name.capitalize()}\n"]
        for file in sorted((ROOT / source).iterdir(), reverse=source == "docs/explain/decisions"):
            if file.suffix == ".md" or file.suffix in SHOWN:
                title = file.name
                if file.suffix == ".md":
                    heading = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
                    title = f"{file.name[:10]}: {heading}"
                lines.append(f"- [{title}]({file.name})")
        return self._rewritten("\n".join(lines) + "\n", f"{source}/README.md")

    def _rewritten(self, text: str, source: str) -> str:
        here = place(source)
        code = [match.span() for match in CODE.finditer(text)]

        def link(match: re.Match[str]) -> str:
            if any(start <= match.start() < end for start, end in code):
                return match[0]
            found = os.path.normpath(PurePosixPath(source).parent / match["target"])
            if not (ROOT / found).exists():
                raise SystemExit(f"{source} links to {match['target']}, which does not exist")
            self.wanted[found] = place(found)
            relative = os.path.relpath(place(found), PurePosixPath(here).parent)
            return relative + (match["anchor"] or "")

        return NOTED_FENCE.sub("```python", LINK.sub(link, text))

    def _write(self, target: str, text: str) -> None:
        path = self.folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def place(source: str) -> str:
    """Where a file of the repository is in the site."""
    path = PurePosixPath(source)
    if (ROOT / source).is_dir():
        path = path / "README.md"
    if path.parts[0] == "docs":
        path = path.relative_to("docs")
    elif len(path.parts) == 1 and path.suffix == ".md":
        path = PurePosixPath("project", path.name.lower())
    else:
        path = "files" / path
    if path.name == "README.md":
        path = path.with_name("index.md")
    return f"{path}.md" if path.suffix in SHOWN else str(path)


def nav(text: str) -> list[dict[str, object]]:
    """The navigation: the lists of docs/README.md under their headings."""
    found: list[dict[str, object]] = [{"Overview": "index.md"}]
    for section in text.split("\n## ")[1:]:
        heading, _, body = section.partition("\n")
        items = re.findall(r"^- \[([^\]]+)\]\(([^)]+)\)", body, re.MULTILINE)
        if items:
            found.append({heading: [{title: place(os.path.normpath(f"docs/{to}"))} for title, to in items]})
    return found
