"""The timed cases on a GPU: the file, the requested conversion, the limit, and the goal relative to the limit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import safetensors.torch
import torch

from benches.python import measure

from . import peers, probes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 1 << 20
LIMIT = "(limit)"
CAST_LIMIT = "(limit of the CPU's cast)"


@dataclass(frozen=True)
class File:
    """Tensors of one shape and dtype; written once per run, in both formats."""

    name: str
    count: int
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return self.count * torch.Size(self.shape).numel() * _dtype(self.dtype).itemsize

    def path(self, folder: Path, suffix: str) -> Path:
        """Its path; writes the file if it does not exist."""
        size = "x".join(map(str, (self.count, *self.shape)))
        path = folder / f"{self.name}-{size}{suffix}"
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            generator = torch.Generator().manual_seed(1)
            count = torch.Size(self.shape).numel()
            made = torch.randn(count, generator=generator).to(_dtype(self.dtype)).reshape(self.shape)
            state = {f"model.layers.{at}.weight": made.roll(at, 0) for at in range(self.count)}
            if suffix == ".bin":
                torch.save(state, unfinished)
            else:
                safetensors.torch.save_file(state, unfinished)
            unfinished.rename(path)
        return path


@dataclass(frozen=True)
class Case:
    """One file and the requested conversion.

    Attributes:
        title: A description.
        file: The file.
        conversion: The conversion of each tensor.
        goal: The fraction of the limit that rustload has to reach; None without a goal.
        times_stock: The required speed-up over the stock loaders; None without a goal.
    """

    title: str
    file: File
    conversion: peers.Conversion = field(default_factory=peers.Conversion)
    goal: float | None = None
    times_stock: float | None = None

    @property
    def result_bytes(self) -> int:
        """Bytes of the results."""
        dtype = _dtype(self.conversion.dtype or self.file.dtype)
        return self.file.nbytes // _dtype(self.file.dtype).itemsize * dtype.itemsize

    @property
    def crossing(self) -> int:
        """Bytes that must be copied over the link: those of the file or of the results, whichever are fewer."""
        return min(self.file.nbytes, self.result_bytes)

    @property
    def narrows(self) -> bool:
        """Whether a cast on the CPU reduces the bytes that are copied."""
        return self.crossing < self.file.nbytes


def cases(*, quick: bool) -> list[Case]:
    """All cases; with `quick` in small sizes whose times mean nothing."""
    side, layers, experts, tiny = (1024, 6, 40, 200) if quick else (16384, 300, 18_000, 20_000)
    large = File("large", 1, (side, side), "float32")
    half = File("half", 1, (2 * side, side), "bfloat16")
    model = File("model", layers, (64, 64) if quick else (2048, 3584), "bfloat16")
    moe = File("moe", experts, (16, 64) if quick else (256, 512), "bfloat16")
    small = File("small", tiny, (16, 16), "float32")
    return [
        Case("one float32 tensor", large, goal=0.90, times_stock=4),
        Case(f"a model of {layers} bfloat16 tensors", model, goal=0.80, times_stock=4),
        Case(f"a model of {experts:,} bfloat16 tensors", moe, goal=0.60, times_stock=4),
        Case(f"{tiny:,} float32 tensors of 1 KiB", small),
        Case("float32 to bfloat16", large, peers.Conversion("bfloat16"), goal=0.80),
        Case("bfloat16 to float32", half, peers.Conversion("float32"), goal=0.85),
        Case("float32 transposed", large, peers.Conversion(transpose=True), goal=0.85),
        Case("float32 to bfloat16, transposed", large, peers.Conversion("bfloat16", transpose=True)),
    ]


def run(
    case: Case,
    suffix: str,
    folder: Path,
    device: str,
    *,
    rounds: int,
    with_peaks: bool = True,
    end: float = float("inf"),
) -> dict[str, Any]:
    """Checks, times and measures one case in one format; a loader that fails gets a row with the reason.

    Args:
        case: The case.
        suffix: The format of the file.
        folder: Where the files are, or are made.
        device: The GPU.
        rounds: The number of rounds.
        with_peaks: Whether to measure peaks of memory, each in a process of its own.
        end: The value of `time.monotonic` after which no round but the first three and no peak is measured.
    """
    path = case.file.path(folder, suffix)
    measure.read_through(path)
    expected = safe_reference(path, case.conversion)
    ready: dict[str, Callable[[], object]] = {}
    failed: dict[str, str] = {}
    for name, way in peers.ways(suffix, case.conversion).items():
        problem = _problem(way, path, case.conversion, device, expected)
        if problem:
            failed[name] = problem
        else:
            ready[name] = _guarded(name, _timed(way, path, case.conversion, device), failed)
    del expected
    limits: dict[str, Callable[[], object]] = {LIMIT: probes.pinned_copies(device, 256 * MIB, case.crossing)}
    if case.narrows:
        limits[CAST_LIMIT] = probes.cpu_cast(case.file.nbytes)
    budget = max(0.0, end - time.monotonic())
    times = measure.interleave({**ready, **limits}, rounds=rounds, arena=0, budget=budget)
    limit = max(times[name].median for name in limits)
    rows: list[dict[str, Any]] = [
        {
            "way": name,
            "median_s": taken.median,
            "spread": taken.spread,
            "of_limit": limit / taken.median,
        }
        for name, taken in times.items()
        if name not in failed
    ]
    for row in rows:
        if with_peaks and row["way"] not in limits and time.monotonic() < end:
            row.update(peaks(row["way"], suffix, path, case, device))
    rows += [{"way": name, "failed": why} for name, why in failed.items()]
    return {
        "case": case.title,
        "format": suffix,
        "nbytes": case.file.nbytes,
        "result_bytes": case.result_bytes,
        "rows": rows,
    }


def safe_reference(path: Path, conversion: peers.Conversion) -> dict[str, torch.Tensor]:
    """The results by torch on the CPU."""
    if path.suffix == ".bin":
        state: dict[str, torch.Tensor] = torch.load(path, weights_only=True, mmap=True)
    else:
        state = safetensors.torch.load_file(path)
    return {name: conversion.finish(tensor) for name, tensor in state.items()}


def peaks(name: str, suffix: str, path: Path, case: Case, device: str) -> dict[str, Any]:
    """Peaks of host and device memory above the results, for a first load in a process of its own."""
    try:
        (torch_peak, held), host = measure.in_child(hold, name, suffix, str(path), case.conversion, device)
    except RuntimeError as error:
        return {"peaks_failed": str(error)}
    return {
        "device_beyond": torch_peak - case.result_bytes,
        "device_held_beyond": held - case.result_bytes,
        "host_beyond": host,
    }


def hold(
    begin: Callable[[], None], name: str, suffix: str, path: str, conversion: peers.Conversion, device: str
) -> tuple[int, int]:
    """Runs one loader once in a watched process; returns the peak of torch's allocator and the device memory still in use."""
    from pathlib import Path

    way = peers.ways(suffix, conversion)[name]
    torch.ones(64, 64, device=device).to(torch.bfloat16).t().contiguous()  # starts CUDA and loads kernels
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    begin()
    result = way(Path(path), conversion, device)
    torch.cuda.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    held = free - torch.cuda.mem_get_info(device)[0]
    del result
    return peak, held


def goals(results: list[dict[str, Any]], *, quick: bool) -> Iterator[tuple[str, float, float, bool]]:
    """The goal, the result, the bound, and whether it is met; missing rows are skipped."""
    by_title = {case.title: case for case in cases(quick=quick)}
    ours: dict[tuple[str, str], float] = {}
    for result in results:
        rows = {row["way"]: row for row in result["rows"] if "failed" not in row}
        what = f"{result['case']}, {result['format']}"
        row = rows.get(peers.OURS)
        if row is None:
            yield f"{what}: rustload has a result", 0, 1, False
            continue
        case = by_title[result["case"]]
        ours[result["case"], result["format"]] = row["median_s"]
        if case.goal is not None:
            yield f"{what}: part of the limit", row["of_limit"], case.goal, row["of_limit"] >= case.goal
        peer_goals = {peers.PREFETCH: 1.0, peers.INSTANT: 1.0}
        if case.times_stock is not None:
            peer_goals |= {peers.TORCH_LOAD: case.times_stock, peers.LOAD_FILE: case.times_stock}
        for peer, times in peer_goals.items():
            if peer in rows and (case.times_stock is not None or times == 1.0):
                ratio = rows[peer]["median_s"] / row["median_s"]
                yield f"{what}: times faster than {peer}", ratio, times, ratio >= times
        for key, most, of in (("device_beyond", 64, "device"), ("host_beyond", 256, "host")):
            if key in row:
                found = row[key] / MIB
                yield f"{what}: MiB of {of} memory beyond the result", found, most, found <= most
    for (title, suffix), seconds in ours.items():
        other = ours.get((title, ".safetensors"))
        if suffix == ".bin" and other is not None and by_title[title].goal is not None:
            yield f"{title}: time of .bin over .safetensors", seconds / other, 1.05, seconds / other <= 1.05


def _timed(way: peers.Way, path: Path, conversion: peers.Conversion, device: str) -> Callable[[], object]:
    def work() -> object:
        result = way(path, conversion, device)
        torch.cuda.synchronize(device)
        return result

    return work


def _guarded(name: str, work: Callable[[], object], failed: dict[str, str]) -> Callable[[], object]:
    """The same work; an exception is kept in `failed` and ends only this loader."""

    def guarded() -> object:
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - another loader's failure is a row, not the end
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            return None

    return guarded


def _problem(
    way: peers.Way, path: Path, conversion: peers.Conversion, device: str, expected: dict[str, torch.Tensor]
) -> str | None:
    try:
        found = way(path, conversion, device)
        if found.keys() != expected.keys():
            return "other names"
        wrong = [name for name, tensor in expected.items() if not _is_equal(found[name], tensor, device)]
    except Exception as error:  # noqa: BLE001 - another loader's failure is a row, not the end
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return f"{len(wrong)} tensors differ, such as {wrong[0]}" if wrong else None


def _is_equal(found: torch.Tensor, expected: torch.Tensor, device: str) -> bool:
    same = found.device.type == torch.device(device).type and found.dtype == expected.dtype
    return same and found.shape == expected.shape and torch.equal(found.cpu(), expected)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype)
    return found
