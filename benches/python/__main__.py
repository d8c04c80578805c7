"""`make bench`: times every case against its peers and prints all rows, the losing ones too.

    python -m benches.python [--quick] [--filter TEXT] [--rounds N] [--json OUT] [--plot OUT]

The cases in which torch allocates run again in a second process with torch's own huge-page switch on, since
a user may have it on.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import measure
from .case import hold
from .cases import all_cases
from .many import GrowthCase
from .opening import OpenCase
from .plot import svg

if TYPE_CHECKING:
    from .case import Case

HUGE_PAGES = "THP_MEM_ALLOC_ENABLE"
LIMIT = "(limit)"


def main() -> None:
    """Runs what the command line asks for."""
    args = parse()
    huge_pages = os.environ.get(HUGE_PAGES) == "1"
    cases = [
        case
        for case in all_cases(quick=args.quick)
        if args.filter in case.title and (case.allocates or not huge_pages)
    ]
    print_heading(args.rounds, huge_pages=huge_pages)
    results = [run(case, args.rounds, huge_pages=huge_pages) for case in cases]
    if not huge_pages and not args.quick and any(case.allocates for case in cases):
        results += again_with_huge_pages(args)
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))
    if args.plot:
        args.plot.write_text(svg(results), encoding="utf-8")


def parse() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benches.python", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few rounds: a smoke test, no figures"
    )
    parser.add_argument(
        "--filter", default="", metavar="TEXT", help="only the cases whose title contains TEXT"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds per case (5, with --quick 3)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="also write the results to this file")
    parser.add_argument("--plot", type=Path, metavar="OUT", help="also draw the results as SVG")
    args = parser.parse_args()
    args.rounds = args.rounds or (3 if args.quick else 5)
    return args


def run(case: Case, rounds: int, *, huge_pages: bool) -> dict[str, Any]:
    """Checks, times and prints one case."""
    case.prepare()
    measure.read_through(case.path)
    case.check()
    ways = case.ways()
    peaks = {name: measure.in_child(hold, case, name)[1] for name in ways}
    arena = 0 if isinstance(case, (OpenCase, GrowthCase)) else 2 * case.nbytes
    times = measure.interleave(
        {**ways, LIMIT: case.limit_probe()}, rounds=rounds, arena=arena, before=case.before
    )
    rows = [
        {
            "way": name,
            "median_s": taken.median,
            "seconds": taken.seconds,
            "spread": taken.spread,
            "peak_bytes": peaks.get(name),
            "times_rustload": taken.median / times["rustload"].median,
        }
        for name, taken in times.items()
    ]
    print_case(case, rows)
    return {
        "case": case.title,
        "nbytes": case.nbytes,
        "limit": case.limit,
        "torch_huge_pages": huge_pages,
        "rows": rows,
    }


def again_with_huge_pages(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs the cases in which torch allocates where torch asks for huge pages, as rustload does."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "results.json"
        command = [sys.executable, "-m", "benches.python", "--rounds", str(args.rounds), "--json", str(out)]
        subprocess.run([*command, "--filter", args.filter], env={**os.environ, HUGE_PAGES: "1"}, check=True)
        results: list[dict[str, Any]] = json.loads(out.read_text())
        return results


def print_heading(rounds: int, *, huge_pages: bool) -> None:
    """Says how the figures below came about."""
    switch = f", torch with {HUGE_PAGES}=1" if huge_pages else ""
    print(f"\n=== torch {torch.__version__}, {torch.get_num_threads()} threads, warm files{switch} ===")
    print(
        f"Medians of {rounds} interleaved rounds; spread = (slowest - fastest) / median; GB/s of file bytes."
    )
    print(
        "x rustload = the row's time over rustload's: below 1, that row is faster.  peak = anonymous memory."
    )


def print_case(case: Case, rows: list[dict[str, Any]]) -> None:
    """Prints one case's table."""
    print(f"\n{case.title}\n  limit: {case.limit}")
    print(f"  {'':<42}{'ms':>10}{'GB/s':>8}{'spread':>8}{'x rustload':>12}{'peak MB':>9}")
    for row in rows:
        rate = "" if not case.reads else f"{case.nbytes / row['median_s'] / 1e9:.1f}"
        high = "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 1e6:.1f}"
        ratio = "" if row["way"] == "rustload" else f"{row['times_rustload']:.2f}"
        slower = "  faster than rustload" if row["times_rustload"] < 1 and row["way"] != LIMIT else ""
        print(
            f"  {row['way']:<42}{row['median_s'] * 1e3:>10.3f}{rate:>8}{row['spread']:>8.0%}"
            f"{ratio:>12}{high:>9}{slower}",
            flush=True,
        )


if __name__ == "__main__":
    main()
