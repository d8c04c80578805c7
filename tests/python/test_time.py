"""Values as they are at the moment of each call, compared with torch's and NumPy's own readers.

`fuzz/programs.py` compares many more programs with `torch.load(weights_only=True)`.
"""

import io
import pickle
import pickletools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from attacks import CASES
from support import Reduced, module_of, saved

import rustload

ARCHIVES = [case for case in CASES if case.id[0] == "X" and ("X70" <= case.id <= "X89" or case.id == "X125")]


@pytest.fixture(scope="module")
def programs() -> Any:
    return module_of("fuzz/programs.py")


def test_random_programs_are_read_as_torch_reads_them(programs):
    counts = programs.loop(seed=16, count=2000, seconds=20.0)
    for opened, accepted, least in zip(counts.opened, counts.accepted, (0.99, 0.85), strict=True):
        assert accepted > counts.programs // 20
        assert opened >= least * accepted, str(counts)


@pytest.mark.parametrize("case", ARCHIVES, ids=lambda case: case.label)
def test_a_named_case_is_read_as_torch_reads_it_or_refused(case, programs, tmp_path):
    path = case.input(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        programs.compare_file(path.read_bytes())


RAW = np.arange(6, dtype="f4").tobytes()
COPY = ("f4", False, True)


def array(*state: Any) -> Reduced:
    return Reduced(np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), state)


def dtype(*state: Any, args: tuple[Any, ...] = COPY) -> Reduced:
    return Reduced(np.dtype, args, state) if state else Reduced(np.dtype, args)


def scalar(*args: Any) -> Reduced:
    return Reduced(np._core.multiarray.scalar, args)


def from_buffer(*args: Any) -> Reduced:
    return Reduced(np._core.numeric._frombuffer, args)


NUMPY: dict[str, Any] = {
    **{
        f"fortran {order!r}": array(1, (2, 3), dtype(), order, RAW)
        for order in (True, 0, 1, 2, -1, None, "x", [1], 1.0)
    },
    **{
        f"version {version!r}": array(version, (2, 3), dtype(), False, RAW)
        for version in (0, 2, -1, True, None)
    },
    "no version": array((2, 3), dtype(), False, RAW),
    "a bytearray": array(1, (2, 3), dtype(), False, bytearray(RAW)),
    "text": array(1, (4,), dtype(args=("u1", False, True)), False, "a\xe9\xffb"),
    "text outside of latin-1": array(1, (4,), dtype(args=("u1", False, True)), False, "a\u0141b"),
    "too few bytes": array(1, (2, 3), dtype(), False, RAW[4:]),
    "a shape as a list": array(1, [2, 3], dtype(), False, RAW),
    **{
        f"byte order {order!r}": array(1, (2, 3), dtype(3, order, None, None, None, -1, -1, 0), False, RAW)
        for order in ("<", ">", "|", "=", "", "<<", None)
    },
    **{
        f"a dtype's state of {count} items": array(
            1, (2, 3), dtype(*(3, ">", None, None, None, -1, -1, 0, None, None)[:count]), False, RAW
        )
        for count in range(1, 11)
    },
    **{
        f"a dtype's version {version}": array(
            1, (2, 3), dtype(version, ">", None, None, None, -1, -1, 0), False, RAW
        )
        for version in (0, 4, 5)
    },
    "a shared dtype": array(1, (2, 3), dtype(3, ">", None, None, None, -1, -1, 0, args=("f4",)), False, RAW),
    "a dtype without a copy": array(
        1, (2, 3), dtype(3, ">", None, None, None, -1, -1, 0, args=("f4", False, False)), False, RAW
    ),
    "scalar": scalar(dtype(3, ">", None, None, None, -1, -1, 0), b"?\x80\0\0"),
    "scalar of text": scalar(dtype(), "\0\0\x80?"),
    "scalar of text in latin-1": scalar(dtype(args=("u2", False, True)), "\xe9\xff"),
    "scalar of a bytearray": scalar(dtype(), bytearray(b"\0\0\x80?")),
    **{f"order {order!r}": from_buffer(RAW, dtype(), (2, 3), order) for order in ("C", "F", "A", "K", "x")},
    "a buffer of text": from_buffer("abcd", dtype(), (1,), "C"),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("name", NUMPY)
def test_a_state_of_numpy_is_followed_as_numpy_does_or_not_at_all(name, protocol):
    data = pickle.dumps({"x": NUMPY[name]}, protocol)
    try:
        ckpt = rustload.open(data, framework="numpy")
        ours = ckpt.objects["x"]
    except rustload.RustloadError:
        return
    if isinstance(ours, rustload.Opaque):
        return
    expected = pickle.loads(data)["x"]
    found = ckpt["x"].materialize() if isinstance(ours, rustload.LazyTensor) else ours
    assert np.array_equal(found, expected)


def test_python_2_strings_are_the_bytes_of_an_array():
    # SHORT_BINSTRING, whose bytes are UTF-8 by chance.
    data = pickle.dumps({"x": array(1, (4,), dtype(args=("u1", False, True)), False, "abcd")}, 2)
    data = data.replace(b"X\x04\0\0\0abcd", b"U\x04a\xc3\xa9b")
    pickletools.dis(data, out=io.StringIO())
    expected = pickle.loads(data, encoding="latin-1")["x"]
    assert np.array_equal(rustload.open(data, framework="numpy")["x"].materialize(), expected)


def test_a_state_of_a_class_with_the_tensors_own_data_is_kept():
    class Own(torch.nn.Parameter):
        def __getstate__(self) -> Any:
            return {**self.__dict__, "data": self.data, "requires_grad": self.requires_grad}

    own = Own(torch.arange(3.0))
    own.block = 64  # type: ignore[attr-defined]
    ckpt = rustload.open(saved({"w": own}), framework="torch")
    assert ckpt["w"].materialize().tolist() == [0.0, 1.0, 2.0]
    assert ckpt["w"].attributes["block"] == 64
