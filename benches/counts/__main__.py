"""`make counts`: counts the instructions of each parser and kernel, and compares them with the kept counts.

    python -m benches.counts [--filter TEXT] [--update] [--check]

It uses the processor's counter if available (`perf stat`), else valgrind, which does not support AVX-512. The jobs are in
`tests/rust/counts.rs`; each is prepared and run once, then prepared and run several times, and the difference is the job.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).with_name("kept.json")
# Each process has another hash seed, which changes the counts of parsers slightly.
TOLERANCE = 0.02
# Enough repetitions that variations of the preparation do not matter.
TIMES = 6


@dataclass(frozen=True)
class Job:
    """A job, and its number of units."""

    name: str
    units: int
    unit: str


def main(arguments: list[str] | None = None) -> int:
    """Counts, compares and prints; returns 1 with `--check` if a job takes more instructions than before."""
    args = parse(arguments)
    tool = next((name for name, count in TOOLS.items() if works(count)), None)
    if tool is None:
        print("skipped: neither perf nor valgrind can count instructions here")
        return 0
    program = built()
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    known: dict[str, int] = kept.get("counts", {}) if kept.get("tool") == tool else {}
    print(f"instructions, by {tool}; kept: {kept.get('compiler', 'none')}, now: {compiler()}")
    counts: dict[str, int] = {}
    regressed = []
    for job in jobs(program, tool):
        if args.filter in job.name:
            once, often = (TOOLS[tool]([program, job.name, str(times)]) for times in (1, 1 + TIMES))
            counts[job.name] = round((often - once) / TIMES)
            change = changed(counts[job.name], known.get(job.name))
            print_job(job, counts[job.name], change)
            if change is not None and change > TOLERANCE:
                regressed.append(job.name)
    if args.update:
        found = {"tool": tool, "compiler": compiler(), "counts": {**known, **counts}}
        KEPT.write_text(json.dumps(found, indent=1) + "\n")
    elif regressed:
        print(f"{len(regressed)} take more instructions than the kept counts; --update keeps the new ones")
    return int(args.check and bool(regressed))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m benches.counts", description=__doc__.splitlines()[0])
    parser.add_argument("--filter", default="", metavar="TEXT", help="only the jobs whose name contains TEXT")
    parser.add_argument("--update", action="store_true", help="write the counts to kept.json")
    parser.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if a job takes more instructions than its kept count",
    )
    return parser.parse_args(arguments)


def built() -> str:
    """Builds the jobs in release mode and returns the program."""
    command = [
        "cargo",
        "bench",
        "--quiet",
        "--locked",
        "--bench",
        "counts",
        "--features",
        "internals",
        "--no-run",
    ]
    output = subprocess.run(
        [*command, "--message-format=json"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    messages = [json.loads(line) for line in output.stdout.splitlines()]
    found = [one["executable"] for one in messages if one.get("target", {}).get("name") == "counts"]
    program: str = found[-1]
    return program


def compiler() -> str:
    """The version of the compiler."""
    return subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.strip()


def jobs(program: str, tool: str) -> list[Job]:
    """The jobs, at the levels that the tool supports."""
    prefix = ["valgrind", "--quiet", "--tool=none"] if tool == "valgrind" else []
    output = subprocess.run([*prefix, program], check=True, capture_output=True, text=True).stdout
    rows = [line.split("\t") for line in output.splitlines()]
    return [Job(name, int(units), unit) for name, units, unit in rows]


def by_perf(command: list[str]) -> int:
    """Counts with the processor's counter.

    Raises:
        ValueError: No counter is available.
    """
    output = subprocess.run(
        ["perf", "stat", "-x", ",", "-e", "instructions:u", *command],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ).stderr
    return int(output.splitlines()[-1].partition(",")[0])


def by_valgrind(command: list[str]) -> int:
    """Counts with valgrind.

    Raises:
        ValueError: Its output has no count.
    """
    output = subprocess.run(
        ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ).stderr
    found = re.search(r"Collected : (\d+)", output)
    if found is None:
        raise ValueError(f"valgrind printed {output[-200:]!r}")
    return int(found[1])


TOOLS: dict[str, Callable[[list[str]], int]] = {"perf": by_perf, "valgrind": by_valgrind}


def works(count: Callable[[list[str]], int]) -> bool:
    """Whether a tool is installed and can count."""
    try:
        return count([shutil.which("true") or "true"]) > 0
    except (OSError, ValueError, subprocess.CalledProcessError):
        return False


def changed(count: int, known: int | None) -> float | None:
    """The relative increase over the kept count; None without one."""
    return None if known is None else count / known - 1


def print_job(job: Job, count: int, change: float | None) -> None:
    """Prints a line."""
    relative = "new" if change is None else f"{change:+.1%}"
    mark = "  MORE" if change is not None and change > TOLERANCE else ""
    print(f"  {job.name:<46}{count / job.units:>12,.2f} per {job.unit:<8}{relative:>8}{mark}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
