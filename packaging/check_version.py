"""Checks a release: `check_version.py v0.1.0` compares the version of the tag, Cargo.toml, the recipe and CHANGELOG.md.

Also that the package and the crate say where the project is, since links of a wheel's README lead nowhere else.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def faults(tag: str) -> list[str]:
    """What does not have the tag's version, or no address."""
    version = tag.removeprefix("v")
    crate = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = {
        "Cargo.toml": crate["version"],
        "recipe/recipe.yaml": recipe_version(),
    }
    wrong = [f"{file} has version {other}" for file, other in found.items() if other != version]
    if not re.search(rf"^## {re.escape(version)} ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        wrong.append(f"CHANGELOG.md has no section '## {version} (date)'")
    if "repository" not in crate:
        wrong.append("Cargo.toml has no repository")
    if not {"Repository", "Documentation"} <= project.get("urls", {}).keys():
        wrong.append("pyproject.toml has no [project.urls] with Repository and Documentation")
    return wrong


def recipe_version() -> str:
    """The version in the recipe's context."""
    found = re.search(r'^  version: "(.+)"$', (ROOT / "recipe/recipe.yaml").read_text(), re.MULTILINE)
    return found[1] if found else "none"


if __name__ == "__main__":
    found = faults(sys.argv[1])
    sys.exit("\n".join(f"{sys.argv[1]}: {fault}" for fault in found) or None)
