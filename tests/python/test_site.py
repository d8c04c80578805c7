"""What `make docs` builds: the navigation has every page, the reference has every public name, and links lead somewhere."""

import ast
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

from docs.site.api import PAGES, pages
from docs.site.check import check
from docs.site.stage import LINK, Stage, nav, place

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "python"


def test_the_first_page_lists_every_page_once():
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    listed = Counter(
        page
        for section in nav(text)[1:]
        for items in section.values()
        for item in items
        for page in item.values()
    )
    found = [
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("docs/**/*.md")
        if "decisions" not in path.parts
    ]
    found += [path.name for path in ROOT.glob("*.md")]
    assert listed == Counter(
        {place(page) for page in found} - {"index.md"} | {place("docs/explain/decisions")}
    )


def test_the_reference_has_every_public_name_once():
    public = Counter(f"{module}.{name}" for module in public_modules() for name in names_of(module))
    public -= Counter(
        ("rustload.__version__", "rustload.errors")
    )  # a text, and a module with names that are public
    assert Counter(name for _, names in PAGES.values() for name in names) == public
    for text in pages().values():
        assert re.fullmatch(r"# .+\n(\n::: [\w.]+\n)+", text)


def test_the_reference_shows_the_keywords_of_groups():
    griffe = pytest.importorskip("griffe")
    from docs.site.options import Options

    package = griffe.load("rustload", search_paths=[SOURCES], extensions=griffe.Extensions(Options()))
    function = package["_save.convert.convert"]
    assert {"select", "key", "verify", "io"} <= {one.name for one in function.parameters}
    assert str(function.parameters["io"].default) == "'auto'"
    (described,) = (one for one in function.docstring.parse("google") if one.kind.value == "parameters")
    assert [one.name for one in described.value] == [one.name for one in function.parameters]


def public_modules():
    """The package and all modules whose paths have no underscore in front."""
    for path in sorted((SOURCES / "rustload").rglob("*.py")):
        parts = path.relative_to(SOURCES).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts) and parts[-1] != "errors":
            yield ".".join(parts)


def names_of(module):
    """`__all__`, without an import, as some modules need packages that are not installed."""
    path = SOURCES.joinpath(*module.split("."))
    text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{module} has no __all__")


def test_links_of_staged_pages_lead_to_staged_files(tmp_path):
    Stage(tmp_path).add_pages(pages())
    assert (tmp_path / "index.md").is_file()
    links = 0
    for page in tmp_path.rglob("*.md"):
        text = re.sub(
            r"^```.*?^```|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
        )
        for match in LINK.finditer(text):
            assert (page.parent / match["target"]).is_file(), f"{page}: {match['target']}"
            links += 1
    assert links > 200
    assert "compile-only" not in (tmp_path / "reference" / "cuda.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("body", "wrong"), [
    ('<a href="b.html#there">x</a><img src="c.svg"><a href="https://example.org">x</a>', []),
    ('<a href="missing.html">x</a>', ["a.html links to missing.html, which does not exist"]),
    ('<a href="b.html#gone">x</a>', ["a.html links to b.html#gone, which has no such anchor"]),
    ('<script src="https://example.org/x.js"></script>', ["a.html loads https://example.org/x.js"]),
    ('<link rel="stylesheet" href="//example.org/x.css">', ["a.html loads //example.org/x.css"]),
    ('<img src="gone.png">', ["a.html loads gone.png, which does not exist"]),
])  # fmt: skip
def test_the_check_of_a_built_site_finds_dead_links_and_foreign_files(tmp_path, body, wrong):
    (tmp_path / "a.html").write_text(body)
    (tmp_path / "b.html").write_text('<h1 id="there">b</h1>')
    (tmp_path / "c.svg").touch()
    assert check(tmp_path) == wrong


def test_examples_in_docstrings_become_code():
    pytest.importorskip("griffe", reason="requirements/docs.txt is not installed")
    from docs.site.doctests import fenced

    text = "First.\n\n>>> 1 + 1\n2\n\nThen text.\n"
    assert fenced(text) == "First.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThen text.\n"
    assert fenced("none") == "none"
