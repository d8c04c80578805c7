"""The loop: makes inputs, scans them, gives those that the scan calls inert to the readers, and keeps the finds."""

from __future__ import annotations

import collections
import hashlib
import heapq
import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fuzz.oracle import mutate, witness
from fuzz.oracle.elsewhere import Elsewhere
from fuzz.oracle.fence import Fence, Result, Task
from fuzz.oracle.scans import Scans
from fuzz.oracle.walk import OTHER_READERS

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    from fuzz.oracle.watch import Name

    Made = dict[int, tuple[str, list[str]]]
    """By the number of an input, its kind and how it was made."""

BATCH = 512
"""The inert inputs that one child reads."""
POOL_MAX = 4096
KEPT_PER_KIND = 3
"""The files that are kept of finds of one kind by one reader."""
SLOW_SCAN_SECONDS = 2.0
PROGRESS_SECONDS = 60.0
"""Seconds between two lines about the progress of a campaign."""


@dataclass
class Counts:
    """What a campaign did."""

    inputs: collections.Counter[str] = field(default_factory=collections.Counter)
    """By kind: seeds, and what is made."""
    inert_inputs: collections.Counter[str] = field(default_factory=collections.Counter)
    """Those of them that are inert."""
    inert: collections.Counter[str] = field(default_factory=collections.Counter)
    """By the first way of scanning in which the file is inert."""
    names: collections.Counter[str] = field(default_factory=collections.Counter)
    """The classes and functions of inert programs."""
    slow: int = 0
    seconds: float = 0.0
    ran: collections.Counter[str] = field(default_factory=collections.Counter)
    """By reader, the inputs and contents that it read without an error."""
    tried: collections.Counter[str] = field(default_factory=collections.Counter)
    failed: collections.Counter[str] = field(default_factory=collections.Counter)
    """By reader, the inputs on which it crashed or did not end."""
    finds: collections.Counter[str] = field(default_factory=collections.Counter)
    """The inputs with finds, by the kind and the reader of the first."""

    def merge(self, other: dict[str, Any]) -> None:
        """Adds the counts of another job."""
        for name, value in other.items():
            if isinstance(value, dict):
                getattr(self, name).update(value)
            else:
                setattr(self, name, getattr(self, name) + value)

    def to_json(self) -> dict[str, Any]:
        """As a dict of numbers and dicts."""
        return {name: dict(value) if isinstance(value, dict) else value for name, value in vars(self).items()}


class Campaign:
    """Inputs of one seed, in order."""

    def __init__(
        self,
        seeds: dict[str, bytes],
        *,
        wanted: dict[str, int],
        seed: int,
        out: pathlib.Path | None,
        work: pathlib.Path,
        pythons: list[str],
    ) -> None:
        self.counts, self._out = Counts(), out
        self._fence = Fence()
        self._elsewhere = [Elsewhere(python) for python in pythons]
        self._seeds, self._seed, self._wanted = seeds, seed, wanted
        self._pool = list(seeds.values())
        self._seen: set[str] = set()
        self._kept: collections.Counter[str] = collections.Counter()
        self._scans = Scans(work)

    def run(self, seconds: float) -> None:
        """Runs the inputs that are wanted, or as many as take so many seconds."""
        if blind := witness.unnoticed(self._fence):
            raise RuntimeError("the oracle does not notice:\n" + "\n".join(blind))
        start, said, batch, made = time.monotonic(), 0.0, [], {}
        for number, (kind, data, how) in enumerate(self._inputs()):
            self.counts.seconds = time.monotonic() - start
            if self.counts.seconds >= seconds:
                break
            if self.counts.seconds >= said + PROGRESS_SECONDS:
                said = self.counts.seconds
                print(
                    f"{dict(self.counts.inputs)}, {sum(self.counts.finds.values())} find(s)", file=sys.stderr
                )
            self.counts.inputs[kind] += 1
            # Of a bare program, of which there are most, only the verdict on its content and what CPython makes of it.
            is_brief = kind == "programs" and number % 8 != 0 and how == ["program"]
            inert = self._scan(kind, data, is_brief=is_brief)
            if inert is None:
                continue
            way, listed = inert
            self.counts.inert_inputs[kind] += 1
            self.counts.inert[way] += 1
            made[number] = kind, how
            batch.append(Task(number, data, listed, way, set(OTHER_READERS) if is_brief else set()))
            if len(batch) == BATCH:
                self._examine(batch, made)
                batch, made = [], {}
        self._examine(batch, made)
        self.counts.seconds = time.monotonic() - start
        for runner in (self._fence, *self._elsewhere):
            runner.close()

    def _inputs(self) -> Iterator[tuple[str, bytes, list[str]]]:
        """The seeds, then what is made, of all kinds at the same pace."""
        for name, data in self._seeds.items():
            yield "seeds", data, [name]
        makers = {kind: mutate.KINDS[kind](self._seed, self._pool) for kind in self._wanted}
        ahead = [(0.5 / wanted, kind) for kind, wanted in self._wanted.items() if wanted]
        heapq.heapify(ahead)
        while ahead:
            share, kind = ahead[0]
            yield kind, *next(makers[kind])
            share += 1 / self._wanted[kind]
            if share < 1:
                heapq.heapreplace(ahead, (share, kind))
            else:
                heapq.heappop(ahead)

    def _scan(self, kind: str, data: bytes, *, is_brief: bool) -> tuple[str, dict[Name, int]] | None:
        """The first way in which an input is inert, and its names; in brief, only whether its content is."""
        began = time.monotonic()
        if is_brief:
            names = self._scans.content(data)
            inert = None if names is None else ("content", names)
        else:
            inert = self._scans.inert(data)
        self.counts.slow += time.monotonic() - began > SLOW_SCAN_SECONDS
        if kind == "programs" and inert is not None:
            self.counts.names.update(".".join(name) for name in inert[1])
        return inert

    def _examine(self, batch: list[Task], made: Made) -> None:
        """Runs the readers on inert inputs, here and in the other interpreters."""
        for result in self._fence.run(batch):
            if made[result.task.number][0] != "programs":  # which are as new without them
                self._keep_input(result)
            self._count(result, made)
        for other in self._elsewhere:
            for result in other.run(batch):
                self._count(result, made)
        for runner in (self._fence, *self._elsewhere):
            for task, reader, how in runner.failures:
                self.counts.failed[reader] += 1
                about = {"reader": reader, "how": how, "made": made[task.number]}
                self._write(f"failed-{reader}", task.data, about)
            runner.failures.clear()

    def _count(self, result: Result, made: Made) -> None:
        for label, outcome in result.outcomes.items():
            reader = label.rpartition(">")[2]
            self.counts.tried[reader] += 1
            self.counts.ran[reader] += outcome.startswith("ok")
        if result.finds:
            self._keep_finds(result, made)

    def _keep_input(self, result: Result) -> None:
        """Keeps an inert input to start from, if the readers end on it in a way that is new."""
        signature = json.dumps(sorted(result.outcomes.items())) + str(sorted(result.task.inert))
        if signature not in self._seen and len(self._pool) < POOL_MAX and not result.finds:
            self._seen.add(signature)
            self._pool.append(result.task.data)

    def _keep_finds(self, result: Result, made: Made) -> None:
        """Counts an input with finds by the first of them."""
        first = result.finds[0]
        label = f"{result.task.way}, {first.kind}, {first.reader}"
        self.counts.finds[label] += 1
        about = {"finds": [" | ".join(find) for find in result.finds]}
        self._write(
            label,
            result.task.data,
            {**about, "seed": self._seed, "made": made[result.task.number]},
        )

    def _write(self, label: str, data: bytes, about: dict[str, Any]) -> None:
        """Writes a file that is worth a look, and what is known of it."""
        self._kept[label] += 1
        if self._out is None or self._kept[label] > KEPT_PER_KIND:
            return
        plain = "".join(letter if letter.isalnum() else "-" for letter in label)
        path = self._out / f"{plain}-{hashlib.sha1(data).hexdigest()[:8]}"
        path.with_suffix(".bin").write_bytes(data)
        path.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n")


class Replay:
    """Runs single files."""

    def __init__(self, work: pathlib.Path) -> None:
        self._scans, self._fence = Scans(work), Fence()

    def run(self, data: bytes) -> Result | None:
        """What the readers do with the file; None if the scan calls it inert in no way."""
        inert = self._scans.inert(data)
        if inert is None:
            return None
        way, listed = inert
        return next(iter([*self._fence.run([Task(0, data, listed, way)])]), None)

    def close(self) -> None:
        """Ends the replay."""
        self._fence.close()
