"""Pages that are made from the code are current, and links between pages lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("name", ["errors", "limits", "security"])
def test_a_page_made_from_the_code_is_current(name):
    made = runpy.run_path(str(ROOT / "docs" / f"make_{name}.py"))
    assert made["PAGE"].read_text(encoding="utf-8") == made["page"](), f"run python docs/make_{name}.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        found = (page.parent / target) if target else page
        assert found.exists(), f"{page.name} links to {target}"
        if anchor:
            heads = [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in headings(found)]
            assert anchor in heads, f"{page.name} links to {target}#{anchor}"


def headings(page):
    return re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
