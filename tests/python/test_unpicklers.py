"""Where CPython's unpickler in C, the one in Python and `pickletools` differ: rustload takes no side that one of them denies.

Each row names the issue of python/cpython that reports the difference. A star marks those of the first author of PickleFuzzer
(arXiv 2605.15084), a fuzzer that found 14 differences.
"""

import _pickle
import io
import pickle
import pickletools
import struct
import sys
from typing import Any, NamedTuple

import pytest

import rustload

REFUSED = "refused"


class Row(NamedTuple):
    """A difference.

    Attributes:
        issue: The issue that reports it.
        body: The opcodes between PROTO and STOP.
        c: What the unpickler in C reads, up to CPython 3.11.
        python: What the one in Python reads.
        tools: Whether `pickletools.dis` accepts it.
        ours: What rustload reads, or the code of its error.
    """

    issue: str
    body: bytes
    c: Any
    python: Any
    tools: bool
    ours: Any


def _frame(length: int) -> bytes:
    return b"\x95" + struct.pack("<Q", length)


ROWS = {
    "hexadecimal INT": Row("126992*", b"I0x0f\n", 15, 15, False, "AmbiguousNumber"),
    "hexadecimal LONG": Row("126992*", b"L0x0fL\n", 15, 15, False, "AmbiguousNumber"),
    "octal INT": Row("126992*", b"I010\n", 8, REFUSED, True, "AmbiguousNumber"),
    "NUL in INT": Row("126996*", b"I1\0x\n", 1, REFUSED, False, "AmbiguousNumber"),
    "NUL in LONG": Row("126996*", b"L1\0x\n", 1, REFUSED, False, "AmbiguousNumber"),
    "NUL in FLOAT": Row("126996*", b"F1\0x\n", 1.0, REFUSED, False, "AmbiguousNumber"),
    "NUL in GET": Row("126996*", b"Np0\n0g0\0x\n", None, REFUSED, False, "PickleMemo"),
    "NUL in PUT": Row("126996*", b"Np0\0x\n0g0\n", None, REFUSED, False, "PickleMemo"),
    "STRING in no encoding": Row("126997*", b"S'\xff'\n", REFUSED, REFUSED, False, b"\xff"),
    "BINSTRING in no encoding": Row("126997*", b"T\x01\0\0\0\xff", REFUSED, REFUSED, True, b"\xff"),
    "SHORT_BINSTRING in no encoding": Row("126997*", b"U\x01\xff", REFUSED, REFUSED, True, b"\xff"),
    "negative EXT4": Row("127045*", b"\x84\xff\xff\xff\xff", REFUSED, REFUSED, True, "ExtRegistry"),
    "values left at STOP": Row("127079*", b"NN", None, None, False, "PickleStack"),
    "MARK left at STOP": Row("127079*", b"(K\x01", 1, 1, False, "PickleStack"),
    "frame beyond the end": Row("128853*", _frame(99) + b"K\x01", REFUSED, 1, True, "PickleFrame"),
    "frame in a frame": Row("128853*", _frame(12) + _frame(3) + b"K\x01", 1, REFUSED, True, "PickleFrame"),
    "opcode across a frame's end": Row(
        "154848", _frame(2) + b"(B\1\0\0\0a1N", None, None, True, "PickleFrame"
    ),
    "argument across a frame's end": Row("154848", _frame(1) + b"K\x01", 1, 1, True, "PickleFrame"),
    "BUILD with an empty list": Row("128965*", b"]]b", REFUSED, [], True, "PickleType"),
    "BUILD with empty slots": Row("144411*", b"NN\x8f\x86b", REFUSED, None, True, "PickleType"),
    "bool with a sign": Row("135241*", b"I+0\n", False, 0, True, "AmbiguousNumber"),
    "bool with a space": Row("135241*", b"I 1\n", True, 1, True, "AmbiguousNumber"),
    "BINSTRING of 2 GiB": Row("135321*", b"T\0\0\0\x80a", REFUSED, REFUSED, False, "Truncated"),
    "APPENDS of nothing": Row("135573*", b"K\x01(e", 1, REFUSED, True, "PickleType"),
    "ADDITEMS of nothing": Row("135573*", b"K\x01(\x90", 1, REFUSED, True, "PickleType"),
    "NEWOBJ of a list": Row("135579*", b"cbuiltins\nset\n]\x81", REFUSED, set(), True, "PickleType"),
    "NEWOBJ_EX of a list": Row("135579*", b"cbuiltins\nset\n]}\x92", REFUSED, set(), True, "PickleType"),
    "PUT beyond 64 bits": Row("144410*", b"Np99999999999999999999\n", REFUSED, None, True, "PickleMemo"),
    "negative PUT": Row("144410*", b"Np-1\n", REFUSED, REFUSED, True, "PickleMemo"),
    "second value of a memo's index": Row(
        "123309", b"Nq\0K\1q\0h\0\x87", (None, 1, 1), (None, 1, 1), False, (None, 1, 1)
    ),
}


class RanError(Exception):
    """A reader resolved the name that the payload calls."""


class CReader(_pickle.Unpickler):
    """The unpickler in C."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "posix":
            raise RanError
        return super().find_class(module, name)


class PythonReader(pickle._Unpickler):
    """The unpickler in Python."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "posix":
            raise RanError
        return super().find_class(module, name)


def _read(reader: Any, data: bytes, encoding: str = "ASCII") -> Any:
    try:
        return reader(io.BytesIO(data), encoding=encoding).load()
    except RanError:
        raise
    except Exception:
        return REFUSED


def _ours(data: bytes) -> Any:
    try:
        return rustload.open(bytearray(data)).objects
    except rustload.RustloadError as error:
        return error.code


def _tools(data: bytes) -> bool:
    try:
        pickletools.dis(data, io.StringIO())
    except Exception:
        return False
    return True


def _same(one: Any, two: Any) -> bool:
    return type(one) is type(two) and one == two


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later versions mend some of the differences")
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_cpython_differs(row):
    data = b"\x80\x04" + row.body + b"."
    assert _same(_read(CReader, data), row.c)
    assert _same(_read(PythonReader, data), row.python)
    assert _tools(data) is row.tools


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_rustload_refuses_or_reads_what_all_read(row):
    data = b"\x80\x04" + row.body + b"."
    ours = _ours(data)
    assert _same(ours, row.ours)
    if not isinstance(
        ours, (str, bytes)
    ):  # an error's code, or a `str` of Python 2, which torch reads as UTF-8
        assert _same(_read(CReader, data), ours)
        assert _same(_read(PythonReader, data), ours)


def _is_run(data: bytes) -> bool:
    """Whether one of the unpicklers resolves the name of the payload."""
    for reader in (CReader, PythonReader):
        for encoding in ("ASCII", "latin1"):
            try:
                _read(reader, data, encoding)
            except RanError:
                return True
    return False


def test_what_one_of_them_runs_is_not_inert():
    payload = b"0cposix\nsystem\n(X\1\0\0\0:tR."
    run = [data for row in ROWS.values() if _is_run(data := b"\x80\x04" + row.body + payload)]
    assert len(run) >= 0.8 * len(ROWS)
    assert [data for data in run if rustload.scan(data).verdict == "inert"] == []
