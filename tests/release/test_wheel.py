"""The wheel: its tags, contents and SBOM, what it needs from the system, and that a second build gives the same bytes."""

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from build import COMPATIBILITY, ROOT, build_wheel, copy_checkout, tool
from elftools.elf.elffile import ELFFile

pytestmark = pytest.mark.timeout(5400)

WHEEL_MAX_BYTES = 4 << 20
EXTENSION = "rustload/_rustload.abi3.so"


def pythons() -> list[str]:
    """The interpreters of this machine that the wheel is for."""
    found = filter(None, (shutil.which(f"python3.{minor}") for minor in range(11, 15)))
    # A shim of pyenv may stand for a version that is not selected.
    return [
        path
        for path in found
        if not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode
    ]


@pytest.fixture(scope="session")
def archive(wheel: Path) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(wheel) as opened:
        yield opened


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_the_tags_say_every_python_from_3_11_on_and_an_old_glibc(wheel):
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["version"]
    assert wheel.name == f"rustload-{version}-cp311-abi3-{COMPATIBILITY}_x86_64.whl"
    shown = re.sub(r"\s+", " ", run(tool("auditwheel"), "show", wheel))
    assert f'consistent with the following platform tag: "{COMPATIBILITY}_x86_64"' in shown


def test_the_extension_uses_only_the_stable_abi(wheel):
    run(tool("abi3audit"), "--strict", wheel)


def test_metadata_and_layout_are_accepted(wheel):
    run(tool("twine"), "check", "--strict", wheel)
    run(tool("check-wheel-contents"), wheel)


def test_the_wheel_is_small_and_has_no_debug_info(wheel, archive):
    assert wheel.stat().st_size < WHEEL_MAX_BYTES
    elf = ELFFile(io.BytesIO(archive.read(EXTENSION)))
    sections = {section.name for section in elf.iter_sections()}
    assert not {name for name in sections if name.startswith(".debug")}
    assert ".symtab" in sections, "a backtrace shows the names of functions"


def test_every_file_of_the_package_is_in_the_wheel(archive):
    tracked = run("git", "-C", ROOT, "ls-files", "-z", "--", "python/rustload").split("\0")
    expected = {name.removeprefix("python/") for name in tracked if name}
    assert {"rustload/py.typed", "rustload/_rustload.pyi"} < expected
    present = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert present == expected | {EXTENSION}


def test_the_licenses_and_the_sbom_are_inside(archive):
    names = {name.split(".dist-info/")[1] for name in archive.namelist() if ".dist-info/" in name}
    assert {"licenses/LICENSE-APACHE", "licenses/LICENSE-MIT", "sboms/rustload.cyclonedx.json"} < names
    (name,) = (name for name in archive.namelist() if name.endswith(".cyclonedx.json"))
    sbom = json.loads(archive.read(name))
    assert sbom["bomFormat"] == "CycloneDX"
    locked = (ROOT / "Cargo.lock").read_text()
    for component in sbom["components"]:
        assert f'name = "{component["name"]}"\nversion = "{component["version"]}"' in locked
    assert {"pyo3", "rustix", "serde_json"} <= {component["name"] for component in sbom["components"]}


def test_no_path_of_this_machine_is_inside(archive):
    cargo = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    for name in archive.namelist():
        content = archive.read(name)
        for path in (str(ROOT), cargo, "/pytest-of-"):
            assert path.encode() not in content, (name, path)


def test_record_has_the_hash_of_every_file(archive):
    """The SBOM is changed after maturin has written RECORD."""
    record = next(name for name in archive.namelist() if name.endswith("/RECORD"))
    rows = list(csv.reader(io.StringIO(archive.read(record).decode())))
    assert {row[0] for row in rows} == set(archive.namelist())
    for name, digest, size in rows:
        if name != record:
            content = archive.read(name)
            hashed = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, int(size)) == (f"sha256={hashed}", len(content)), name


@pytest.mark.skipif("RUSTLOAD_WHEEL" in os.environ, reason="the wheel was built elsewhere")
def test_a_second_build_in_another_folder_gives_the_same_bytes(wheel, tmp_path):
    checkout = copy_checkout(tmp_path / "a folder with spaces/and a longer path")
    again = build_wheel(checkout, tmp_path / "dist", tmp_path / "target")
    assert again.name == wheel.name
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as two:
        differ = [name for name in one.namelist() if one.read(name) != two.read(name)]
    assert not differ
    assert again.read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("python", pythons())
def test_a_newcomer_has_a_first_tensor_in_less_than_a_minute(wheel, python):
    script = Path(__file__).with_name("newcomer.py")
    done = subprocess.run(
        [python, script, "--find", wheel.parent, "--limit", "60"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_wheel_passes_tests_of_the_package(wheel, tmp_path):
    """Those of memory, lifetimes and threads: what the linker of release builds may change. With the packages of `make test`."""
    python = ROOT / ".venv/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", tmp_path, wheel)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    imported = [python, "-c", "import rustload; print(rustload.__file__)"]
    assert str(tmp_path) in subprocess.check_output(imported, env=environment, text=True)
    tests = [
        ROOT / "tests/python" / name for name in ("test_dlpack.py", "test_lifetime.py", "test_errors.py")
    ]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
