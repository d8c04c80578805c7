"""Arguments that the extension parses: a value that an argument does not have is an error that lists those it has."""

import pickle
import re

import numpy as np
import pytest
import torch

import rustload
from rustload._rustload import OpenOptions, Request, ScanOptions


@pytest.mark.parametrize(
    ("made", "argument", "allowed"),
    [
        (OpenOptions, "unknown", "'keep' or 'error'"),
        (OpenOptions, "trailing", "'error' or 'ignore'"),
        (OpenOptions, "io", "'auto', 'buffered' or 'direct'"),
        (Request, "overflow", "'nan' or 'saturate'"),
    ],
)
@pytest.mark.parametrize("given", ["other", "", "NAN", "\ud800", None, 3, b"nan"])
def test_an_unknown_word_is_a_value_error_that_lists_the_words(made, argument, allowed, given):
    with pytest.raises(ValueError, match=f"{argument}= is {allowed}, not ") as error:
        made(**{argument: given})
    assert error.value.code == "Value"


@pytest.mark.parametrize(
    ("argument", "given", "kind"),
    [
        ("copy", 1, TypeError),
        ("copy", "yes", TypeError),
        ("threads", 0, ValueError),
        ("threads", -1, ValueError),
        ("threads", "2", TypeError),
        ("threads", 1.5, TypeError),
        ("transpose", 1, TypeError),
        ("transpose", "ij", TypeError),
        ("transpose", (1.0, 0), TypeError),
        ("transpose", ["a"], TypeError),
        ("dtype", "float17", ValueError),
        ("dtype", int, TypeError),
    ],
)
def test_a_wrong_argument_of_a_request_is_an_error(argument, given, kind):
    with pytest.raises(kind, match=argument):
        Request(**{argument: given})


def test_limits_of_another_type_are_a_type_error():
    for made in (OpenOptions, ScanOptions):
        with pytest.raises(TypeError, match=r"limits= is a rustload\.Limits, not \{\}"):
            made(limits={})


def test_a_request_keeps_what_it_is_given_and_changes_in_copies():
    plain = Request()
    assert (plain.dtype, plain.transpose, plain.copy, plain.overflow, plain.threads) == (
        None,
        None,
        None,
        "nan",
        None,
    )
    made = Request(dtype=torch.bfloat16, transpose=(1, 0), copy=True, overflow="saturate", threads=1 << 70)
    assert (made.dtype, made.transpose, made.copy, made.overflow) == ("bfloat16", [1, 0], True, "saturate")
    assert made.threads == 1 << 16
    assert (made.but(dtype=None, transpose=True).dtype, made.but(transpose=True).transpose) == (None, True)
    assert made.dtype == "bfloat16"
    with pytest.raises(TypeError, match="overflow="):
        made.but(overflow="nan")


@pytest.mark.parametrize("given", ["5", 1.5, None, b"5"])
def test_a_limit_of_another_type_is_named(given):
    with pytest.raises(TypeError, match="limit tensors is a number, not "):
        rustload.Limits(tensors=given)


def test_a_limit_above_64_bits_is_refused():
    with pytest.raises(ValueError, match="limit tensors does not fit in 64 bits"):
        rustload.Limits(tensors=1 << 70)


def test_limits_pickle_with_what_differs():
    limits = rustload.Limits(tensors=7, depth=9)
    again = pickle.loads(pickle.dumps(limits))
    assert (again.tensors, again.depth, again.nodes) == (7, 9, rustload.Limits().nodes)
    assert repr(again) == repr(limits)


@pytest.mark.parametrize(
    ("verb", "argument", "given"),
    [
        ("convert", "name", 3), ("convert", "select", 3), ("convert", "select", b"w"), ("convert", "select", [3]),
        ("save", "keep", 3), ("save", "discard", [None]), ("diff", "select", 3),
        ("diff", "rename", [3]), ("diff", "rename", ["ab"]), ("diff", "rename", ("a", "b")),
        ("diff", "rename", [("a", None)]), ("diff", "rename", [("a", "b", "c")]),
        ("diff", "rename", [("(", "a")]), ("diff", "rename", [("a", r"\9")]),
        ("diff", "rename", {re.compile("a"): r"\9"}),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_an_error_that_names_it(tmp_path, verb, argument, given):
    path = str(tmp_path / "m.safetensors")
    rustload.save({"w": np.ones(2)}, path)
    first = rustload.open(path) if verb == "save" else path
    with pytest.raises((TypeError, ValueError), match=f"^{argument}= "):
        getattr(rustload, verb)(first, path if verb == "diff" else tmp_path / "out", **{argument: given})


def test_wrong_frameworks_and_paths_are_errors_of_the_documented_types(tmp_path):
    rustload.save({"w": np.ones(2)}, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="is not one of torch"):
        rustload.open(tmp_path / "m.safetensors", framework=["numpy"])
    with pytest.raises(TypeError, match="PathLike"):
        rustload.Manifest.of(tmp_path / "m.safetensors").check(3)
