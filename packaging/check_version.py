"""Checks that a release has one version: `check_version.py v0.1.0` compares the tag, Cargo.toml, the recipe and CHANGELOG.md."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def faults(tag: str) -> list[str]:
    """What does not have the tag's version."""
    version = tag.removeprefix("v")
    found = {
        "Cargo.toml": tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"],
        "recipe/recipe.yaml": recipe_version(),
    }
    wrong = [f"{file} has version {other}" for file, other in found.items() if other != version]
    if not re.search(rf"^## {re.escape(version)} ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE):
        wrong.append(f"CHANGELOG.md has no section '## {version} (date)'")
    return wrong


def recipe_version() -> str:
    """The version in the recipe's context."""
    found = re.search(r'^  version: "(.+)"$', (ROOT / "recipe/recipe.yaml").read_text(), re.MULTILINE)
    return found[1] if found else "none"


if __name__ == "__main__":
    found = faults(sys.argv[1])
    sys.exit("\n".join(f"{sys.argv[1]}: {fault}" for fault in found) or None)
