"""The error catalogue: every code has a text, tested word for word, with its class, its place and its next step."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from rustload import _rustload
from rustload.errors import _CLASSES

ROOT = Path(__file__).resolve().parents[2]
MADE = runpy.run_path(str(ROOT / "tests/data/make_error_texts.py"))
KIND_OF = {code: kind for code, kind, _, _ in _rustload.CODES}
CALLERS = ("Value", "Index", "Type")
"""Wrong arguments, of which the message says all there is to say."""
OWN = {"Io": "FileNotFoundError", "ModelMismatch": "ModelMismatchError"}
"""Codes with a class of their own beneath that of their kind."""
ON_FILE = {
    block.partition("\n")[0]: block.partition("\n")[2]
    for block in MADE["PAGE"].read_text(encoding="utf-8").rstrip("\n").split("\n\n")[1:]
}


def test_every_code_is_on_file_or_shown_elsewhere():
    assert ON_FILE.keys() == KIND_OF.keys() - MADE["ELSEWHERE"].keys()
    for path in MADE["ELSEWHERE"].values():
        assert (ROOT / path).is_file()


@pytest.mark.parametrize("code", ON_FILE)
def test_an_error_says_what_is_on_file(code):
    expected = ON_FILE[code] + "\n"
    assert MADE["text_of"](code) == expected
    kind, message, *notes = (line.strip() for line in expected.splitlines())
    assert kind == OWN.get(code, _CLASSES.get(KIND_OF[code], OSError).__name__)
    assert not message.endswith(".")
    assert notes or code in CALLERS, "there is no next step"
    assert not any(word in expected.lower() for word in ("malicious", "safe ", "unsafe", "dangerous"))


def test_every_code_has_a_meaning_and_a_next_step():
    for code, kind, meaning, then in _rustload.CODES:
        assert meaning.endswith("."), code
        assert then.endswith(".") or code in CALLERS, code
        assert kind in (*_CLASSES, "Io")


def test_every_limit_that_the_matrix_meets_is_named_with_its_override():
    for name, _, _ in _rustload.LIMITS:
        assert name.islower()
    assert "limits=rustload.Limits(" in ON_FILE["Limit"]
