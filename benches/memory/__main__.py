"""Loads one model with every loader, samples memory, and writes a table, JSON and a plot: `make memory`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from benches.memory import model, plot, sample
from benches.memory.ways import WAYS, can
from benches.python import measure

MIB = 1 << 20


def main() -> None:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="make memory", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of each loader; the one of median duration is shown"
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--kinds", default=",".join(model.KINDS), help="kinds of files, separated by commas")
    parser.add_argument(
        "--out", type=Path, default=Path("bench-results"), help="folder for memory.{svg,png,json}"
    )
    parser.add_argument(
        "--limit",
        action="store_true",
        help="report instead which loaders finish with the final size plus 512 MiB beyond the imports",
    )
    options = parser.parse_args()
    folder = model.made()
    if options.limit:
        limit(folder, options.kinds.split(","), options.dtype)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    curves: dict[str, dict[str, sample.Curve]] = {}
    for kind in options.kinds.split(","):
        measure.read_through(*model.files_of(folder / kind))
        ways = [way for way in WAYS if can(way, kind)]
        runs: dict[str, list[sample.Curve]] = {way: [] for way in ways}
        for number in range(options.rounds):
            for offset in range(len(ways)):
                way = ways[(number + offset) % len(ways)]
                if (curve := sample.run(way, folder / kind, options.dtype)) is not None:
                    runs[way].append(curve)
        curves[kind] = {way: median_run(found) for way, found in runs.items()}
        report(kind, options.dtype, curves[kind])
    size = sum(file.stat().st_size for file in model.files_of(folder / "single")) / MIB
    title = f"Loading {size:.0f} MiB of float32 as {options.dtype}"
    files = [options.out / f"memory-{options.dtype}.{suffix}" for suffix in ("svg", "png")]
    plot.draw(curves, title, files)
    data = {
        kind: {way: dataclasses.asdict(curve) for way, curve in ways.items()} for kind, ways in curves.items()
    }
    (options.out / f"memory-{options.dtype}.json").write_text(json.dumps(data))
    print(f"\nwrote {', '.join(map(str, files))}")


def limit(folder: Path, kinds: list[str], dtype: str) -> None:
    """Prints which loaders finish in a cgroup limited to the final size plus 512 MiB, and the memory that they used."""
    for kind in kinds:
        files = model.files_of(folder / kind)
        size = sum(file.stat().st_size for file in files) // (2 if dtype == "bfloat16" else 1)
        limit_bytes = size + 512 * MIB
        print(f"\n{kind}, as {dtype}, in {limit_bytes / MIB:.0f} MiB beyond the imports")
        for way in WAYS:
            if can(way, kind):
                measure.read_through(*files)
                curve = sample.run(way, folder / kind, dtype, limit_bytes)
                outcome = "killed" if curve is None else f"finished, peak {curve.peak / MIB:.0f} MiB"
                print(f"{way:28}{outcome}", flush=True)


def median_run(curves: list[sample.Curve]) -> sample.Curve:
    """The run of median duration."""
    return sorted(curves, key=lambda curve: curve.seconds)[(len(curves) - 1) // 2]


def report(kind: str, dtype: str, curves: dict[str, sample.Curve]) -> None:
    """Prints a table; marks loaders whose parameters differ in a bit from the first one's."""
    if len({curve.digest for curve in curves.values()}) > 1:
        raise SystemExit(f"{kind}: the loaders disagree on the parameters' bits")
    print(f"\n{kind}, as {dtype} (all parameters bitwise equal)")
    print(f"{'loader':28}{'seconds':>9}{'peak MiB':>10}{'anonymous':>11}{'at the end':>12}")
    for way, curve in curves.items():
        numbers = [curve.peak, curve.peak_anonymous, curve.end]
        peak, anonymous, end = (round(value / MIB) for value in numbers)
        print(f"{way:28}{curve.seconds:9.2f}{peak:10}{anonymous:11}{end:12}", flush=True)


if __name__ == "__main__":
    main()
