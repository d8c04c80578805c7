"""Packaging: what can be checked of releases without building one. `make release-check` does the rest."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
CARGO = tomllib.loads((ROOT / "Cargo.toml").read_text())
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements(name: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_wheels_have_names_of_functions_and_no_debug_info():
    assert PYPROJECT["tool"]["maturin"]["profile"] == "dist"
    dist = CARGO["profile"]["dist"]
    assert (dist["inherits"], dist["strip"], dist["debug"]) == ("release", "debuginfo", False)


def test_one_extension_is_for_all_pythons_and_one_for_free_threaded_ones():
    features = CARGO["dependencies"]["pyo3"]["features"]
    assert features == ["abi3-py311", "abi3t-py315"]
    assert PYPROJECT["project"]["requires-python"] == ">=3.11"


def test_tools_have_one_exact_version():
    release, test = requirements("release.txt"), requirements("test.txt")
    for name in release.keys() & test.keys():
        assert release[name] == test[name], name
    (built_with,) = PYPROJECT["build-system"]["requires"]
    assert built_with == "maturin==" + ".".join(release["maturin"].split(".")[:2]) + ".*"


@pytest.mark.parametrize("path", [*WORKFLOWS, *ROOT.glob("action.yml")], ids=lambda path: path.name)
def test_actions_are_pinned_by_commit(path):
    used = re.findall(r"uses: (\S+)(.*)", path.read_text())
    assert used
    for action, comment in used:
        if action.startswith("./"):
            continue
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", action), action
        assert re.match(r" # v\d", comment), f"{action} has no version beside it"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_no_permissions_by_default_and_no_secrets(path):
    text = path.read_text()
    assert "\npermissions: {}\n" in text
    assert "secrets." not in text
    assert "pull_request_target" not in text


def test_wheels_are_kept_before_other_packages_run_beside_them():
    text = (ROOT / ".github/workflows/release.yml").read_text()
    job = text[text.index("\n  linux:") : text.index("\n  macos:")]
    steps = re.findall(r"name: dist-\$|newcomer\.py|docker run", job)
    assert steps == ["name: dist-$", "newcomer.py", "docker run", "newcomer.py"]
    assert all(volume.endswith(":ro") for volume in re.findall(r'--volume "([^"]+)"', text))


def test_both_workflows_use_one_version_of_rust():
    versions = {re.search(r'RUST_VERSION: "(.+)"', path.read_text())[1] for path in WORKFLOWS}
    assert len(versions) == 1
    assert tuple(map(int, versions.pop().split(".")[:2])) >= tuple(
        map(int, CARGO["package"]["rust-version"].split("."))
    )


def addresses(tag: str) -> list[str]:
    """What stops a release until the project has a public address."""
    found = []
    if "repository" not in CARGO["package"]:
        found.append(f"{tag}: Cargo.toml has no repository")
    if "urls" not in PYPROJECT["project"]:
        found.append(f"{tag}: pyproject.toml has no [project.urls] with Repository and Documentation")
    return found


def test_a_release_has_one_version():
    script = ROOT / "packaging/check_version.py"

    def check(tag):
        return subprocess.run([sys.executable, script, tag], capture_output=True, text=True, check=False)

    version = CARGO["package"]["version"]
    wrong = check("v999.0.0")
    assert wrong.returncode == 1
    assert wrong.stderr.splitlines() == [
        f"v999.0.0: Cargo.toml has version {version}",
        f"v999.0.0: recipe/recipe.yaml has version {version}",
        "v999.0.0: CHANGELOG.md has no section '## 999.0.0 (date)'",
        *addresses("v999.0.0"),
    ]
    # Until the release of this version, its section is still called Unreleased.
    found = check(f"v{version}").stderr.splitlines()
    assert [line for line in found if "CHANGELOG" not in line] == addresses(f"v{version}")
