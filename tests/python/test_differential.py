"""Differential tests against CPython's unpicklers and torch's restricted one; `make fuzz` runs them for longer."""

import importlib
import importlib.util
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from support import coded, module_of, repacked, saved


@pytest.fixture(scope="module")
def differential() -> Any:
    return module_of("fuzz/differential.py")


@pytest.mark.parametrize("target", ["cpython", "weights_only"])
def test_seeds_and_their_mutations_are_read_alike(differential, target):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of protocols that it still reads
        runs, compared = differential.loop(target, seed=1, seconds=4.0)
    assert runs >= len(differential.inputs(target, []))
    assert compared >= 10, f"of {runs} inputs only {compared} were read by both"


def test_reduce_calls_only_a_global_or_the_result_of_a_call():
    import rustload

    for callable_ in (b")", b"]", b"K\x01", b"X\x01\0\0\0a"):
        with coded(rustload.FormatError, "PickleType"):
            rustload.open(bytearray(b"\x80\x02" + callable_ + b")R."))


def test_reduce_refuses_to_call_a_persistent_id():
    import rustload

    with coded(rustload.FormatError, "PersistentId"):
        rustload.open(bytearray(b"\x80\x02X\x01\0\0\0aQ)R."))


def test_a_conjugate_flag_that_is_false_is_refused():
    # torch looks at the key and not at the value; no writer stores False.
    import re

    import torch

    import rustload

    data = saved({"c": torch.ones(2, dtype=torch.complex64).conj()})
    assert rustload.open(data, framework="torch")["c"].materialize().is_conj() is False
    changed = repacked(data, lambda _, part: re.sub(b"(conjq.)\x88", b"\\1\x89", part, flags=re.DOTALL))
    with coded(rustload.UnsupportedError, "TensorMetadata"):
        rustload.open(changed)


@pytest.mark.parametrize("name", ["set", "frozenset", "dict"])
def test_an_unhashable_element_or_key_is_a_format_error(name):
    import rustload

    body = b"](]Nta" if name == "dict" else b"]]a"
    ckpt = rustload.open(bytearray(b"\x80\x02cbuiltins\n" + name.encode() + b"\n(" + body + b"tR."))
    with coded(rustload.FormatError, "PickleType"):
        ckpt.objects  # noqa: B018 - must fail


@pytest.mark.parametrize("form", ["legacy", "zip"])
def test_random_persistent_ids_are_read_as_torch_reads_them(form, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "fuzz")
    persistent_ids = importlib.import_module("persistent_ids")
    found = persistent_ids.loop(seed=16, count=1500, form=form)
    assert "0 differences" in found
    opened, read = (int(number) for number in re.findall(r"(?:reads|opens) ([0-9]+)", found))
    assert opened > 400, found
    assert read > 0.8 * opened, found
