"""Every input of the attack matrix: what a load answers, what it costs, and that nothing of it runs."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import pytest
from attacks import CASES, IDS, Case
from attacks.registry import Fails, Kept, Opens, Refused, Shown

from rustload import _rustload

ROOT = Path(__file__).resolve().parents[3]
FILES = [case for case in CASES if not isinstance(case.load, Shown)]
CLASSES = {
    "Io": "FileNotFoundError", "Format": "FormatError", "Unsupported": "UnsupportedError", "Disallowed": "DisallowedError",
    "Limit": "LimitError", "Buffer": "BufferError", "Memory": "MemoryError",
}  # fmt: skip
CLASS_OF = {code: CLASSES.get(kind, "") for code, kind, _, _ in _rustload.CODES}

SECONDS = 2.0
MIB = 1 << 20


def size_of(source: Path) -> int:
    return source.stat().st_size if source.is_file() and not str(source).startswith(("/dev", "/proc")) else 0


def assert_nothing_ran(said: dict, prober) -> None:
    assert "died" not in said, f"the process ended with {said['died']}"
    assert list(prober.canary.iterdir()) == []
    strange = [
        name
        for name in said["modules"]
        if not name.startswith(("rustload", "encodings", "collections", "attacks"))
    ]
    assert strange == []
    assert said.get("code") != "InternalError", said["text"]


def answer(case: Case, source: Path, prober) -> dict:
    said = prober.ask(source, label=case.label, **case.options)
    assert_nothing_ran(said, prober)
    return said


@pytest.mark.parametrize("case", FILES, ids=lambda case: case.label)
def test_loads(case: Case, folder: Path, prober):
    source = case.make(folder)
    said = answer(case, source, prober)
    load, got = (
        case.load,
        (said["stage"], said.get("error"), said.get("code"), said.get("limit"), said.get("text")),
    )
    if isinstance(load, Refused):
        assert got[:4] == ("open", CLASS_OF[load.code], load.code, load.limit), got
        assert said["notes_of"] or not next_step(load.code), "the advice is missing"
    elif isinstance(load, Fails):
        assert said["stage"] in ("look", "export"), got
        assert got[2:4] == (load.code, load.limit), got
    elif isinstance(load, Kept):
        assert said["stage"] == "done", got
        assert load.class_name in said["globals"] or any(load.class_name in note for note in said["notes"])
        strict = prober.ask(source, unknown="error", **case.options)
        assert_nothing_ran(strict, prober)
        assert (strict["stage"], strict["error"], strict["code"]) == ("open", "DisallowedError", load.code), (
            strict
        )
    else:
        assert isinstance(load, Opens)
        assert said["stage"] == "done", got
    check_cost(case, source, said, prober)


def next_step(code: str) -> str:
    return next(then for found, _, _, then in _rustload.CODES if found == code)


def check_cost(case: Case, source: Path, said: dict, prober) -> None:
    """The memory law, and two seconds of CPU for the load and for the export.

    A timing gets a second and a third chance, and a machine that runs more than it has cores for gets as much more.
    """
    metadata = max(size_of(source), case.metadata)
    # The pickle limit bounds what is read of a file, whatever its size.
    bound = 64 * MIB + 40 * min(metadata, 1 << 28) + 512 * max(said.get("count", 0), case.tensors)
    assert said["load"]["peak"] <= bound, f"{said['load']['peak'] >> 20} MiB, the law allows {bound >> 20}"
    allowed = SECONDS * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
    for what in ("load", "export"):
        seconds = [said.get(what, {}).get("seconds", 0)]
        while seconds[-1] > allowed and len(seconds) < 3:
            again = prober.ask(source, again=True, **case.options)
            seconds.append(again.get(what, {}).get("seconds", 0))
        if _rustload.DEBUG:
            continue
        # A handle is a Python object of some microseconds; the limit `tensors` bounds how many there are.
        handles = 5e-6 * said.get("count", 0) if what == "export" else 0
        assert min(seconds) <= allowed + handles, f"{what}: {seconds}"


def test_all_ids_of_the_matrix_are_here():
    assert len(IDS) == 271
    assert {case.id for case in CASES} == set(IDS)
    labels = [case.label for case in CASES]
    assert len(labels) == len(set(labels))
    assert all(IDS.values())
    letters = {letter: sum(ident.startswith(letter) for ident in IDS) for letter in "AZPCRTLSY"}
    assert letters == {"A": 18, "Z": 51, "P": 56, "C": 30, "R": 17, "T": 36, "L": 24, "S": 30, "Y": 9}


@pytest.mark.parametrize(
    "case", [case for case in CASES if isinstance(case.load, Shown)], ids=lambda case: case.label
)
def test_what_is_shown_elsewhere_is_there(case: Case):
    assert isinstance(case.load, Shown)
    file, _, name = case.load.test.partition("::")
    path = ROOT / file if file.startswith("tests/") else Path(__file__).with_name(file)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        assert name in {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    else:
        assert re.search(rf"#\[test\]\s*fn {name}\b", text)


@pytest.mark.parametrize(
    "case",
    [case for case in FILES if isinstance(case.build, bytes) or not case.placed][:80],
    ids=lambda case: case.label,
)
def test_an_input_is_the_same_each_time(case: Case, tmp_path: Path):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = case.make(tmp_path / "one"), case.make(tmp_path / "two")
    assert one.read_bytes() == two.read_bytes()
