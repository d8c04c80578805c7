"""`unknown=` and `limits=` hold on every path to a file: each entry point, each way to name the file, each format."""

import contextlib
import inspect
import io
import itertools
import json
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from support import Reduced, pickled, saved

import rustload
import rustload.torch
from rustload.torch import distributed

pytestmark = pytest.mark.filterwarnings("ignore")

STATE = {"a": torch.arange(3.0), "b": torch.arange(3.0)}


class Custom:
    """A class that no allow-list has."""


def legacy(obj: Any) -> bytes:
    return saved(obj, _use_new_zipfile_serialization=False)


def npz(obj: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **{name: np.asarray(value) for name, value in obj.items()})
    return out.getvalue()


def as_safetensors(obj: Any) -> bytes:
    return safetensors.torch.save(obj)


CONTENTS: dict[str, Callable[[Any], bytes]] = {
    "zip": saved,
    "legacy": legacy,
    "bare pickle": pickled,
    "npz": npz,
}
SUFFIXES = (".pt", ".safetensors", ".SafeTensors", "")
TENSORS_MAX = rustload.Limits(tensors=1)


# The ways to name one file: what the entry point gets.


def as_path(path: Path) -> Any:
    return path


def as_text(path: Path) -> Any:
    return str(path)


class File(io.BufferedReader):
    """An open file; its owner closes it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))

    def __del__(self) -> None:
        self.close()


def as_file(path: Path) -> Any:
    return File(path)


def as_memory(path: Path) -> Any:
    return io.BytesIO(path.read_bytes())


def as_bytes(path: Path) -> Any:
    return path.read_bytes()


def as_list(path: Path) -> Any:
    return [path]


def as_index(path: Path) -> Any:
    index = path.with_name("model.safetensors.index.json")
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(STATE, path.name)}))
    return index


def as_url(path: Path) -> Any:
    fsspec = pytest.importorskip("fsspec")
    url = f"memory://arguments/{path.name}"
    fsspec.filesystem("memory").pipe_file(f"/arguments/{path.name}", path.read_bytes())
    return url


WAYS = [as_path, as_text, as_file, as_memory, as_bytes, as_list, as_index, as_url]


class NotTakenError(Exception):
    """The entry point takes no file in this way."""


def convert(path: Any, **options: Any) -> Any:
    from rustload import convert

    if not isinstance(path, (str, list)) and not hasattr(path, "with_name"):
        raise NotTakenError
    target = path[0] if isinstance(path, list) else path
    with tempfile.TemporaryDirectory() as folder:
        convert(target, f"{folder}/out.safetensors", fsync=False, **options)
        return rustload.open(f"{folder}/out.safetensors")


def lightning(path: Any, **options: Any) -> Any:
    if not isinstance(path, str) and not hasattr(path, "with_name"):
        raise NotTakenError
    return pytest.importorskip("rustload.lightning").RustloadCheckpointIO(**options).load_checkpoint(path)


def into_model(path: Any, **options: Any) -> Any:
    model = torch.nn.ParameterDict({name: torch.zeros(3) for name in STATE})
    return rustload.torch.load_into(model, path, **options)


def reader(path: Any, **options: Any) -> Any:
    return distributed.Reader(path, **options).read_metadata()


def jax(path: Any, **options: Any) -> Any:
    return pytest.importorskip("rustload.jax").load(path, **options)


def names_of(path: Any, **options: Any) -> Any:
    if isinstance(path, (bytes, list)):
        raise NotTakenError
    return rustload.safe_open(path, "pt", **options).keys()


def loaded(path: Any, **options: Any) -> Any:
    return rustload.torch.load(path, **options)


UNKNOWN: dict[str, Callable[..., Any]] = {
    "open": rustload.open,
    "convert": convert,
    "load": loaded,
    "RustloadCheckpointIO": lightning,
}
LIMITS: dict[str, Callable[..., Any]] = {
    **UNKNOWN,
    "safe_open": names_of,
    "state_dict": rustload.torch.state_dict,
    "load_into": into_model,
    "Reader": reader,
}
# Their files are folders that a library wrote; a test below.
FOLDERS = {
    "rustload.transformers.from_pretrained",
    "rustload.diffusers.from_pretrained",
    "rustload.peft.load_adapter",
}
# jax.load is in a module that needs JAX; a scan reports what it leaves out.
OTHERS = {"rustload.jax.load", "rustload.scan"}


def entry_points(argument: str) -> set[str]:
    """The public functions and classes that have the argument."""
    found = set()
    modules = [rustload, rustload.torch, rustload.torch.distributed]
    others = ("jax", "transformers", "diffusers", "peft", "lightning")
    modules += [pytest.importorskip(f"rustload.{name}") for name in others]
    for module in modules:
        for name in module.__all__:
            value = getattr(module, name)
            try:
                parameters = inspect.signature(value).parameters
            except (TypeError, ValueError):
                continue
            if argument in parameters:
                found.add(f"{module.__name__}.{name}")
    return found


def test_every_entry_point_with_the_arguments_is_in_the_matrix():
    found = entry_points("limits") - FOLDERS - OTHERS - {"rustload.Limits"}
    assert {name.rpartition(".")[2] for name in found} == LIMITS.keys()
    assert {name.rpartition(".")[2] for name in entry_points("unknown")} == UNKNOWN.keys()


def refusals(
    entry: Callable[..., Any], files: Iterable[Path], ways: list[Any], **options: Any
) -> set[str | None]:
    """The codes of the errors for files in every way; one that is read fails the test."""
    codes = set()
    for path, way in itertools.product(files, ways):
        with contextlib.suppress(NotTakenError):
            with pytest.raises((rustload.RustloadError, rustload.SafetensorError)) as caught:
                pytest.fail(f"{way.__name__} of {path} gives {entry(way(path), **options)}")
            codes.add(caught.value.code)
    return codes


def written(folder: Path, content: bytes, suffixes: Iterable[str] = SUFFIXES) -> Iterator[Path]:
    """A file of each suffix."""
    for suffix in suffixes:
        path = folder / f"m{suffix}"
        path.write_bytes(content)
        yield path


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("entry", UNKNOWN)
def test_unknown_error_refuses_what_it_would_lose(entry, content, tmp_path):
    if entry == "RustloadCheckpointIO" and content == "npz":
        pytest.skip("Lightning's files are pickles")
    extra = {"x": np.array([None, 1])} if content == "npz" else {"x": Custom()}
    # A pickle has no tensors of torch without names that no allow-list has, and an index no file without tensors.
    is_bare = content == "bare pickle"
    ways = [way for way in WAYS if not (is_bare and way is as_index)]
    # convert finds files by their suffix.
    suffixes = [suffix for suffix in SUFFIXES if suffix or entry != "convert"]
    saved = CONTENTS[content]({**(dict.fromkeys(STATE, 0) if is_bare else STATE), **extra})
    codes = refusals(UNKNOWN[entry], written(tmp_path, saved, suffixes), ways, unknown="error")
    assert codes <= {"DisallowedGlobal", "DisallowedCall", "NpyObjects", "OpaqueValue", "UnknownFormat"}
    assert codes - {"UnknownFormat"}


@pytest.mark.parametrize("content", [*CONTENTS, "safetensors"])
@pytest.mark.parametrize("entry", LIMITS)
def test_limits_hold(entry, content, tmp_path):
    saved = (as_safetensors if content == "safetensors" else CONTENTS[content])(STATE)
    codes = refusals(LIMITS[entry], written(tmp_path, saved), WAYS, limits=TENSORS_MAX)
    assert "Limit" in codes <= {"Limit", "UnknownFormat"}


# A file that is named as one of safetensors and is a pickle.

EVIL = {**STATE, "x": Custom(), "epoch": 3}


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("how", ["file", "index", "folder", "URL"])
@pytest.mark.parametrize("entry", [names_of, loaded])
def test_a_drop_in_of_safetensors_refuses_a_pickle_of_that_name(entry, how, content, tmp_path):
    path = tmp_path / "model.safetensors"
    state = dict(STATE) if content == "npz" else EVIL
    path.write_bytes(CONTENTS[content](state))
    given = {"file": as_path, "index": as_index, "folder": lambda path: path.parent, "URL": as_url}[how](path)
    if entry is loaded and how in ("index", "folder"):
        pytest.skip("torch.load takes no shards: rustload.torch.load reads each by its content")
    with pytest.raises(rustload.SafetensorError) as caught:
        entry(given)
    assert caught.value.code == "UnknownFormat"
    assert isinstance(caught.value, (safetensors.SafetensorError, rustload.FormatError))
    assert any("rustload.open" in note for note in caught.value.__notes__)
    if how == "file":
        assert str(path) in str(caught.value)
        with pytest.raises(safetensors.SafetensorError):
            safetensors.safe_open(path, "pt")
    assert "a" in rustload.open(path)


def test_a_hostile_pickle_named_as_safetensors_is_no_empty_file(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(pickle.dumps(Reduced(print, ("executed",))))
    for load in (names_of, loaded):
        for options in ({}, {"unknown": "error"}):
            if load is names_of and options:
                continue
            with pytest.raises(rustload.SafetensorError):
                load(path, **options)


# Folders of libraries.


@pytest.mark.parametrize("format_", ["bin", "safetensors"])
def test_limits_hold_for_models_and_adapters(format_, tmp_path):
    peft = pytest.importorskip("peft")
    from rustload.peft import load_adapter

    base = torch.nn.Sequential(torch.nn.Linear(8, 8))
    model = peft.get_peft_model(base, peft.LoraConfig(r=2, target_modules=["0"]))
    model.save_pretrained(tmp_path, safe_serialization=format_ == "safetensors")
    with pytest.raises(rustload.LimitError):
        load_adapter(torch.nn.Sequential(torch.nn.Linear(8, 8)), tmp_path, limits=TENSORS_MAX)


def test_limits_hold_for_arrays_of_jax(tmp_path):
    for name, write in {"m.pt": saved, "m.safetensors": as_safetensors}.items():
        (tmp_path / name).write_bytes(write(STATE))
        with pytest.raises(rustload.LimitError):
            jax(tmp_path / name, limits=TENSORS_MAX)
