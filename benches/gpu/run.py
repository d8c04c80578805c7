"""The GPU suite: correctness on the device, probes of the link, a sweep of the ring, and times beside other loaders.

    python -m benches.gpu.run [--quick] [--check] [--only PART ...] [--files DIR] [--no-peaks] [--minutes N] [--json OUT]

It needs an installed rustload, torch for CUDA and safetensors, no network, and the folder `benches` of the repository. All files
(25 GB at full size, and as much memory to hold them in the page cache) are made in a temporary folder, or in `--files DIR`, where
they are kept for the next call; a tmpfs is best. Other installed loaders are timed too. Without a GPU it prints a message
and exits with 0. `--check` makes figures below the goals an error. A call begins nothing new after 8 minutes (`--minutes`) and
prints what it has left out; `--json` is written after every case.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __package__ in (None, ""):  # run as a file
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import safetensors
import torch

import rustload
from benches.gpu import cases, checks, matrix, peers, probes, quantized, sweep
from benches.python import measure

if TYPE_CHECKING:
    from collections.abc import Callable

PARTS = ("correctness", "probes", "sweep", "cases")


def main(arguments: list[str] | None = None) -> int:
    """Runs the selected parts; returns 1 if a result is wrong, or with `--check` if a goal is missed."""
    args = parse(arguments)
    reason = reason_to_skip(args.device)
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    if args.device != "cpu":
        torch.cuda.set_device(args.device)
    found: dict[str, Any] = {"machine": machine(args.device)}
    print(" · ".join(f"{key} {value}" for key, value in found["machine"].items()))

    def save() -> None:
        if args.json:
            args.json.write_text(json.dumps(found, indent=1))

    with contextlib.ExitStack() as stack:
        folder = args.files
        if folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="rustload-gpu-", dir=args.folder)
            folder = Path(stack.enter_context(temporary))
        folder.mkdir(parents=True, exist_ok=True)
        for part in args.only:
            start = time.perf_counter()
            # Filled while the part runs, so that what is there is saved whatever happens next.
            found[part] = {"results": [], "goals": [], "left_out": []} if part == "cases" else []
            RUN[part](folder, args, found[part], save)
            save()
            print(f"({part}: {time.perf_counter() - start:.0f} s)", flush=True)
    wrong = sum(len(one["wrong"]) for one in found.get("correctness", ()))
    missed = [goal for goal in found.get("cases", {}).get("goals", ()) if not goal["holds"]]
    return int(wrong > 0 or (args.check and bool(missed)))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benches.gpu.run", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes and few rounds: a smoke test whose times mean nothing",
    )
    parser.add_argument("--check", action="store_true", help="figures below the goals are an error")
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--filter", default="", metavar="TEXT", help="only the cases whose title contains TEXT"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds per case (7, with --quick 3)")
    parser.add_argument("--device", default="cuda:0", help="the GPU; cpu runs only the correctness part")
    parser.add_argument("--folder", type=Path, help="where to create the temporary folder")
    parser.add_argument("--files", type=Path, metavar="DIR", help="make the files there, and keep them")
    parser.add_argument("--no-peaks", action="store_true", help="do not measure peaks of memory")
    parser.add_argument(
        "--minutes", type=float, default=8, metavar="N", help="begin nothing new after so many minutes"
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the results to this file")
    args = parser.parse_args(arguments)
    args.rounds = args.rounds or (3 if args.quick else 7)
    args.end = time.monotonic() + args.minutes * 60
    if args.device == "cpu":
        args.only = [part for part in args.only if part == "correctness"]
    return args


def reason_to_skip(device: str) -> str | None:
    """Why the suite cannot run here, or None."""
    if device == "cpu":
        return None
    if torch.version.cuda is None:
        return f"torch {torch.__version__} was built without CUDA"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    if (torch.device(device).index or 0) >= torch.cuda.device_count():
        return f"there is no {device}: torch sees {torch.cuda.device_count()} GPU(s)"
    return None


def machine(device: str) -> dict[str, str]:
    """The machine and versions that the figures belong to."""
    found = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "rustload": rustload.__version__,
        "torch": torch.__version__,
        "safetensors": safetensors.__version__,
        "python": platform.python_version(),
        "cpu": f"{_cpu()}, {torch.get_num_threads()} threads",
    }
    if device != "cpu":
        properties = torch.cuda.get_device_properties(device)
        found["gpu"] = f"{properties.name}, {properties.total_memory >> 30} GiB, CUDA {torch.version.cuda}"
    return found


def is_late(args: argparse.Namespace, what: str) -> bool:
    """Whether nothing more may begin; then says that `what` is left out."""
    late: bool = time.monotonic() > args.end
    if late:
        print(f"  left out after {args.minutes:g} minutes: {what}", flush=True)
    return late


def correctness(
    folder: Path, args: argparse.Namespace, found: list[dict[str, Any]], save: Callable[[], None]
) -> None:
    """Compares every API call for every tensor, bit by bit."""
    print(f"\n=== correctness on {args.device}: tensors equal to the bit ===")
    for one in matrix.outcomes(folder, args.device, quick=args.quick):
        found.append({"way": one.way, "checks": one.checks, "wrong": one.wrong})
        print_outcome(one)
        save()
        if is_late(args, f"what comes after {one.way}"):
            break
    total, wrong = sum(one["checks"] for one in found), sum(len(one["wrong"]) for one in found)
    print(f"  {total:,} checks, {wrong:,} wrong")


def print_outcome(one: checks.Outcome) -> None:
    """Prints a line, and the failures below it."""
    print(f"  {one.way:<40}{one.checks:>8,}{'' if one.wrong else '  all equal'}", flush=True)
    for what in one.wrong[:5]:
        print(f"      wrong: {what}")
    if len(one.wrong) > 5:
        print(f"      and {len(one.wrong) - 5:,} more")


def probed(
    folder: Path, args: argparse.Namespace, found: list[dict[str, Any]], save: Callable[[], None]
) -> None:
    """Measures the limits of the machine."""
    print(f"\n=== probes of {args.device}, medians ===")
    file = _sample(folder, args)
    for what, figure, unit in itertools.chain(
        probes.probes(file, args.device, quick=args.quick),
        quantized.rates(folder, args.device, quick=args.quick),
    ):
        found.append({"what": what, "figure": figure, "unit": unit})
        print(f"  {what:<52}{figure:>10.2f} {unit}", flush=True)
        save()
        if is_late(args, f"what comes after {what}"):
            break


def swept(
    folder: Path, args: argparse.Namespace, found: list[dict[str, Any]], save: Callable[[], None]
) -> None:
    """Tries slot sizes and numbers of workers."""
    print("\n=== slot size and workers: GB/s of one tensor, file in the page cache ===")
    file = _sample(folder, args)
    for slot, workers, rate in sweep.sweep(file, args.device, quick=args.quick):
        found.append({"slot": slot, "workers": workers, "rate": rate})
        label = rate if isinstance(rate, str) else f"{rate:.1f}"
        what = f"slots of {slot >> 10:>6} KiB, {workers:>2} workers" if slot else "defaults"
        print(f"  {what}: {label}", flush=True)
        save()
        if is_late(args, f"what comes after {what}"):
            break


def timed(folder: Path, args: argparse.Namespace, found: dict[str, Any], save: Callable[[], None]) -> None:
    """Times the cases beside other loaders, then checks the goals."""
    print(f"\n=== warm file to {args.device}: medians of {args.rounds} interleaved rounds ===")
    print(
        "GB/s of the file's bytes; of limit = the limit's time over the row's; MiB beyond the results, first load in a process."
    )
    results = found["results"]
    for case in cases.cases(quick=args.quick):
        if args.filter not in case.title:
            continue
        for suffix in (".safetensors", ".bin"):
            if is_late(args, f"{case.title}, {suffix}"):
                found["left_out"].append([case.title, suffix])
                continue
            results.append(
                cases.run(
                    case,
                    suffix,
                    folder,
                    args.device,
                    rounds=args.rounds,
                    with_peaks=not args.no_peaks,
                    end=args.end,
                )
            )
            print_case(results[-1])
            save()
    found["goals"] += [
        {"goal": what, "found": figure, "bound": bound, "holds": holds}
        for what, figure, bound, holds in cases.goals(results, quick=args.quick)
    ]
    print_goals(found["goals"])


def print_case(result: dict[str, Any]) -> None:
    """Prints one case's table."""
    print(f"\n{result['case']}, {result['format']}, {result['nbytes'] / 1e6:,.0f} MB")
    print(
        f"  {'':<44}{'ms':>10}{'GB/s':>8}{'spread':>8}{'of limit':>10}{'x rustload':>12}{'device':>8}{'host':>8}"
    )
    ours = next(
        (row["median_s"] for row in result["rows"] if row["way"] == peers.OURS and "median_s" in row), None
    )
    for row in result["rows"]:
        if "failed" in row:
            print(f"  {row['way']:<44}failed: {row['failed']}")
            continue
        seconds = row["median_s"]
        times = "" if ours is None or row["way"] == peers.OURS else f"{seconds / ours:.2f}"
        beyond = [
            f"{row[key] / cases.MIB:.0f}" if key in row else "" for key in ("device_beyond", "host_beyond")
        ]
        is_peer = not row["way"].startswith(("rustload", "("))
        mark = "  faster than rustload" if is_peer and ours is not None and seconds < ours else ""
        print(
            f"  {row['way']:<44}{seconds * 1e3:>10.2f}{result['nbytes'] / seconds / 1e9:>8.1f}{row['spread']:>8.0%}"
            f"{row['of_limit']:>10.2f}{times:>12}{beyond[0]:>8}{beyond[1]:>8}{mark}",
            flush=True,
        )


def print_goals(found: list[dict[str, Any]]) -> None:
    """Prints the goals and the results."""
    print("\n=== goals ===")
    for goal in found:
        word = "holds" if goal["holds"] else "MISSED"
        print(f"  {word:<8}{goal['goal']}: {goal['found']:.2f}, bound {goal['bound']:g}")


RUN: dict[str, Callable[..., None]] = {
    "correctness": correctness,
    "probes": probed,
    "sweep": swept,
    "cases": timed,
}


def _sample(folder: Path, args: argparse.Namespace) -> Path:
    """The file of one large tensor, in the page cache."""
    path = cases.cases(quick=args.quick)[0].file.path(folder, ".safetensors")
    measure.read_through(path)
    return path


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    sys.exit(main())
