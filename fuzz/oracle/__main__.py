"""The command line of the oracle; see `fuzz/oracle/__init__.py`."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

from fuzz import oracle
from fuzz.oracle import campaign, fence, seeds, shrink, watch
from fuzz.oracle.table import ROWS

COUNTS = {"programs": 10_000, "splices": 1_000, "changes": 2_000}
"""The inputs of a run without options, by kind."""
ENDLESS = 1_000_000
DEFAULT_OUT = pathlib.Path(__file__).resolve().parents[1] / "artifacts" / "oracle"


def main() -> None:
    """Runs a campaign, or one file."""
    parser = argparse.ArgumentParser(
        prog="python -m fuzz.oracle", description=(oracle.__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--seed", type=int, default=1)
    for kind, count in COUNTS.items():
        parser.add_argument(
            f"--{kind}", type=int, help=f"the {kind} of each job, {count:,} if no minutes are given"
        )
    parser.add_argument(
        "--minutes", type=float, help="ends sooner, or makes inputs for so long if no counts are given"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a seed of its own")
    parser.add_argument("--out", type=pathlib.Path, default=DEFAULT_OUT, help="the folder for finds")
    parser.add_argument(
        "--few-seeds", action="store_true", help="without the benign files, which take seconds to write"
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="another interpreter that runs its readers, too (3.8 or newer)",
    )
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument("--replay", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--shrink", type=pathlib.Path, metavar="FILE")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    given.out.mkdir(parents=True, exist_ok=True)
    watch.install()
    with tempfile.TemporaryDirectory(dir=fence.memory_folder()) as work:
        if given.replay or given.shrink:
            _one_file(given, pathlib.Path(work))
            return
        counts = _jobs(given) if given.jobs > 1 else _campaign(given, pathlib.Path(work))
    print(json.dumps(counts.to_json()) if given.json else table(counts))
    sys.exit(1 if counts.finds else 0)


def _campaign(given: argparse.Namespace, work: pathlib.Path) -> campaign.Counts:
    made = seeds.all_seeds(benign=not given.few_seeds)
    wanted = {kind: getattr(given, kind) for kind in COUNTS}
    if not any(wanted.values()):
        many = 1 if given.minutes is None else ENDLESS
        wanted = {kind: count * many for kind, count in COUNTS.items()}
    wanted = {kind: count or 0 for kind, count in wanted.items()}
    one = campaign.Campaign(
        made, wanted=wanted, seed=given.seed, out=given.out, work=work, pythons=given.python
    )
    one.run(float("inf") if given.minutes is None else 60 * given.minutes)
    return one.counts


def _jobs(given: argparse.Namespace) -> campaign.Counts:
    """Runs jobs in processes of their own, and adds their counts."""
    options = ["--out", str(given.out), "--json"]
    for name in (*COUNTS, "minutes"):
        if getattr(given, name) is not None:
            options += [f"--{name}", str(getattr(given, name))]
    for python in given.python:
        options += ["--python", python]
    if given.few_seeds:
        options.append("--few-seeds")
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "fuzz.oracle", "--seed", str(given.seed + 1000 * job), *options],
            stdout=subprocess.PIPE,
        )
        for job in range(given.jobs)
    ]
    counts = campaign.Counts()
    for job in jobs:
        said, _ = job.communicate()
        counts.merge(json.loads(said))
    return counts


def _one_file(given: argparse.Namespace, work: pathlib.Path) -> None:
    """Prints what the readers do with a file; with `--shrink`, writes the smallest file with the same find beside it."""
    path = given.replay or given.shrink
    data, replay = path.read_bytes(), campaign.Replay(work)
    result = replay.run(data)
    if result is None:
        print("the scan does not call it inert, or a reader crashes")
    else:
        print(f"inert as {result.task.way}")
        for find in result.finds:
            print(f"{find.kind}: {find.reader}: {find.detail}")
        for reader, outcome in result.outcomes.items():
            print(f"  {reader}: {outcome}")
        if given.shrink and result.finds:
            wanted = result.finds[0][:2]

            def shows(candidate: bytes) -> bool:
                again = replay.run(candidate)
                return again is not None and wanted in [find[:2] for find in again.finds]

            small = shrink.shrunk(data, shows)
            path.with_suffix(".min").write_bytes(small)
            print(f"{len(small)} of {len(data)} bytes show {wanted}: {_source(small)}")
    replay.close()


def _source(data: bytes) -> str:
    """A Python expression for the bytes, with runs of NULs as `bytes(N)`."""
    parts = re.split(rb"(\0{16,})", data)
    return " + ".join(repr(part) if part.strip(b"\0") else f"bytes({len(part)})" for part in parts if part)


def table(counts: campaign.Counts) -> str:
    """The counts as text."""
    total = sum(counts.inputs.values())
    speed = total / counts.seconds * 60 if counts.seconds else 0
    kinds = (
        f"{kind} {made:,} ({counts.inert_inputs[kind] / made:.0%} inert)"
        for kind, made in counts.inputs.items()
    )
    lines = [
        f"{total:,} inputs in {counts.seconds / 3600:.2f} h ({speed:,.0f} a minute), {counts.slow} slow scan(s)",
        ", ".join(kinds),
        f"{len(counts.names)} of the {len(ROWS)} names of the table are in inert programs",
        f"inert as {', '.join(f'{way}: {times:,}' for way, times in counts.inert.items())}",
        f"{sum(counts.finds.values()):,} find(s)",
    ]
    lines += [
        f"  {label:24} {counts.tried[label]:9,} runs, {counts.ran[label]:9,} without an error"
        for label in counts.tried
    ]
    lines += [f"  {label}: {times:,} input(s) crash or hang it" for label, times in counts.failed.items()]
    lines += [f"  find: {label}: {times:,}" for label, times in counts.finds.most_common()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
