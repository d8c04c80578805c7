"""Pages that are generated from the code are current, and links between pages resolve."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("name", ["errors", "limits", "attacks"])
def test_a_generated_page_is_current(name):
    generator = runpy.run_path(str(ROOT / "docs" / f"make_{name}.py"))
    assert generator["PAGE"].read_text(encoding="utf-8") == generator["page"](), (
        f"run python docs/make_{name}.py"
    )


@pytest.mark.parametrize("name", ["benchmarks", "memory"])
def test_a_picture_shows_the_figures_of_its_page(name):
    generator = runpy.run_path(str(ROOT / "docs" / "make_pictures.py"))
    shown = (generator["PICTURES"] / f"{name}.svg").read_text(encoding="utf-8")
    assert shown == generator["DRAWN"][name](), "run python docs/make_pictures.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_resolve(page):
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", text):
        linked = (page.parent / target) if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            anchors = [re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in headings(linked)]
            assert anchor in anchors, f"{page.name} links to {target}#{anchor}"


def headings(page):
    return re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_page_on_unsafe_code_names_the_registered_files():
    rust = (ROOT / "tests" / "rust" / "layers.rs").read_text(encoding="utf-8")
    register = re.search(r"const UNSAFE_FILES: &\[&str\] = &\[(.*?)\n\];", rust, re.DOTALL)[1]
    table = (ROOT / "docs" / "internals" / "unsafe.md").read_text(encoding="utf-8").partition("|---|")[2]
    first = "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))
    assert set(re.findall(r"`(.*?)`", first)) == set(re.findall(r'^ {4}"(.*?)",$', register, re.MULTILINE))
