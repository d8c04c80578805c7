"""The cases of `fuzz/manifests.py`: flipped bits of files, manifests and answers of stores."""

from pathlib import Path

import pytest
from support import module_of


def _run(seed: int, count: int, folder: Path, *, one_bit: bool) -> dict[str, int]:
    found: dict[str, int] = module_of("fuzz/manifests.py").run(seed, count, folder, one_bit=one_bit)
    return found


@pytest.mark.project
def test_of_ten_thousand_flipped_bits_none_is_returned(tmp_path):
    found = _run(1, 10_000, tmp_path, one_bit=True)
    assert sum(number for what, number in found.items() if what != "wrong answers") == 10_000
    assert found["wrong answers"] > 2500


def test_changes_of_files_manifests_and_answers_return_what_was_listed(tmp_path):
    found = _run(2, 600, tmp_path, one_bit=False)
    assert found["file: refused"] > 100
    assert found["manifest: refused"] > 100
    assert found["answer: refused"] > 50
