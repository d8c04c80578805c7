"""Differential fuzzing against readers that are not in Rust: CPython's unpicklers, and torch's restricted one.

CPython's C and Python unpicklers must accept whatever rustload accepts, with the same values; every class and function is
replaced by a stub that records its use. What both rustload and `torch.load(weights_only=True)` accept must have the same tensors.

    python fuzz/differential.py [cpython|weights_only] [--seconds 60] [--seed 1] [FOLDER...]

runs the seeds (or the files of the folders, such as the corpus of `make fuzz`), then mutations of them.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import pathlib
import pickle
import pickletools
import random
import struct
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch

import rustload

SEEDS = pathlib.Path(__file__).parent / "seeds"


class StubGlobal:
    """A stub for a class or function that a pickle names; calling it records a call."""

    def __init__(self, module: str, name: str) -> None:
        self.spellings = {(module, name), _python3(module, name)}
        self.__dict__["__new__"] = lambda cls, *args, **kwargs: Call(cls, args, kwargs)

    def __call__(self, *args: Any) -> Call:
        return Call(self, args, None)


def _python3(module: str, name: str) -> tuple[str, str]:
    """Maps a global's name in Python 2 to that in Python 3, as unpicklers do for protocols below 3."""
    mapped = pickle._compat_pickle.NAME_MAPPING.get((module, name))
    return mapped or (pickle._compat_pickle.IMPORT_MAPPING.get(module, module), name)


class Call:
    """The result of a recorded call, with what was done to it."""

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs or None
        self.states: list[Any] = []
        self.items: list[tuple[Any, Any]] = []
        self.appended: list[Any] = []
        self.__dict__["__setstate__"] = self.states.append

    def __call__(self, *args: Any) -> Call:
        return Call(self, args, None)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        self.appended.append(value)

    def extend(self, values: Iterable[Any]) -> None:
        self.appended.extend(values)

    def add(self, value: Any) -> None:
        self.appended.append(value)


class _Recording:
    """Replaces the globals of a pickle by stubs, and persistent objects by the result of a call."""

    def find_class(self, module: str, name: str) -> StubGlobal:
        return StubGlobal(module, name)

    def persistent_load(self, _: Any) -> Call:
        return Call(None, (), None)


class PythonReader(_Recording, pickle._Unpickler):
    """CPython's unpickler written in Python."""

    dispatch: ClassVar[Any] = dict(pickle._Unpickler.dispatch)


class CReader(_Recording, pickle.Unpickler):
    """CPython's unpickler written in C."""


def cpython(data: bytes) -> bool:
    """Compares with both of CPython's unpicklers; returns whether rustload accepts the input."""
    try:
        ours = rustload.open(bytearray(data)).objects
    except rustload.RustloadError:
        return False
    for reader in (PythonReader, CReader):
        try:
            # torch's encoding for Python 2's `str`; those that are not UTF-8 are bytes in rustload.
            theirs = reader(io.BytesIO(data), encoding="utf-8").load()
        except UnicodeDecodeError:
            continue
        except pickle.UnpicklingError as error:
            if "must be a type" in str(error):
                continue  # the C unpickler checks that a class is a type before it calls __new__, and a stub is not one
            raise
        except MemoryError:
            continue  # the C unpickler before CPython 3.14 allocates every memo index below the largest
        _assert_equal(ours, theirs)
    return True


def _assert_equal(one: Any, two: Any) -> None:
    """Fails if two object graphs differ, in values or in the sharing of mutable objects.

    A call that rustload interprets (as a tensor, a container, a number) is skipped.
    """
    pairs: dict[int, tuple[Any, Any]] = {}
    todo = [(one, two)]
    while todo:
        ours, theirs = todo.pop()
        if isinstance(theirs, Call) and not isinstance(ours, rustload.Opaque):
            continue
        if isinstance(theirs, (Call, list, dict, set)):
            if id(ours) in pairs:
                assert pairs[id(ours)][1] is theirs, "one object in rustload is two in the reference"
                continue
            pairs[id(ours)] = (ours, theirs)
        todo.extend(_children(ours, theirs))


def _children(ours: Any, theirs: Any) -> list[tuple[Any, Any]]:
    """The pairs of child values that must be equal; fails if the two values themselves differ."""
    if isinstance(theirs, Call):
        pairs = [(ours.args, theirs.args)]
        if theirs.states:
            pairs.append((ours.state, theirs.states[-1]))
        pairs.extend(zip(ours.items, theirs.items, strict=True))
        pairs.extend(zip(ours.appended, theirs.appended, strict=True))
        return pairs
    if isinstance(theirs, StubGlobal):
        # rustload interprets some globals, such as a dtype.
        assert not isinstance(ours, rustload.Global) or (ours.module, ours.name) in theirs.spellings
        return []
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(theirs, dict):
        return list(zip(ours.items(), theirs.items(), strict=True))
    if isinstance(theirs, (list, tuple)):
        return list(zip(ours, theirs, strict=True))
    if isinstance(theirs, (set, frozenset)):
        assert len(ours) == len(theirs), (ours, theirs)
        return []
    if isinstance(theirs, float):
        assert struct.pack("<d", ours) == struct.pack("<d", theirs), (ours, theirs)
    else:
        assert ours == theirs, (ours, theirs)
    return []


def weights_only(data: bytes) -> bool:
    """Compares with `torch.load(weights_only=True)`; returns whether both read the file and it has tensors."""
    try:
        ckpt = rustload.open(bytearray(data), framework="torch")
        ours = {name: ckpt[name].materialize(copy=True) for name in ckpt}
    except rustload.RustloadError:
        return False
    try:
        theirs = dict(_tensors(torch.load(io.BytesIO(data), weights_only=True)))
    except Exception:  # noqa: BLE001 - torch raises errors of any type
        return False
    compared = False
    for path, expected in theirs.items():
        found = ours.get(".".join(map(str, path)) or "tensor")
        if found is None:
            continue  # colliding names are renamed
        assert found.dtype == expected.dtype, (path, found.dtype, expected.dtype)
        assert found.shape == expected.shape, (path, found.shape, expected.shape)
        left, right = (_bytes(one) for one in (found, expected.resolve_conj().resolve_neg()))
        assert torch.equal(left, right), path
        compared = True
    return compared


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).flatten().view(torch.uint8)


def _tensors(root: Any) -> Iterable[tuple[tuple[Any, ...], torch.Tensor]]:
    """The dense tensors under dicts, with their keys."""
    todo: list[tuple[tuple[Any, ...], Any]] = [((), root)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided and not value.is_quantized and not value.is_meta:
                yield path, value.detach()
        elif isinstance(value, dict) and len(path) < 8 and all(type(key) is str for key in value):
            todo.extend(((*path, key), item) for key, item in value.items())


def opcodes(data: bytes) -> list[bytes]:
    """The opcodes of a pickle with their arguments; the last has what follows the pickle, too."""
    cuts: list[int] = []
    with contextlib.suppress(ValueError):
        for _, _, at in pickletools.genops(data):
            cuts.append(at or 0)
    return [data[start:end] for start, end in zip(cuts, [*cuts[1:], len(data)], strict=False)]


def mutate_pickle(data: bytes, rng: random.Random) -> bytes:
    """Removes, duplicates, moves or changes one to four opcodes."""
    ops = opcodes(data)
    if len(ops) < 3:
        return data
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(ops))
        match rng.randrange(5):
            case 0:
                del ops[at]
            case 1:
                ops.insert(at, ops[at])
            case 2:
                ops.insert(at, ops[rng.randrange(len(ops))])
            case 3:
                other = rng.randrange(len(ops))
                ops[at], ops[other] = ops[other], ops[at]
            case _:
                changed = bytearray(ops[at])
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
                ops[at] = bytes(changed)
        if not ops:
            return data
    return b"".join(ops)


def mutate_archive(data: bytes, rng: random.Random) -> bytes:
    """Mutates the pickle of an archive and writes it with correct checksums; returns `data` if Python cannot read it."""
    out = io.BytesIO()
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
            for info in old.infolist():
                content = old.read(info)
                if info.filename.endswith("/data.pkl"):
                    content = mutate_pickle(content, rng)
                new.writestr(zipfile.ZipInfo(info.filename), content)
    except Exception:  # noqa: BLE001 - zipfile raises errors of any type on a fuzzed archive
        return data
    return out.getvalue()


Compare = Callable[[bytes], bool]
Mutate = Callable[[bytes, random.Random], bytes]

TARGETS: dict[str, tuple[Compare, Mutate, str]] = {
    "cpython": (cpython, mutate_pickle, "pickle"),
    "weights_only": (weights_only, mutate_archive, "open"),
}


def inputs(target: str, folders: list[pathlib.Path]) -> list[bytes]:
    """The seeds of a target, or the files of the folders."""
    _, _, folder = TARGETS[target]
    files = sorted(path for one in folders or [SEEDS / folder] for path in one.iterdir() if path.is_file())
    found = [path.read_bytes() for path in files]
    return [data for data in found if data.startswith(b"PK")] if target == "weights_only" else found


def loop(
    target: str, *, seed: int, seconds: float, folders: list[pathlib.Path] | None = None
) -> tuple[int, int]:
    """Runs a target over its inputs, then over mutations; returns the number of runs, and of inputs that both readers accept.

    Raises:
        AssertionError: The two readers differ; a note gives the input in hex.
    """
    compare, mutate, _ = TARGETS[target]
    rng = random.Random(seed)
    pool = inputs(target, folders or [])
    runs = compared = 0
    end = time.monotonic() + seconds
    while runs < len(pool) or time.monotonic() < end:
        data = pool[runs] if runs < len(pool) else mutate(rng.choice(pool), rng)
        try:
            compared += compare(data)
        except Exception as error:
            error.add_note(f"{target} on {data.hex()}")
            raise
        runs += 1
    return runs, compared


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="?", choices=list(TARGETS))
    parser.add_argument("folders", nargs="*", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for target in [given.target] if given.target else TARGETS:
        runs, compared = loop(target, seed=given.seed, seconds=given.seconds, folders=given.folders)
        print(f"{target}: {runs} inputs, {compared} compared", file=sys.stderr)


if __name__ == "__main__":
    main()
