"""`make bench`: times every case against other loaders and prints all rows, including those that rustload loses.

    python -m benches.python [--quick] [--filter TEXT] [--rounds N] [--minutes N] [--json OUT] [--plot OUT]

The cases in which torch allocates run again in a second process with torch's own huge-page switch on, because
users may have it on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import torch

import rustload

from . import measure
from .case import hold
from .cases import all_cases
from .plot import svg

if TYPE_CHECKING:
    from .case import Case

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
LIMIT = "(limit)"


def main() -> None:
    """Runs the selected cases."""
    args = parse()
    huge_pages = os.environ.get(HUGE_PAGES) == "1"
    cases = [case for case in all_cases(quick=args.quick) if args.filter in case.title]
    rerun = [case for case in cases if case.allocates]
    print_heading(args.rounds, huge_pages=huge_pages)
    if huge_pages:
        results = run_all(rerun, args, args.minutes, huge_pages=True)
    elif args.quick or not rerun:
        results = run_all(cases, args, args.minutes, huge_pages=False)
    else:
        # The second process does not check results, so it is faster.
        minutes = args.minutes * len(cases) / (len(cases) + len(rerun) / 2)
        results = run_all(cases, args, minutes, huge_pages=False)
        results += rerun_with_huge_pages(args, args.minutes - minutes)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "results": results}, indent=1) + "\n")
    if args.plot:
        args.plot.write_text(svg(results), encoding="utf-8")


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benches.python", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="small sizes and few rounds: a smoke test whose times mean nothing",
    )
    parser.add_argument(
        "--filter", default="", metavar="TEXT", help="only the cases whose title contains TEXT"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds per case (5, with --quick 3)")
    parser.add_argument(
        "--minutes",
        type=float,
        default=18,
        metavar="N",
        help="the time limit (18): slow cases get fewer rounds, at least three; the last cases may be skipped",
    )
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the results to this file")
    parser.add_argument("--plot", type=Path, metavar="OUT", help="also draw the results as SVG")
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 5)
    return args


def machine() -> dict[str, str]:
    """The machine and versions that the figures belong to."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cpu": f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "rustload": rustload.__version__,
        "torch": torch.__version__,
        "safetensors": safetensors.__version__,
    }


def run_all(
    cases: list[Case], args: argparse.Namespace, minutes: float, *, huge_pages: bool
) -> list[dict[str, Any]]:
    """Runs the cases that can run here, for at most this many minutes."""
    end = time.monotonic() + 60 * minutes
    results = []
    for at, case in enumerate(cases):
        left = end - time.monotonic()
        reason = case.reason_to_skip() or (
            None if left > 0 else "the time limit is reached; --filter runs this case alone"
        )
        if reason is None:
            # About half of the time is spent on files, checks and peaks.
            results.append(run(case, args.rounds, left / (len(cases) - at) / 2, huge_pages=huge_pages))
        else:
            print(f"\n{case.title}\n  skipped: {reason}", flush=True)
    return results


def run(case: Case, rounds: int, budget: float, *, huge_pages: bool) -> dict[str, Any]:
    """Checks, times and prints one case."""
    case.prepare()
    measure.read_through(case.path)
    ways = case.ways()
    peaks = {}
    if not huge_pages:  # the second process only measures times
        case.check()
        if case.has_peaks:
            peaks = {name: measure.in_child(hold, case, name)[1] for name in ways}
    times = measure.interleave(
        {**ways, LIMIT: case.limit_probe()},
        rounds=rounds,
        arena=case.arena,
        budget=budget,
        before=case.before,
    )
    rows = [
        {
            "way": name,
            "median_s": taken.median,
            "seconds": taken.seconds,
            "spread": taken.spread,
            "peak_bytes": max((run.anonymous for run in taken.fresh), default=peaks.get(name)),
            "cpu_s": statistics.median(run.cpu for run in taken.fresh) if taken.fresh else None,
            "times_rustload": taken.median / times["rustload"].median,
        }
        for name, taken in times.items()
    ]
    print_case(case, rows)
    return {
        "case": case.title,
        "nbytes": case.nbytes,
        "limit": case.limit,
        "notes": list(case.notes),
        "torch_huge_pages": huge_pages,
        "rows": rows,
    }


def rerun_with_huge_pages(args: argparse.Namespace, minutes: float) -> list[dict[str, Any]]:
    """Runs the cases in which torch allocates again, with torch requesting huge pages as rustload does."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        command = [sys.executable, "-m", "benches.python", "--json", str(out), "--filter", args.filter]
        command += ["--rounds", str(args.rounds), "--minutes", str(minutes)]
        subprocess.run(command, env={**os.environ, HUGE_PAGES: "1"}, check=True)
        results: list[dict[str, Any]] = json.loads(out.read_text())["results"]
        return results


def print_heading(rounds: int, *, huge_pages: bool) -> None:
    """Prints how the figures below were measured."""
    switch = f", torch with {HUGE_PAGES}=1" if huge_pages else ""
    print(f"\n=== {', '.join(f'{key} {value}' for key, value in machine().items())}{switch} ===")
    print(
        f"Files are in the page cache, unless a title says cold. Medians of up to {rounds} interleaved rounds. "
        f"GB/s of file bytes. spread = (slowest - fastest) / median. First loads are in processes that have loaded nothing; "
        f"all other rows are loops."
    )
    print(
        "x rustload = the row's time / rustload's time: below 1, that row is faster.  peak = anonymous memory."
    )


def print_case(case: Case, rows: list[dict[str, Any]]) -> None:
    """Prints one case's table."""
    print(f"\n{case.title}\n  limit: {case.limit}")
    print(f"  {'':<42}{'ms':>10}{'CPU ms':>10}{'GB/s':>8}{'spread':>8}{'x rustload':>12}{'peak MB':>9}")
    for row in rows:
        rate = "" if not case.reads else f"{case.nbytes / row['median_s'] / 1e9:.1f}"
        cpu = "" if row["cpu_s"] is None else f"{row['cpu_s'] * 1e3:.0f}"
        peak = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.1f}"
        ratio = "" if row["way"] == "rustload" else f"{row['times_rustload']:.2f}"
        is_peer = row["way"] != LIMIT and not row["way"].startswith("rustload")
        slower = "  faster than rustload" if is_peer and row["times_rustload"] < 1 else ""
        print(
            f"  {row['way']:<42}{row['median_s'] * 1e3:>10.3f}{cpu:>10}{rate:>8}{row['spread']:>8.0%}"
            f"{ratio:>12}{peak:>9}{slower}",
            flush=True,
        )
    for note in case.notes:
        print(f"  {note}")


if __name__ == "__main__":
    main()
