"""Workflows, the action, and the conda recipe: valid by their schemas, and without known weaknesses. Nothing is fetched."""

import subprocess

import pytest
from build import ROOT, tool

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))


def run(*command) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_zizmor_finds_no_weakness():
    run(tool("zizmor"), "--offline", "--pedantic", "--no-progress", ".")


@pytest.mark.parametrize(("schema", "files"), [
    ("vendor.github-workflows", WORKFLOWS),
    ("custom.github-workflows-require-timeout", WORKFLOWS),
    ("vendor.dependabot", [ROOT / ".github/dependabot.yml"]),
    ("vendor.github-actions", sorted(ROOT.glob("action.yml"))),
])  # fmt: skip
def test_files_of_github_fit_their_schemas(schema, files):
    if not files:
        pytest.skip("there is no such file")
    run(tool("check-jsonschema"), "--builtin-schema", schema, *files)


@pytest.mark.parametrize("platform", ["linux-64", "linux-aarch64"])
def test_the_conda_recipe_renders(platform):
    from rattler_build import PlatformConfig, RenderConfig, Stage0Recipe, VariantConfig

    recipe = Stage0Recipe.from_file(str(ROOT / "recipe/recipe.yaml"))
    variants = VariantConfig({
        "c_compiler": ["gcc"], "c_stdlib": ["sysroot"], "c_stdlib_version": ["2.28"], "rust_compiler": ["rust"],
    })  # fmt: skip
    config = RenderConfig(
        PlatformConfig(target_platform=platform, build_platform="linux-64", host_platform=platform)
    )
    (rendered,) = recipe.render(variants, config)
    text = str(rendered.recipe.to_dict())
    for part in ("python-abi3", "maturin", "rust_" + platform, "THIRDPARTY.yml"):
        assert part in text
