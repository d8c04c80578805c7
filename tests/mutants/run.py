"""Mutation testing: plants faults in a copy of the sources and counts those that the tests catch: `make mutants`.

If a fault is not caught, no test covers that line. The faults are in `faults.toml`. All faults in Rust are compiled into one
build, each behind a switch that an environment variable turns on; faults in Python are written into the copy one after another.
For each fault, the tests that it names run first, and all tests if these pass. Only target/mutants is written to.

    make mutants                       all faults
    make mutants MUTANTS="zip-gap"     some, by id or a prefix of ids
    make mutants MUTANTS="--list"      lists the faults
    make mutants MUTANTS="--named"     runs only the tests that each fault names

Exits with 1 if more than 5% of the faults are not caught, and with 2 if a fault's text is not in its file.
"""

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "mutants"
TREE = WORK / "tree"
FAULTS = Path(__file__).with_name("faults.toml")
VARIABLE = "RUSTLOAD_MUTANT"

NAMED_SECONDS, ALL_SECONDS = 300, 3600
"""The time limits of the tests that a fault names, and of all tests. A fault that makes tests exceed them is caught."""

SWITCH = f"""//! The planted fault that is switched on.

/// Whether it is this one.
pub(crate) fn on(fault: u32) -> bool {{
    static ON: std::sync::LazyLock<Option<u32>> =
        std::sync::LazyLock::new(|| std::env::var("{VARIABLE}").ok()?.parse().ok());
    *ON == Some(fault)
}}
"""


class BrokenError(Exception):
    """The faults cannot be planted or tested."""


@dataclasses.dataclass
class Fault:
    """One fault: a text that occurs once in a file, and its faulty replacement."""

    number: int
    id: str
    file: str
    what: str
    original: str
    faulty: str
    tests: list[str]

    @property
    def is_rust(self) -> bool:
        return self.file.endswith(".rs")

    def planted(self, text: str) -> str:
        """The file's text with the fault in it; in Rust, behind its switch."""
        count = text.count(self.original)
        if count != 1:
            raise BrokenError(
                f"{self.id}: {self.file} has its text {count} times, not once: {self.original!r}"
            )
        if not self.is_rust:
            return text.replace(self.original, self.faulty)
        switched = f"if crate::mutant::on({self.number}) {{ {self.faulty} }} else {{ {self.original} }}"
        # An expression needs parentheses, because it may be a part of a larger one.
        return text.replace(self.original, switched if self.original.endswith(";") else f"({switched})")


@dataclasses.dataclass
class Result:
    """The result of testing a fault."""

    fault: Fault
    by: str
    """The tests that caught it; empty if none did."""
    seconds: float


def faults() -> list[Fault]:
    """All faults, numbered from 1."""
    rows = tomllib.loads(FAULTS.read_text())["fault"]
    found = [Fault(number=number, **row) for number, row in enumerate(rows, 1)]
    ids = [fault.id for fault in found]
    twice = {one for one in ids if ids.count(one) > 1}
    if twice:
        raise BrokenError(f"two faults have one id: {', '.join(sorted(twice))}")
    return found


def copy_tree(every: list[Fault]) -> None:
    """Brings the copy up to date with the checkout, with all Rust faults behind their switches.

    Unchanged files keep their modification time, so that little is rebuilt.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    wanted = {
        name: (ROOT / name).read_bytes() for name in listed.split("\0") if name and (ROOT / name).is_file()
    }
    for fault in every:
        planted = fault.planted(wanted[fault.file].decode())
        if fault.is_rust:
            wanted[fault.file] = planted.encode()
    wanted["src/lib.rs"] = b"#![allow(warnings)]\n" + wanted["src/lib.rs"] + b"\nmod mutant;\n"
    wanted["src/mutant.rs"] = SWITCH.encode()
    for path in [path for path in TREE.rglob("*") if not path.is_dir()]:
        if str(path.relative_to(TREE)) not in wanted:
            path.unlink()
    for name, data in wanted.items():
        write(TREE / name, data)
        if (ROOT / name).is_file():
            shutil.copymode(ROOT / name, TREE / name)


def write(path: Path, data: bytes) -> None:
    """Writes a file if its content differs."""
    if not path.is_file() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def environment(fault: Fault | None) -> dict[str, str]:
    """The environment of the tests; it turns on the switch of a Rust fault."""
    env = {name: value for name, value in os.environ.items() if name != VARIABLE}
    env["CARGO_TARGET_DIR"] = str(WORK / "target")
    # Cached bytecode is not used: it would be stale for a file that changes twice within a second.
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    if fault is not None and fault.is_rust:
        env[VARIABLE] = str(fault.number)
    return env


def interpreter() -> str:
    """A virtual environment with the copy's package before the installed ones, also if a test sets PYTHONPATH."""
    home = WORK / "venv"
    if not (home / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    [packages] = (home / "lib").glob("python3*/site-packages")
    write(packages / "mutants.pth", f"{TREE / 'python'}\n{sysconfig.get_path('purelib')}\n".encode())
    return str(home / "bin" / "python")


class Build:
    """The test programs, built once with all Rust faults in them."""

    def __init__(self) -> None:
        tests = self._cargo("test", "--workspace", "--features", "internals", "--no-run", "--lib", "--tests")
        self.unit = [Path(one["executable"]) for one in tests if "lib" in one["target"]["kind"][0]]
        self.rust = [Path(one["executable"]) for one in tests if one["target"]["kind"] == ["test"]]
        self._cargo("build", "--release", "--features", "python", "--lib")
        built = WORK / "target" / "release" / "librustload.so"
        write(TREE / "python" / "rustload" / "_rustload.abi3.so", built.read_bytes())
        self.python = interpreter()

    @staticmethod
    def _cargo(*arguments: str) -> list[dict]:
        command = ["cargo", *arguments, "--locked", "--message-format", "json-render-diagnostics"]
        done = subprocess.run(
            command, cwd=TREE, env=environment(None), stdout=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise BrokenError(f"the sources with the faults do not build: {shlex.join(command)}")
        messages = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
        return [one for one in messages if one.get("executable")]

    def commands(self, named: str | None) -> list[list[str]]:
        """The commands for `"unit FILTER"`, `"rust FILTER"` or `"python ARGUMENTS"`; for None, those for all tests."""
        pytest = [self.python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header"]
        if named is None:
            # The layer test would reject the switches in the sources.
            skip = ["--skip", "layers::"]
            return [*([str(one), *skip] for one in [*self.unit, *self.rust]), pytest]
        kind, _, rest = named.partition(" ")
        match kind:
            case "unit":
                return [[str(one), rest] for one in self.unit]
            case "rust":
                return [[str(one), rest] for one in self.rust]
            case "python":
                return [[*pytest, *shlex.split(rest)]]
        raise BrokenError(f"tests are named by unit, rust or python: {named!r}")


def passes(commands: list[list[str]], fault: Fault | None, seconds: float) -> str:
    """Runs tests one after another; empty if all pass, else why not."""
    end = time.monotonic() + seconds
    ran = 0
    for command in commands:
        with subprocess.Popen(
            command, cwd=TREE, env=environment(fault), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            try:
                output, _ = process.communicate(timeout=max(1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return "timed out"
        if "pytest" in command:
            ran += process.returncode != 5
        else:
            ran += any(line.startswith("running ") and line.split()[1] != "0" for line in output.splitlines())
        if process.returncode not in (0, 5):
            (WORK / "last-failure.txt").write_text(output)
            return failure(output, process.returncode)
    if not ran:
        raise BrokenError(f"no test matches: {shlex.join(commands[0])}")
    return ""


def failure(output: str, status: int) -> str:
    """The name of the first test that failed, from the output."""
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" - ")[0].removeprefix("FAILED ").removeprefix("ERROR ")
        if line.startswith("test ") and line.endswith("FAILED"):
            return line.split()[1]
    return f"status {status}"


def test(fault: Fault, build: Build, *, only_named: bool) -> Result:
    """Runs the tests with one fault planted."""
    start = time.monotonic()
    path = TREE / fault.file
    kept = path.read_bytes()
    if not fault.is_rust:
        path.write_text(fault.planted(kept.decode()))
    try:
        by = ""
        for named in fault.tests:
            by = by or passes(build.commands(named), fault, NAMED_SECONDS)
        if not by and not only_named:
            by = passes(build.commands(None), fault, ALL_SECONDS)
            by = by and f"(unnamed) {by}"
    finally:
        if not fault.is_rust:
            path.write_bytes(kept)
    return Result(fault, by, time.monotonic() - start)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("ids", nargs="*", help="the faults, by id or a prefix of ids; all by default")
    parser.add_argument("--list", action="store_true", help="print the faults and stop")
    parser.add_argument("--named", action="store_true", help="run only the tests named with each fault")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    every = faults()
    chosen = [one for one in every if not arguments.ids or one.id.startswith(tuple(arguments.ids))]
    if arguments.list:
        for fault in chosen:
            print(f"{fault.id:26} {fault.file:40} {fault.what}")
        return 0
    if not chosen:
        raise BrokenError("no fault has such an id")
    copy_tree(every)
    print(f"building the tests with {sum(one.is_rust for one in every)} faults in them", flush=True)
    build = Build()
    names = dict.fromkeys(named for fault in chosen for named in fault.tests)
    reasons = {named: passes(build.commands(named), None, NAMED_SECONDS) for named in names}
    failing = [f"{named!r}: {why}" for named, why in reasons.items() if why]
    if failing:
        raise BrokenError("\n  ".join(["with no fault planted, these fail already:", *failing]))
    print(f"{len(chosen)} faults; the tests named with them pass without\n", flush=True)
    results = []
    for fault in chosen:
        result = test(fault, build, only_named=arguments.named)
        results.append(result)
        by = f"caught by {result.by}" if result.by else "NOT CAUGHT"
        print(f"{fault.id:26} {result.seconds:6.1f} s  {by}", flush=True)
    missed = [one.fault for one in results if not one.by]
    if missed and not arguments.named:
        # Tests that also fail without a fault have caught nothing.
        why = passes(build.commands(None), None, ALL_SECONDS)
        if why:
            raise BrokenError(f"with no fault planted, the tests fail: {why}")
    print(f"\n{len(results) - len(missed)} of {len(results)} faults were caught")
    for fault in missed:
        print(f"not caught: {fault.id} ({fault.file}): {fault.what}")
    if arguments.json:
        rows = [{"id": one.fault.id, "by": one.by, "seconds": round(one.seconds, 1)} for one in results]
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(20 * len(missed) > len(results))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenError as error:
        print(f"make mutants: {error}", file=sys.stderr)
        sys.exit(2)
