"""Flipped bits and other changes of files, manifests and the answers of stores: what is returned is what was listed.

    python fuzz/manifests.py [--seed 1] [--count 10000] [--seconds S]

A case is a checkpoint with a manifest, and one change: of the file, of the manifest, or of what a store answers. Each read ends
with the listed bytes or with an error that has a code, and a change of bytes that are read is never returned.
"""

from __future__ import annotations

import argparse
import collections
import io
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy
import torch

import rustload
from rustload._remote.folder import ObjectFolder

if TYPE_CHECKING:
    from collections.abc import Sequence

PIECE = 256
REFUSED = {"ManifestMismatch", "ManifestMissing", "ManifestInvalid"}
KINDS = ("safetensors", "zip", "legacy", "npz", "deflated")
FORMS = ("shards", "files", "sums")


def checkpoint(kind: str) -> bytes:
    """The bytes of a small checkpoint."""
    rng = np.random.default_rng(3)
    arrays = {"a.weight": rng.normal(size=(23, 17)).astype("float32"), "b": np.arange(301), "c": np.ones(3)}
    if kind == "safetensors":
        return safetensors.numpy.save(arrays)
    stream = io.BytesIO()
    if kind in ("npz", "deflated"):
        (np.savez if kind == "npz" else np.savez_compressed)(stream, **arrays)
    else:
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
        torch.save(tensors, stream, _use_new_zipfile_serialization=kind == "zip")
    return stream.getvalue()


def manifest_text(form: str, made: rustload.Manifest, content: bytes) -> bytes:
    """A manifest of one file, in this form."""
    import hashlib

    if form == "shards":
        return made.to_json().encode()
    digest = hashlib.sha256(content)
    if form == "sums":
        return f"{digest.hexdigest()}  m.safetensors\n".encode()
    document = json.loads(made.to_json())
    document["subject"][0]["digest"]["sha256"] = hashlib.sha256(digest.digest()).hexdigest()
    document["predicate"]["serialization"] = {"method": "files", "hash_type": "sha256"}
    document["predicate"]["resources"] = [
        {"name": "m.safetensors", "algorithm": "sha256", "digest": digest.hexdigest()}
    ]
    return json.dumps(document).encode()


class Flipped(ObjectFolder):
    """A store with one file. Of its answers, nine in ten have a wrong bit."""

    __slots__ = ("chance", "content", "flips")

    def __init__(self, content: bytes, chance: random.Random) -> None:
        """The file as it should be."""
        super().__init__("store://m")
        self.content, self.chance, self.flips = content, chance, 0

    @property
    def is_listed(self) -> bool:
        """True."""
        return True

    def names(self) -> list[str]:
        """That of the file."""
        return ["m.safetensors"]

    def sizes(self, names: Sequence[str], /) -> list[int | None]:
        """Its size."""
        return [len(self.content) if name == "m.safetensors" else None for name in names]

    def folders(self) -> list[str]:
        """None."""
        return []

    def _folder(self, name: str) -> ObjectFolder:
        """There is none."""
        raise KeyError(name)

    def open(self, name: str, /) -> Any:
        """The file."""
        if name != "m.safetensors":
            raise FileNotFoundError(name)
        return FlippedFile(self)


class FlippedFile:
    """The file of such a store."""

    def __init__(self, store: Flipped) -> None:
        """Of this store."""
        self._store, self.size, self.name = store, len(store.content), "store://m/m.safetensors"

    def read_ranges(self, ranges: list[tuple[int, int]], /) -> list[bytes]:
        """The answers."""
        found, chance = [], self._store.chance
        for offset, length in ranges:
            part = bytearray(self._store.content[offset : offset + length])
            if part and chance.random() < 0.9:
                part[chance.randrange(length)] ^= 1 << chance.randrange(8)
                self._store.flips += 1
            found.append(bytes(part))
        return found


def changed(chance: random.Random, content: bytes, *, one_bit: bool) -> bytes:
    """The content with one bit flipped, or with a few bytes changed, inserted, removed or moved."""
    new = bytearray(content)
    at = chance.randrange(len(new))
    if one_bit or chance.random() < 0.5:
        new[at] ^= 1 << chance.randrange(8)
        return bytes(new)
    match chance.randrange(4):
        case 0:
            new[at : at + chance.randrange(9)] = chance.randbytes(chance.randrange(9))
        case 1:
            other = chance.randrange(len(new))
            new[at], new[other] = new[other], new[at]
        case 2:
            start, length = chance.randrange(len(new)), chance.randrange(1, 200)
            new[at:at] = new[start : start + length]
        case _:
            del new[at : at + chance.randrange(1, 40)]
    return bytes(new)


def read(source: Any, manifest: Any) -> tuple[dict[str, bytes], set[str]]:
    """The bytes of the tensors that can be read, and the codes of errors."""
    found: dict[str, bytes] = {}
    try:
        opened = rustload.open(source, manifest=manifest, framework="numpy")
    except (rustload.RustloadError, OSError, ValueError) as error:
        return {}, {getattr(error, "code", type(error).__name__)}
    codes = set()
    for name, tensor in opened.items():
        try:
            found[name] = bytes(memoryview(tensor.materialize(framework="dlpack", copy=True)).cast("B"))
        except (rustload.RustloadError, OSError) as error:
            codes.add(error.code)
    return found, codes


def run(
    seed: int, count: int, folder: Path, seconds: float | None = None, *, one_bit: bool
) -> dict[str, int]:
    """Runs cases; returns how many there were of each kind and outcome. An AssertionError names the case."""
    outcomes: collections.Counter[str] = collections.Counter()
    path = folder / "m.safetensors"
    models = {kind: checkpoint(kind) for kind in KINDS}
    made, goods, texts = {}, {}, {}
    for kind, content in models.items():
        path.write_bytes(content)
        made[kind] = rustload.Manifest.of(path, piece=PIECE)
        goods[kind], codes = read(path, made[kind])
        assert len(goods[kind]) == 3, (kind, codes)
        for form in FORMS:
            texts[kind, form] = manifest_text(form, made[kind], content)
            assert read(path, texts[kind, form]) == (goods[kind], set()), (kind, form)
    end = None if seconds is None else time.monotonic() + seconds
    number = 0
    while number < count if end is None else time.monotonic() < end:
        chance = random.Random(f"{seed}:{number}")
        kind, form = chance.choice(KINDS), chance.choice(FORMS)
        content, good = models[kind], goods[kind]
        what = ("file", "manifest", "answer")[number % 3]
        case = f"seed {seed}, case {number}: {what} of {kind}, {form}"
        if what == "file":
            new = changed(chance, content, one_bit=one_bit)
            path.write_bytes(new)
            found, codes = read(path, made[kind] if chance.random() < 0.5 else texts[kind, form])
            assert codes or found == good, case
            assert codes <= {"ManifestMismatch"}, (case, codes)
        elif what == "manifest":
            path.write_bytes(content)
            found, codes = read(path, changed(chance, texts[kind, form], one_bit=one_bit))
            assert codes <= REFUSED | {"Value"}, (case, codes)
        else:
            store = Flipped(content, chance)
            found, codes = read(store, made[kind])
            assert codes <= {"ManifestMismatch"}, (case, codes)
            outcomes["wrong answers"] += store.flips
        assert found.items() <= good.items(), case
        outcomes[f"{what}: {'refused' if codes else 'as listed'}"] += 1
        number += 1
    return dict(outcomes)


def main() -> None:
    """Runs cases and prints the outcomes."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--one-bit", action="store_true", help="flip one bit, and nothing else")
    args = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = run(args.seed, args.count, Path(folder), args.seconds, one_bit=args.one_bit)
    for outcome, number in sorted(found.items()):
        print(f"{number:>9,}  {outcome}")
    print(f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
