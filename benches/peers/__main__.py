"""Runs the comparison and writes the tables of docs/explain/peers.md: `python -m benches.peers --peers PYTHON`."""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.peers import files

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "explain" / "peers.md"
SCANNERS = {
    "rustload": "rustload scan",
    "rustload_execute": "rustload scan --fail-on would-execute",
    "picklescan": "picklescan",
    "picklescan_strict": "picklescan --strict",
    "modelscan": "modelscan",
    "hayward": "hayward scan",
    "fickling": "fickling --check-safety",
}
OUTCOMES = ("refused", "unread", "crashed", "late", "passed")
LAUNCH = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss)
"""
"""Starts a command from a small process: a command begins with the peak memory of the process that starts it."""
LIST_SAFETENSORS = """
import sys, safetensors
with safetensors.safe_open(sys.argv[1], "np") as file:
    for name in file.keys(): print(name, file.get_slice(name).get_shape(), file.get_slice(name).get_dtype())
"""
LIST_TORCH = """
import sys, torch
for name, tensor in torch.load(sys.argv[1], mmap=True).items(): print(name, tensor.shape, tensor.dtype)
"""


@dataclass(frozen=True)
class Cost:
    """What a command took; a dash for one that failed, with its exit code."""

    code: int
    cpu_s: float
    peak_mib: float

    def __str__(self) -> str:
        if self.code == 0:
            return f"{self.cpu_s:.2f} s, {self.peak_mib:,.0f} MiB"
        return f"- (exit code {self.code})"


def cost(command: list[str]) -> Cost:
    """Runs a command: its CPU time, as other programs may run on the machine, and its peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        small = [sys.executable, "-S", "-E", "-c", LAUNCH, *command]
        printed = subprocess.run(small, capture_output=True, check=True, cwd=folder, text=True).stdout
    code, cpu_s, kib = printed.split()
    return Cost(int(code), float(cpu_s), int(kib) / 1024)


def outcomes(tool: str, folder: Path, peers: str) -> dict[str, str]:
    """What a scanner says of each file of a folder."""
    python = sys.executable if tool.startswith("rustload") else peers
    command = [python, str(HERE / "driver.py"), tool, str(folder)]
    found: dict[str, str] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def executing(folder: Path) -> dict[str, list[str]]:
    """The files of a folder whose payload runs in a common loader."""
    command = [sys.executable, "-W", "ignore", str(HERE / "executes.py"), str(folder)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return {name: loaders for name, loaders in found.items() if loaders}


def counted(found: dict[str, str]) -> list[int]:
    """How often each outcome is."""
    count = collections.Counter(found.values())
    return [count[one] for one in OUTCOMES]


def table(head: list[str], rows: list[list[Any]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def costs(folder: Path, peers: str) -> str:
    """The table of CPU time and peak memory."""
    commands = {
        "`rustload scan`": [sys.executable, "-m", "rustload", "scan"],
        "`picklescan -p`": [peers, "-m", "picklescan.cli", "-p"],
        "`modelscan -p`": [peers, "-m", "modelscan.cli", "-p"],
        "`hayward scan`": [peers, "-m", "hayward", "scan"],
        "`fickling --check-safety`": [peers, "-m", "fickling", "--check-safety"],
        "`rustload info --tensors`": [sys.executable, "-m", "rustload", "info", "--tensors"],
        "list with `safetensors.safe_open`": [peers, "-c", LIST_SAFETENSORS],
        "list with `torch.load(mmap=True)`": [sys.executable, "-c", LIST_TORCH],
        "`rustload view`": [sys.executable, "-m", "rustload", "view"],
    }
    large = files.large(folder)
    rows = [
        [name, *(cost([*command, str(path)]) for path in large.values())]
        for name, command in commands.items()
    ]
    return table(["command", *(f"`{name}`" for name in large)], rows)


def main() -> None:
    """Runs everything, prints the tables, and writes them unless `--quick`."""
    parser = argparse.ArgumentParser(prog="python -m benches.peers", description=__doc__)
    parser.add_argument(
        "--peers", required=True, help="the Python of the environment with requirements/peers.txt"
    )
    parser.add_argument(
        "--work", type=Path, help="a folder to keep the files in, and to take them from if it has them"
    )
    parser.add_argument("--quick", action="store_true", help="a few files of each set; writes nothing")
    given = parser.parse_args()
    peers = str(Path(given.peers).absolute())
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        sets = prepare(work, every=40 if given.quick else 1)
        found = {tool: {one: outcomes(tool, work / one, peers) for one in sets} for tool in SCANNERS}
        tables = {"attacks": detection(found, "executing"), "honest": detection(found, "honest")}
        tables["files"] = each(found)
        if not given.quick:
            (work / "large").mkdir(exist_ok=True)
            tables["costs"] = costs(work / "large", peers)
    for name, text in tables.items():
        print(f"{name}\n{text}\n")
    if not given.quick:
        write(tables)


def prepare(work: Path, every: int) -> tuple[str, ...]:
    """Writes the files, unless they are there, and finds out which of the attacks execute."""
    if not (work / "executing").is_dir():
        for name, make in (("attacks", files.attacks), ("honest", files.honest)):
            (work / name).mkdir(parents=True, exist_ok=True)
            make(work / name, every)
        (work / "others").mkdir(exist_ok=True)
        files.others(work / "others")
        run = executing(work / "attacks")
        (work / "executing").mkdir()
        for name in run:
            (work / "attacks" / name).rename(work / "executing" / name)
    return ("executing", "honest", "others")


def detection(found: dict[str, dict[str, dict[str, str]]], which: str) -> str:
    """One row for each scanner: how many files of a set had each outcome."""
    rows = [[f"`{title}`", *counted(found[tool][which])] for tool, title in SCANNERS.items()]
    return table(["scanner", *OUTCOMES], rows)


def each(found: dict[str, dict[str, dict[str, str]]]) -> str:
    """One row for each file of other formats."""
    names = sorted(found["rustload"]["others"])
    rows = [
        [f"`{title}`", *(found[tool]["others"][name] for name in names)] for tool, title in SCANNERS.items()
    ]
    return table(["scanner", *(f"`{name}`" for name in names)], rows)


def write(tables: dict[str, str]) -> None:
    """Replaces the tables of the page."""
    text = PAGE.read_text(encoding="utf-8")
    tables = tables | {"date": f"Measured on {datetime.datetime.now(datetime.UTC).date()}."}
    for name, body in tables.items():
        start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        assert text.count(start) == text.count(end) == 1, f"docs/explain/peers.md has no mark {start}"
        text = text[: text.index(start)] + f"{start}\n{body}\n" + text[text.index(end) :]
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
