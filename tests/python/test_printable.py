"""Names from a file are shown to people without characters that act on a terminal; `.name`, keys and JSON have the exact text."""

import contextlib
import copy
import io
import json
import pickle as pickling
import struct
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from attacks.pickles import SIX, listed, mapped, named, pickle, storage, tensor, text
from attacks.streams import info, safetensors
from attacks.zips import Zip, around

import rustload
import rustload.torch
from rustload._cli.command import main
from rustload.errors import _printable

HOSTILE = "a\x1b[2J\x1b]0;x\x07\r\n\t\0\x7f\x85\x9b\u200b\u200e\u202e\u2028\u2066\ufeff\U000e0041z"
VISIBLE = "a\\n'größe 重み नमस्ते é 🙂"


def stack_name(module: str, name: str) -> bytes:
    return text(module) + text(name) + b"\x93"


def opened(data: bytes, **options: Any) -> rustload.Checkpoint:
    return rustload.open(data, framework="torch", **options)


def unknown_call() -> bytes:
    return pickle(listed(stack_name(HOSTILE, HOSTILE) + b")R", stack_name("m", HOSTILE)), protocol=4)


def outcome(use: Callable[[], Any]) -> list[str]:
    """What is said of an error: its text, its repr and its notes."""
    with pytest.raises((Exception, SystemExit)) as caught:
        use()
    assert not isinstance(caught.value, (AssertionError, NameError, UnicodeError)), repr(caught.value)
    return [str(caught.value), *getattr(caught.value, "__notes__", [])]


def warning(use: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
    assert caught
    return [str(one.message) for one in caught]


def tensors(name: str = HOSTILE) -> bytes:
    return around(named({name: tensor()}))


def flat(name: str = HOSTILE) -> bytes:
    return safetensors({name: info("F32", [2, 3], 0, 24)}, SIX)


def opaque() -> rustload.Opaque:
    return opened(unknown_call()).objects[0]


def model() -> Any:
    import torch

    return torch.nn.Linear(2, 3)


ERRORS: dict[str, Callable[[], Any]] = {
    "an unknown class": lambda: opened(unknown_call(), unknown="error"),
    "a name that does not exist": lambda: opened(tensors())[HOSTILE + "x"],
    "a similar name": lambda: opened(tensors())[HOSTILE.replace("z", "y")],
    "a member outside the root": lambda: opened(Zip().add_path(HOSTILE.replace("\0", "").encode()).bytes()),
    "the root itself": lambda: opened(Zip().add(HOSTILE.replace("\0", ""), b"x").drop("data.pkl").bytes()),
    "a version": lambda: opened(Zip().spoil("version", data=b"3\x1b[2J\n").bytes()),
    "a byte order": lambda: opened(Zip().spoil("byteorder", data=b"\x1b[2J\r").bytes()),
    "a missing storage": lambda: opened(around(named({"w": _tensor_on(HOSTILE)}))),
    "a safetensors dtype": lambda: opened(safetensors({"w": info(HOSTILE, [1], 0, 4)}, b"1234")),
    "a duplicate key of safetensors": lambda: opened(_duplicate()),
    "safe_open": lambda: _safe_open(flat()).get_tensor("w" + HOSTILE),
    "safe_open of a faulty header": lambda: _safe_open(safetensors({"w": info(HOSTILE, [1], 0, 4)}, b"1234")),
    "torch.load": lambda: rustload.torch.load(io.BytesIO(around(_call())), unknown="error"),
    "load_into": lambda: rustload.torch.load_into(model(), tensors()),
    "load_into, with a similar name": lambda: rustload.torch.load_into(
        model(), around(named({"weight" + HOSTILE: tensor()}))
    ),
    "an opaque value as a dict": lambda: opaque()["x"],
    "an attribute of an opaque value": lambda: opaque().x,
    "a pickled opaque value": lambda: pickling.dumps(copy.copy(opaque())),
    "a pickled label": lambda: pickling.dumps(opened(unknown_call()).objects[1]),
    "key=": lambda: rustload.torch.state_dict(tensors(HOSTILE + ".w"), key="x"),
    "dtype=": lambda: opened(tensors()).materialize(dtype={"x" + HOSTILE: "bfloat16"}),
    "a cast": lambda: opened(tensors())[HOSTILE].materialize(dtype="int8"),
    "a stream": lambda: list(opened(tensors()).stream(dtype={HOSTILE: "int8"})),
    "a path": lambda: rustload.open("/nowhere/" + HOSTILE.replace("\0", "")),
    "bytes": lambda: rustload.open(b"\x1b[2J nonsense"),
    "an index of shards": lambda: rustload.open([]),
}


def _tensor_on(key: str) -> bytes:
    return tensor(on=storage(key=key))


def _call() -> bytes:
    return named({"w": stack_name(HOSTILE, HOSTILE) + b")R"})


def _duplicate() -> bytes:
    key = json.dumps(HOSTILE).encode()
    one = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = b"{" + key + b":" + one + b"," + key + b":" + one + b"}"
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + b"1234"


def _safe_open(data: bytes) -> Any:
    import tempfile
    from pathlib import Path

    path = Path(tempfile.mkdtemp()) / "model.safetensors"
    path.write_bytes(data)
    return rustload.safe_open(str(path), framework="pt")


@pytest.mark.parametrize("name", ERRORS)
def test_errors_and_their_notes_are_printable(name):
    for said in outcome(ERRORS[name]):
        assert _visible(said), ascii(said)


def _visible(said: str) -> bool:
    """Whether a text has no character of the hostile name that has no form; rustload's own line breaks are none."""
    return (
        said.replace("\n", "").isprintable()
        and "\n\t" not in said
        and not any(line.startswith(("\t", "\0")) for line in said.split("\n"))
    )


REPRS: dict[str, Callable[[], Any]] = {
    "Opaque": opaque,
    "Global": lambda: opened(unknown_call()).objects[1],
    "a list of both": lambda: opened(unknown_call()).objects,
    "LazyTensor": lambda: opened(tensors())[HOSTILE],
    "Checkpoint": lambda: opened(tensors()),
    "a dict of handles": lambda: opened(tensors()).objects,
    "OpaqueClass": lambda: opened(unknown_call()).opaque,
    "globals": lambda: opened(unknown_call()).globals,
    "StateDict": lambda: rustload.torch.state_dict(tensors()),
    "TorchHandle": lambda: rustload.torch.state_dict(tensors())[HOSTILE],
    "ScanReport": lambda: rustload.scan(unknown_call()),
    "Finding": lambda: rustload.scan(unknown_call()).findings,
    "Step": lambda: rustload.scan(unknown_call()).trace,
    "Named": lambda: rustload.scan(unknown_call()).globals,
}


@pytest.mark.parametrize("name", REPRS)
def test_reprs_are_printable(name):
    shown = repr(REPRS[name]())
    assert shown.isprintable(), ascii(shown)


def test_names_keys_and_json_are_exact():
    ckpt = opened(tensors())
    assert list(ckpt) == [HOSTILE]
    assert ckpt[HOSTILE].name == HOSTILE
    assert ckpt[HOSTILE].path == (HOSTILE,)
    kept = opened(unknown_call())
    assert kept.objects[0].class_name == f"{HOSTILE}.{HOSTILE}"
    assert (kept.objects[1].module, kept.objects[1].name) == ("m", HOSTILE)
    assert kept.opaque[0].class_name == f"{HOSTILE}.{HOSTILE}"
    report = json.loads(rustload.scan(unknown_call()).to_json())
    assert HOSTILE in {entry["module"] for entry in report["files"][0]["globals"]}
    with pytest.raises(rustload.DisallowedError) as caught:
        opened(unknown_call(), unknown="error")
    assert (caught.value.module, caught.value.name) == (HOSTILE, HOSTILE)


def test_visible_text_is_shown_as_it_is():
    assert _printable(VISIBLE) == VISIBLE
    assert repr(opened(tensors(VISIBLE))[VISIBLE]).count("重み") == 1
    with pytest.raises(rustload.TensorNotFoundError) as caught:
        opened(tensors("größe"))["grösse"]
    assert "größe" in caught.value.__notes__[0]


def test_a_lone_surrogate_is_escaped():
    data = around(mapped((b"X\5\0\0\0a\xed\xb2\x80z", tensor())))
    for said in (repr(opened(data)), repr(opened(data).objects), *outcome(lambda: opened(data)["b"])):
        said.encode()
        assert said.isprintable()


def test_notes_and_warnings_are_printable():
    notes = opened(tensors()).notes + opened(_odd_fields()).notes
    assert notes
    assert all(map(_visible, notes))
    for said in warning(lambda: opened(tensors()).select(HOSTILE + "*y")):
        assert _visible(said), ascii(said)


def _odd_fields() -> bytes:
    return safetensors({"w": {**info("F32", [2, 3], 0, 24), HOSTILE: 1}}, SIX)


@pytest.mark.parametrize("command", ["info", "scan", "tree"])
@pytest.mark.parametrize("data", [tensors(), unknown_call(), _duplicate(), _odd_fields()])
def test_the_command_line_is_printable(command, data, tmp_path, capsys):
    path = tmp_path / "model.bin"
    path.write_bytes(data)
    with contextlib.suppress(SystemExit):
        main([command, str(path)])
    out, err = capsys.readouterr()
    assert _visible(out), ascii(out)
    assert _visible(err), ascii(err)


def test_progress_is_printable(capsys):
    dict(opened(tensors()).stream(progress=True))
    _, err = capsys.readouterr()
    assert err
    assert _visible(err.replace("\r", "\n")), ascii(err)
