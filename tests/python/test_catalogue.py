"""The error catalogue: every code has a text, compared word for word, with its class, location and next step."""

import runpy
from pathlib import Path

import pytest

from rustload import _rustload
from rustload.errors import _CLASSES, _Note

ROOT = Path(__file__).resolve().parents[2]
GENERATOR = runpy.run_path(str(ROOT / "tests/data/make_error_texts.py"))
KIND_OF = {code: kind for code, kind, _, _ in _rustload.CODES}
CALLERS = ("Value", "Index", "Type")
"""Codes of wrong arguments, whose message needs no further advice."""
OWN = {"Io": "FileNotFoundError", "TargetExists": "FileExistsError", "ModelMismatch": "ModelMismatchError"}
"""Codes with a subclass of their kind's class."""
RECORDED = {
    block.partition("\n")[0]: block.partition("\n")[2]
    for block in GENERATOR["PAGE"].read_text(encoding="utf-8").rstrip("\n").split("\n\n")[1:]
}


def test_every_code_has_a_recorded_text_or_another_test():
    assert RECORDED.keys() == KIND_OF.keys() - GENERATOR["ELSEWHERE"].keys()
    for path in GENERATOR["ELSEWHERE"].values():
        assert (ROOT / path).is_file()


@pytest.mark.parametrize("code", RECORDED)
def test_an_error_text_equals_the_recorded_one(code):
    expected = RECORDED[code] + "\n"
    assert GENERATOR["text_of"](code) == expected
    kind, message, *notes = (line.strip() for line in expected.splitlines())
    assert kind == OWN.get(code, _CLASSES.get(KIND_OF[code], OSError).__name__)
    assert not message.endswith(".")
    assert notes or code in CALLERS, "there is no next step"
    assert not any(word in expected.lower() for word in ("malicious", "safe ", "unsafe", "dangerous"))


def test_every_code_has_a_meaning_and_a_next_step():
    for code, kind, meaning, then in _rustload.CODES:
        assert meaning.endswith("."), code
        assert _Note(then).endswith(".") or code in CALLERS, code
        assert kind in (*_CLASSES, "Io")


def test_limit_names_are_lower_case_and_the_error_names_the_override():
    for name, _, _ in _rustload.LIMITS:
        assert name.islower()
    assert "limits=rustload.Limits(" in RECORDED["Limit"]
