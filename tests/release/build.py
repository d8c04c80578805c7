"""Builds the wheel as release.yml does, from a copy of the checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPATIBILITY = "manylinux_2_28"


def tool(name: str) -> Path:
    """A program of requirements/release.txt."""
    return Path(sys.executable).with_name(name)


def copy_checkout(folder: Path) -> Path:
    """Copies the files that git tracks or would add."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def build_wheel(checkout: Path, out: Path, target: Path) -> Path:
    """Builds the wheel of a copy of the checkout, as release.yml does."""
    environment = {
        **{
            name: text
            for name, text in os.environ.items()
            if name not in ("RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER")
        },
        "PATH": f"{tool('python').parent}:{os.environ['PATH']}",
        "PYO3_PYTHON": sys.executable,
        "CARGO_TARGET_DIR": str(target),
        "SOURCE_DATE_EPOCH": "1764000000",
    }
    command = [
        checkout / "packaging/build-wheel", out, "--zig", "--compatibility", COMPATIBILITY, "-i", sys.executable
    ]  # fmt: skip
    subprocess.run(command, env=environment, check=True)
    (wheel,) = out.glob("*.whl")
    return wheel
