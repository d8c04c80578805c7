"""Every input of the attack matrix: the outcome of a load, its cost, and that no payload executes."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from attacks import CASES, IDS, Case
from attacks.registry import Fails, Kept, Opens, Refused, Shown
from quiet import crowding, within

from rustload import _rustload

ROOT = Path(__file__).resolve().parents[3]
FILES = [case for case in CASES if not isinstance(case.load, Shown)]
CLASSES = {
    "Io": "FileNotFoundError", "Format": "FormatError", "Unsupported": "UnsupportedError", "Disallowed": "DisallowedError",
    "Limit": "LimitError", "Buffer": "BufferError", "Memory": "NotEnoughMemoryError",
}  # fmt: skip
CLASS_OF = {code: CLASSES.get(kind, "") for code, kind, _, _ in _rustload.CODES}

SECONDS = 2.0
MIB = 1 << 20


def size_of(source: Path | list[Path]) -> int:
    if isinstance(source, list):
        return sum(map(size_of, source))
    return source.stat().st_size if source.is_file() and not str(source).startswith(("/dev", "/proc")) else 0


def assert_nothing_ran(outcome: dict, prober) -> None:
    assert "died" not in outcome, f"the process ended with {outcome['died']}"
    assert list(prober.canary.iterdir()) == []
    strange = [
        name
        for name in outcome["modules"]
        if not name.startswith(("rustload", "encodings", "collections", "attacks"))
    ]
    assert strange == []
    assert outcome.get("code") != "InternalError", outcome["text"]


def ask(case: Case, source: Path, prober) -> dict:
    outcome = prober.ask(source, label=case.label, **case.options)
    assert_nothing_ran(outcome, prober)
    return outcome


@pytest.mark.parametrize("case", FILES, ids=lambda case: case.label)
def test_loads(case, folder, prober):
    source = case.input(folder)
    outcome = ask(case, source, prober)
    load, got = (
        case.load,
        (
            outcome["stage"],
            outcome.get("error"),
            outcome.get("code"),
            outcome.get("limit"),
            outcome.get("text"),
        ),
    )
    if isinstance(load, Refused):
        assert got[:4] == ("open", CLASS_OF[load.code], load.code, load.limit), got
        assert outcome["notes_of"] or not next_step(load.code), "the advice is missing"
    elif isinstance(load, Fails):
        assert outcome["stage"] in ("look", "export"), got
        assert got[2:4] == (load.code, load.limit), got
    elif isinstance(load, Kept):
        assert outcome["stage"] == "done", got
        assert load.class_name in outcome["globals"] or any(
            load.class_name in note for note in outcome["notes"]
        )
        strict = prober.ask(source, unknown="error", **case.options)
        assert_nothing_ran(strict, prober)
        assert (strict["stage"], strict["error"], strict["code"]) == ("open", "DisallowedError", load.code), (
            strict
        )
    else:
        assert isinstance(load, Opens)
        assert outcome["stage"] == "done", got
    check_cost(case, source, outcome, prober)


def next_step(code: str) -> str:
    return next(then for found, _, _, then in _rustload.CODES if found == code)


def check_cost(case: Case, source: Path, outcome: dict, prober) -> None:
    """The memory bound, and two seconds of CPU for the load and for the export.

    A slow timing is repeated up to twice, and on an overloaded machine the allowance grows with its load average.
    """
    metadata = max(size_of(source), case.metadata)
    # The limit `pickle_bytes` bounds what is read of a file, whatever its size.
    bound = 64 * MIB + 40 * min(metadata, 1 << 28) + 512 * max(outcome.get("count", 0), case.tensors)
    assert outcome["load"]["peak"] <= bound, (
        f"{outcome['load']['peak'] >> 20} MiB, the bound is {bound >> 20}"
    )
    allowed = SECONDS * crowding()
    for what in ("load", "export"):
        seconds = [outcome.get(what, {}).get("seconds", 0)]
        while seconds[-1] > allowed and len(seconds) < 3:
            repeated = prober.ask(source, again=True, **case.options)
            seconds.append(repeated.get(what, {}).get("seconds", 0))
        if _rustload.DEBUG:
            continue
        # Creating a handle takes some microseconds; the limit `tensors` bounds how many there are.
        handles = 5e-6 * outcome.get("count", 0) if what == "export" else 0
        assert within(min(seconds), allowed + handles), f"{what}: {seconds}"


def test_every_id_of_the_matrix_has_a_case():
    assert {case.id for case in CASES} == set(IDS)
    labels = [case.label for case in CASES]
    assert len(labels) == len(set(labels))
    assert all(IDS.values())
    # X: found in later rounds, numbered with gaps.
    letters = Counter(ident[0] for ident in IDS if not ident.startswith("X"))
    assert letters == {
        "A": 19,
        "Z": 53,
        "P": 56,
        "C": 31,
        "R": 19,
        "T": 38,
        "L": 25,
        "D": 26,
        "E": 27,
        "S": 33,
        "N": 23,
        "Q": 8,
        "W": 12,
        "V": 10,
        "Y": 9,
    }


@pytest.mark.parametrize(
    "case", [case for case in CASES if isinstance(case.load, Shown)], ids=lambda case: case.label
)
def test_a_case_shown_elsewhere_names_a_test_that_exists(case):
    assert isinstance(case.load, Shown)
    file, _, name = case.load.test.partition("::")
    path = ROOT / file if file.startswith("tests/") else Path(__file__).with_name(file)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        assert name in {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
    else:
        assert re.search(rf"#\[test\]\s*fn {name}\b", text)


@pytest.mark.parametrize(
    "case", [case for case in FILES if not case.placed][::20], ids=lambda case: case.label
)
def test_a_file_of_the_corpus_is_what_its_case_builds_again(case, tmp_path):
    kept = case.input(tmp_path)
    assert kept.read_bytes() == case.data()
    assert not kept.stat().st_mode & 0o222
    assert [path.name for path in kept.parent.iterdir()] == [case.filename]
