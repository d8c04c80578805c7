"""Faults of sources that are read by ranges: each case ends with the right elements or with an error that has a code; none hangs.

    python fuzz/remote_faults.py [--seed 1] [--count 10000]

A case is a checkpoint, a source of it (an object with `read_ranges`, a file system of fsspec, a web server on the loopback
interface), an operation, and requests that fail: one of them, some at random, or each once. After a failure the faults end, and
the same checkpoint must give the right elements. Needs fsspec and urllib3.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import io
import json
import pathlib
import random
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import fsspec
import numpy as np
import torch
from fsspec.implementations.memory import MemoryFileSystem
from safetensors.torch import save
from torch.distributed import checkpoint as dcp

import rustload
import rustload.remote
import rustload.torch
from rustload import _rustload
from rustload._remote import web

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "python"))
from web_server import Server

CODES = {code for code, *_ in _rustload.CODES} - {"InternalError"}

SECONDS_MAX = 60
"""A case that takes longer hangs: the process ends with a traceback. On an idle machine a case takes milliseconds."""

RETRIES_MAX = 200
"""How often an operation is tried again where each request fails once."""

Found = Mapping[str, np.ndarray]

OBJECT_FAULTS = (
    "raise",
    "timeout",
    "value",
    "short",
    "long",
    "empty",
    "few",
    "many",
    "text",
    "none",
    "size",
    "changed",
)
FSSPEC_FAULTS = (
    "raise",
    "timeout",
    "value",
    "denied",
    "missing",
    "short",
    "long",
    "empty",
    "few",
    "text",
    "none",
    "version",
    "listing",
)
WEB_FAULTS = (
    *("200", "500", "short", "long", "moved", "etag", "no size", "no etag"),
    *("429", "503", "closed", "cut", "reset"),  # sent again
)


class Plan:
    """Which requests fail, and how."""

    def __init__(self, rng: random.Random, kinds: tuple[str, ...]) -> None:
        self.mode = rng.choice(("one", "some", "each"))
        self.first = rng.randrange(12)
        self.rate = rng.choice((0.1, 0.3, 0.6))
        self.kinds = [rng.choice(kinds) for _ in range(64)]
        self.rolls = [rng.random() for _ in range(64)]
        self.lock = threading.Lock()
        self.number = self.faults = 0
        self.seen: set[Any] = set()
        self.enabled = True

    def next(self, key: Any) -> str | None:
        """The fault of the next request, of which `key` says what is asked for."""
        with self.lock:
            number, self.number = self.number, self.number + 1
            failing = {
                "one": number == self.first,
                "some": self.rolls[number % 64] < self.rate,
                "each": key not in self.seen,
            }[self.mode]
            self.seen.add(key)
            if not (failing and self.enabled):
                return None
            self.faults += 1
            return self.kinds[number % 64]


def damaged(parts: list[bytes], fault: str | None) -> Any:
    """The answer to a request for ranges, with a fault."""
    first = parts[0] if parts else b""
    if fault == "raise":
        raise OSError("a fault")
    if fault == "timeout":
        raise TimeoutError("a fault")
    if fault == "value":
        raise ValueError("a fault")
    changed: dict[str | None, Any] = {
        "short": [first[:-1], *parts[1:]],
        "long": [first + b"x", *parts[1:]],
        "empty": [b"" for _ in parts],
        "few": parts[:-1],
        "many": [*parts, b"x"],
        "text": ["x" for _ in parts],
        "none": None,
    }
    return changed.get(fault, parts)


class Object:
    """An object with `read_ranges`."""

    def __init__(self, name: str, content: bytes, plan: Plan) -> None:
        self.name, self.content, self.plan = name, content, plan
        self.grown = 0

    @property
    def size(self) -> int:
        """Another one than at first, once, after the fault `size`."""
        grown, self.grown = self.grown, 0
        return len(self.content) + (grown if self.plan.enabled else 0)

    def read_ranges(self, ranges: list[tuple[int, int]]) -> Any:
        fault = self.plan.next((self.name, tuple(ranges)))
        if fault in ("size", "changed"):
            self.grown = 1
            fault = None
        return damaged([self.content[start : start + length] for start, length in ranges], fault)


class FaultyFileSystem(MemoryFileSystem):
    """fsspec's file system in memory, whose answers have faults."""

    protocol = ("faulty",)
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    plan: ClassVar[Plan]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("faulty://").strip("/")

    def _fault(self, key: Any) -> str | None:
        fault = type(self).plan.next(key)
        if fault == "denied":
            raise PermissionError("a fault")
        if fault == "missing":
            raise FileNotFoundError("a fault")
        return fault

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> Any:
        fault = self._fault((path, start, end))
        found = damaged([self.store[self._strip_protocol(path)].getvalue()[start:end]], fault)
        return found[0] if found else found

    def info(self, path: str, **kwargs: Any) -> Any:
        fault = self._fault(("info", path))
        found = super().info(path, **kwargs)
        if fault in ("raise", "timeout", "value"):
            damaged([], fault)
        if fault == "version":
            found["created"] = "another"
        if fault in ("short", "long"):
            found["size"] += 1
        if fault == "none":
            found["size"] = None
        return found

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002  # fsspec's
        fault = self._fault(("ls", path))
        found = super().ls(path, detail=detail, **kwargs)
        if fault in ("raise", "timeout", "value"):
            damaged([], fault)
        return found[:-1] if fault == "listing" else found


fsspec.register_implementation("faulty", FaultyFileSystem)


def contents() -> tuple[dict[str, dict[str, bytes]], dict[str, np.ndarray]]:
    """The files of each kind of checkpoint, by name, and the elements of their tensors."""
    generator = torch.Generator().manual_seed(1)
    sizes = {"a": (40, 64), "b": (3,), "c": (300, 128), "d": (1,), "e": (64, 500), "f": (17, 17)}
    tensors = {name: torch.randn(size, generator=generator) for name, size in sizes.items()}
    kinds: dict[str, dict[str, bytes]] = {}
    for kind, options in (("zip", {}), ("legacy", {"_use_new_zipfile_serialization": False})):
        stream = io.BytesIO()
        torch.save(tensors, stream, **options)
        kinds[kind] = {"model.bin": stream.getvalue()}
    kinds["safetensors"] = {"model.safetensors": save(tensors)}
    halves = {"x.safetensors": ["a", "b", "c"], "y.safetensors": ["d", "e", "f"]}
    index = {"weight_map": {name: file for file, names in halves.items() for name in names}}
    shards = {file: save({name: tensors[name] for name in names}) for file, names in halves.items()}
    kinds["folder"] = {**shards, "model.safetensors.index.json": json.dumps(index).encode()}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(tensors), checkpoint_id=folder, no_dist=True)
        kinds["dcp"] = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
    return kinds, {name: tensor.numpy() for name, tensor in tensors.items()}


class Cases:
    """Runs cases.

    Attributes:
        outcomes: How many cases ended how: `"right"`, or the code of the first error.
    """

    def __init__(self) -> None:
        self.kinds, self.tensors = contents()
        self.outcomes: collections.Counter[str] = collections.Counter()
        for kind, files in self.kinds.items():
            for name, content in files.items():
                fsspec.filesystem("faulty").pipe_file(f"/{kind}/{name}", content)
        self.server = Server(
            {
                f"{kind}/{name}": content
                for kind, files in self.kinds.items()
                for name, content in files.items()
            }
        )

    def close(self) -> None:
        """Stops the server."""
        self.server.close()

    def run(self, seed: int) -> None:
        """Runs one case. Fails with an AssertionError that names the seed."""
        rng = random.Random(seed)
        kind = rng.choice(list(self.kinds))
        # A distributed checkpoint is a folder.
        source = rng.choice(("fsspec", "web") if kind == "dcp" else ("object", "fsspec", "fsspec", "web"))
        # For torch, a distributed checkpoint is the objects of its metadata.
        operation = rng.choice([name for name in OPERATIONS if (kind, name) != ("dcp", "torch_load")])
        plan = Plan(rng, {"object": OBJECT_FAULTS, "fsspec": FSSPEC_FAULTS, "web": WEB_FAULTS}[source])
        make = {"object": self.objects, "fsspec": self.files, "web": self.pages}[source]
        label = f"seed {seed}: {operation} of {kind} from {source}, {plan.mode}"
        faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
        start = time.perf_counter()
        kept: list[Any] = []
        outcome = "right"
        for _ in range(RETRIES_MAX):
            kept = kept[-1:]
            try:
                given = make(kind, plan)
                self.check(OPERATIONS[operation](given, kept, random.Random(seed)), label)
                break
            except (rustload.RustloadError, OSError) as error:
                code = getattr(error, "code", None)
                if code not in CODES:
                    raise AssertionError(f"{label}: {error!r} has no code") from error
                outcome = code if outcome == "right" else outcome
            if plan.mode != "each":
                break
        else:
            raise AssertionError(f"{label}: each request fails once, and it never succeeds")
        assert outcome == "right" or plan.faults, f"{label}: {outcome} without a fault"
        plan.enabled = False
        for checkpoint in kept:
            try:
                self.check(checkpoint.materialize(framework="numpy"), f"{label}, again")
            except rustload.FormatError as error:
                # The version, or the size, that it was opened with may have been a fault.
                if error.code != "FileChanged" or not plan.faults:
                    raise
        self.check(
            OPERATIONS[operation](make(kind, plan), [], random.Random(seed)), f"{label}, without faults"
        )
        assert time.perf_counter() - start < SECONDS_MAX, label
        faulthandler.cancel_dump_traceback_later()
        self.outcomes[outcome] += 1

    def check(self, found: Any, label: str) -> None:
        """Compares what an operation returned, which is a verdict or elements of tensors by the names and rows."""
        if isinstance(found, str):
            assert found == "inert", f"{label}: {found}"
            return
        for key, array in found.items():
            name, _, rows = key.partition(":")
            expected = self.tensors[name][: int(rows)] if rows else self.tensors[name]
            assert np.array_equal(np.asarray(array), expected), f"{label}: {key} has other elements"

    def objects(self, kind: str, plan: Plan) -> Any:
        """Objects with `read_ranges`: one, or the shards of a list."""
        files = {name: one for name, one in self.kinds[kind].items() if not name.endswith(".json")}
        found = [Object(name, content, plan) for name, content in files.items()]
        return found if len(found) > 1 else found[0]

    def files(self, kind: str, plan: Plan) -> Any:
        """The file or folder in the file system."""
        FaultyFileSystem.plan = plan
        names = list(self.kinds[kind])
        return rustload.remote.fsspec(
            f"faulty://{kind}/{names[0]}" if len(names) == 1 else f"faulty://{kind}"
        )

    def pages(self, kind: str, plan: Plan) -> Any:
        """The file, index or metadata on the web server."""
        requests = self.server.requests
        requests.clear()
        self.server.fault = lambda number: plan.next(requests[number]) if number < len(requests) else None
        names = sorted(self.kinds[kind], key=lambda name: not name.endswith((".json", ".metadata")))
        return rustload.remote.fsspec(f"{self.server.host}/{kind}/{names[0]}")


Operation = Callable[[Any, list[Any], random.Random], Any]


def load(given: Any, kept: list[Any], _: random.Random) -> Found:
    """All tensors."""
    checkpoint = rustload.open(given)
    kept.append(checkpoint)
    return checkpoint.materialize(framework="numpy")


def stream(given: Any, kept: list[Any], _: random.Random) -> Found:
    """All tensors, one after another."""
    checkpoint = rustload.open(given, framework="numpy")
    kept.append(checkpoint)
    return dict(checkpoint.stream())


def rows(given: Any, kept: list[Any], rng: random.Random) -> Found:
    """Some rows of some tensors."""
    checkpoint = rustload.open(given)
    kept.append(checkpoint)
    names = rng.sample(sorted(checkpoint), 3)
    return {f"{name}:1": checkpoint[name][:1].materialize(framework="numpy") for name in names}


def torch_load(given: Any, _: list[Any], __: random.Random) -> Found:
    """`rustload.torch.load`."""
    found = rustload.torch.load(given)
    return {name: tensor.numpy() for name, tensor in found.items() if isinstance(tensor, torch.Tensor)}


def scan(given: Any, _: list[Any], __: random.Random) -> str:
    """The verdict; the report on what could not be read is an error here."""
    report = rustload.scan(given)
    scanned = [file for file in report.files if file.status == "scanned"]
    bad = [file for file in report.files if file.status == "unreadable"]
    bad += [
        file
        for file in scanned
        if not file.coverage.complete or any(finding.code in CODES for finding in file.findings)
    ]
    if bad:
        codes = [finding.code for file in bad for finding in file.findings if finding.code in CODES]
        error = OSError("unreadable")
        error.code = codes[0] if codes else "none"  # type: ignore[attr-defined]
        assert report.verdict != "inert"
        raise error
    # An index has no pickles.
    return str(report.verdict) if scanned else "inert"


OPERATIONS: dict[str, Operation] = {
    "load": load,
    "stream": stream,
    "rows": rows,
    "torch_load": torch_load,
    "scan": scan,
}


def seeds(seed: int, count: int) -> Iterator[int]:
    """The seeds of the cases."""
    return iter(range(seed * 10_000_000, seed * 10_000_000 + count))


def run(seed: int, count: int) -> collections.Counter[str]:
    """Runs so many cases; how many ended how."""
    web.RETRY_SECONDS = (0.001,) * len(web.RETRY_SECONDS)
    cases = Cases()
    try:
        for one in seeds(seed, count):
            cases.run(one)
    finally:
        cases.close()
    return cases.outcomes


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10_000)
    given = parser.parse_args()
    start = time.perf_counter()
    outcomes = run(given.seed, given.count)
    print(
        f"{given.count} cases in {time.perf_counter() - start:.0f} s: no wrong element, no error without a code, none hung"
    )
    for outcome, number in outcomes.most_common():
        print(f"  {outcome:15} {number}")


if __name__ == "__main__":
    main()
