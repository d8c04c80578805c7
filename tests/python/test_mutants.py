"""The planted faults of `make mutants` fit the sources, and `make test` runs the tests that catch them."""

from pathlib import Path
from typing import Any

import pytest
from support import module_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def faults() -> Any:
    return module_of("tests/mutants/run.py").faults()


def test_the_text_of_each_planted_fault_is_in_its_file_once(faults):
    assert len(faults) > 100
    for fault in faults:
        assert fault.planted((ROOT / fault.file).read_text()) != fault.original


def test_make_test_runs_the_tests_that_faults_name(faults, pytestconfig):
    [elsewhere] = [one.PROJECT for one in pytestconfig.pluginmanager.get_plugins() if hasattr(one, "PROJECT")]
    assert elsewhere == {path.name for path in Path(__file__).parent.iterdir() if path.name in elsewhere}
    for fault in faults:
        assert not [file for file in elsewhere for tests in fault.tests if file in tests], fault.id


def test_the_tests_that_faults_name_exist(faults):
    """A Rust test by its module, or by its module and name; a Python one by its file."""
    for fault in faults:
        for kind, _, named in (tests.partition(" ") for tests in fault.tests):
            if kind == "python":
                files = [one for one in named.split() if one.endswith(".py")]
                assert files, fault.id
                assert all((ROOT / one).is_file() for one in files), fault.id
                continue
            *modules, last = named.split("::")
            room = ROOT.joinpath("src" if kind == "unit" else "tests/rust", *modules)
            sources = [room / f"{last}.rs", room / last / "mod.rs"]
            is_module = any(one.is_file() for one in sources)
            inside = [*room.glob("tests.rs"), room.with_suffix(".rs"), *room.parent.rglob("*.rs")]
            assert is_module or any(f"fn {last}" in one.read_text() for one in inside if one.is_file()), (
                fault.id
            )
