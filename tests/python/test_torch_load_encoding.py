"""`encoding=` of `rustload.torch.load`: strings of Python 2 are what they are in `torch.load(weights_only=True)`."""

import collections
import io
from typing import Any, ClassVar

import make_old
import pytest
import torch
from torch_graph import assert_same_graph

import rustload.torch

pytestmark = pytest.mark.filterwarnings("ignore")

ENCODINGS = ["bytes", "utf-8", "latin1", "ascii", "cp1252", "utf-16"]
TEXTS = {
    "ascii": b"plain",
    "utf-8": "é".encode(),
    "latin-1": b"\xe9",
    "not UTF-16": b"\xe9\xe9\xe9",
    "empty": b"",
}
FLOATS = {"10": (6, make_old.FLOATS)}


class Python2(make_old.Python2):
    """Writes bytes as Python 2 wrote str."""

    dispatch: ClassVar[dict[Any, Any]] = dict(make_old.Python2.dispatch)

    def save_bytes(self, data: bytes) -> None:
        self.write(b"U" + bytes([len(data)]) + data)
        self.memoize(data)

    def save_str(self, text: str) -> None:
        """Text is that of Python 3, but for what torch decodes itself."""
        data = text.encode()
        self.write(b"X" + len(data).to_bytes(4, "little") + data)
        self.memoize(text)

    dispatch[bytes] = save_bytes
    dispatch[str] = save_str


def legacy(obj: Any) -> bytes:
    return make_old.stream(obj, FLOATS, Python2)


def archive(obj: Any) -> bytes:
    members = {"data.pkl": make_old.pickled(obj, Python2), "version": b"3\n", "data/10": make_old.FLOATS}
    return make_old.archive(members)


def values(text: bytes, storage: make_old.Storage) -> Any:
    return {
        "text": text,
        "same": [text, text],
        "of Python 3": ["é", "plain"],
        text + b"key": make_old.tensor(storage, 2, 3),
        "ordered": collections.OrderedDict([(text, 1), (b"other", text)]),
        "pair": (text, {text: text}),
    }


@pytest.mark.parametrize("make", [legacy, archive])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_strings_of_python_2_equal_torchs(encoding, text, make):
    view: Any = (None,) if make is legacy else ()
    data = make(values(TEXTS[text], make_old.storage("Float", "10", 6, *view)))
    results = [outcome(load, data, encoding) for load in (rustload.torch.load, torch.load)]
    (found, error), (expected, theirs) = results
    assert error == theirs
    assert_same_graph(found, expected)


def outcome(load: Any, data: bytes, encoding: str) -> tuple[Any, str | None]:
    """What a loader returns, or the text of its error."""
    try:
        return load(io.BytesIO(data), encoding=encoding), None
    except UnicodeDecodeError as error:
        return None, str(error)


@pytest.mark.parametrize("encoding", ["bytes", "latin1", "ascii", "utf-8"])
def test_a_file_of_python_2_equals_torchs(encoding):
    data = make_old.stream(
        {"w": make_old.tensor(make_old.storage("Float", "10", 6, None), 6)}, FLOATS, make_old.Python2
    )
    expected = torch.load(io.BytesIO(data), weights_only=True, encoding=encoding)
    assert_same_graph(rustload.torch.load(data, encoding=encoding), expected)


def test_an_unknown_encoding_has_pythons_error():
    data = archive([b"text"])
    for load in (torch.load, rustload.torch.load):
        with pytest.raises(LookupError, match="unknown encoding: nonsense"):
            load(io.BytesIO(data), encoding="nonsense")


def test_without_an_encoding_bytes_that_are_not_utf_8_are_bytes():
    data = archive([b"\xe9", b"plain", "é".encode()])
    assert rustload.torch.load(data) == [b"\xe9", "plain", "é"]


def test_a_long_binary_string_has_the_encoding_too():
    """BINSTRING, which torch's restricted unpickler does not read."""
    long = b"\xe9" * 300
    body = b"\x80\x02]T" + len(long).to_bytes(4, "little") + long + b"a."
    data = make_old.archive({"data.pkl": body, "version": b"3\n"})
    assert rustload.torch.load(data, encoding="latin1") == ["é" * 300]
    assert rustload.torch.load(data, encoding="bytes") == [long]
