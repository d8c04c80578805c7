"""`rustload scan`: reports what unpickling files would do, as text or JSON."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypedDict

import rustload
from rustload import _rustload
from rustload._cli.arguments import REPEATED, add_color, add_json
from rustload._cli.exit_codes import GATE_FAILED, READ_FAILED, USAGE
from rustload._cli.report import Error, print_document, report_error
from rustload._common.paths import refuse_input
from rustload._common.sizes import format_bytes
from rustload._common.terminal import Page, count, print_json, print_messages
from rustload._remote.resolve import remote_source
from rustload._remote.urls import local_path, shown_path
from rustload._scan.gate import Gate
from rustload._scan.policy import Policy
from rustload._scan.report import FileReport
from rustload._scan.scan import merged, report_on
from rustload._scan.text import show
from rustload._scan.verdict import Verdict
from rustload.errors import RustloadError

if TYPE_CHECKING:
    import argparse

# The arguments that mean standard input.
STANDARD_INPUT = ("-", "/dev/stdin")

EPILOG = """\
exit codes:
  0    all files are inert: nothing but data, all of it looked at
  1    a file is unknown or would execute, and --allow, --policy, --fail-on and
       --baseline do not accept that; or it is not as --manifest lists it
  2    wrong usage, or a policy that is not valid
  3    something could not be read, there was nothing to scan, or the output
       could not be written

1 comes before 3: a file that fails counts more than one that could not be
read. Output that could not be written comes first.

a policy:
  allow = ["mylib.Config", "mylib.models.*"]
  exclude = [".git"]
  fail_on = "would-execute"
  manifest = "models.manifest.json"
"""


class ScannedRange(TypedDict):
    """A byte range that was scanned.

    Attributes:
        member: The archive member, with `!` between the levels of nested archives; None for the file itself.
        kind: The kind of data that was scanned.
        offset: The first byte in the member.
        nbytes: The length in bytes.
    """

    member: str | None
    kind: str
    offset: int
    nbytes: int


class UnscannedRange(TypedDict):
    """A byte range that might contain a pickle and was not scanned.

    Attributes:
        member: The archive member, with `!` between the levels of nested archives; None for the file itself.
        why: Why it was not scanned.
        offset: The first byte in the member.
        nbytes: The length in bytes.
        known: Whether the baseline has it.
    """

    member: str | None
    why: str
    offset: int
    nbytes: int
    known: bool


class JsonCoverage(TypedDict):
    """The parts of a file that were scanned; tensor data never is.

    Attributes:
        complete: Whether everything that might contain a pickle was scanned.
        truncated: Whether a list of the report was cut at a limit.
        scanned: The ranges that were scanned.
        unscanned: The ranges that might contain a pickle and were not scanned.
    """

    complete: bool
    truncated: bool
    scanned: list[ScannedRange]
    unscanned: list[UnscannedRange]


class JsonFile(TypedDict):
    """What the JSON of a file's report has otherwise.

    Attributes:
        coverage: The parts that were scanned, and those that were not.
        error: Why it could not be read.
    """

    coverage: JsonCoverage
    error: NotRequired[Error]


class JsonPolicy(TypedDict):
    """What the JSON of a policy has otherwise.

    Attributes:
        baseline: The path of the earlier report; None for none.
        manifest: The path of the manifest; None for none.
    """

    baseline: str | None
    manifest: str | None


class Document(TypedDict):
    """What files would do in a reader that runs pickles; also `ScanReport.to_json()`.

    Attributes:
        verdict: The worst verdict of all files; unknown if nothing was scanned.
        complete: Whether at least one file was scanned, and all were scanned completely.
        passes: Whether every file passes the policy, and at least one was scanned.
        excluded: How many files and folders the policy's `exclude` left out; what is in such a folder is not counted.
        policy: What was accepted.
        files: One for each file.
    """

    verdict: Verdict
    complete: bool
    passes: bool
    excluded: int
    policy: Annotated[Policy, JsonPolicy]
    files: list[Annotated[FileReport, JsonFile]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Says what files would do in a reader that runs pickles: inert, unknown, or\n"
        "would execute. Runs nothing, reads no tensors, and imports neither torch nor\n"
        "NumPy."
    )
    parser.epilog = EPILOG
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a file, a directory of which all files are scanned, a URL, or - for standard input",
    )
    add("-q", "--quiet", action="store_true", help="leave out what passes")
    add(
        "--allow",
        **REPEATED,
        metavar="MODULE.NAME",
        help="accept this class or function; * stands for any characters; may be repeated",
    )
    add(
        "--policy",
        metavar="FILE",
        help="a TOML file with what is accepted (see below)",
    )
    add(
        "--fail-on",
        choices=("unknown", "would-execute"),
        help="the verdict from which on the exit code is 1 (the default is unknown)",
    )
    add(
        "--baseline",
        metavar="FILE",
        help="an earlier output of --json: what it has does not make the exit code 1",
    )
    add(
        "--exclude",
        **REPEATED,
        metavar="NAME",
        help="leave out files and directories in directories: of this name, such as .git, or at this path (with a /);\n"
        "* stands for any characters; may be repeated",
    )
    add(
        "--pass-if-empty",
        action="store_true",
        help="exit with 0, not with 3, if there is nothing that a scan looks into",
    )
    formats = parser.add_mutually_exclusive_group()
    add_json(formats)
    formats.add_argument(
        "--sarif",
        action="store_true",
        help="print a SARIF 2.1.0 log for code scanning",
    )
    add("--sarif-file", metavar="FILE", help="write the SARIF log to a file, beside the other output")
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Scans each path and returns the exit code."""
    parts: list[dict[str, Any]] = []
    try:
        gate = Gate(_policy(args))
    except (RustloadError, OSError, ValueError) as error:
        report_error(error)
        return USAGE
    for given in args.paths:
        path = shown_path(given)
        try:
            is_stream = given in STANDARD_INPUT
            part = _standard_input(gate) if is_stream else report_on(remote_source(given), gate)
        except (RustloadError, OSError, ValueError, MemoryError) as error:
            part = _failed(path, report_error(error))
        if not part["files"]:
            why = "all that it has is left out by name" if part["excluded"] else "it has no files"
            print_messages([f"rustload: nothing to scan: {path}: {why}"])
        parts.append(part)
    report = merged(parts)
    gate.judge(report)
    _warn_of_unused(report, gate)
    code = _exit_code(report, pass_if_empty=args.pass_if_empty)
    if args.json:
        print_document({key: report[key] for key in Document.__annotations__})
    elif args.sarif:
        print_json(_sarif(report, code))
    else:
        _print_text(report, quiet=args.quiet, color=args.color)
    if {file["status"] for file in report["files"]} == {"skipped"}:
        print_messages(["rustload: nothing was scanned: no file holds a pickle, as far as is known"])
    return code if args.sarif_file is None else _write_sarif(args.sarif_file, args.paths, report, code)


def _policy(args: argparse.Namespace) -> Policy:
    """The policy that the arguments state."""
    policy = Policy.from_file(args.policy) if args.policy else Policy()
    return Policy(
        allow=(*policy.allow, *args.allow),
        fail_on=args.fail_on or policy.fail_on,
        baseline=args.baseline,
        exclude=(*policy.exclude, *args.exclude),
        manifest=args.manifest or policy.manifest,
    )


def _exit_code(report: dict[str, Any], *, pass_if_empty: bool) -> int:
    statuses = {file["status"] for file in report["files"]}
    if not all(file["passes"] for file in report["files"] if file["status"] == "scanned" or _differs(file)):
        return GATE_FAILED
    if "unreadable" in statuses:
        return READ_FAILED
    return 0 if "scanned" in statuses or pass_if_empty else READ_FAILED


def _differs(file: dict[str, Any]) -> bool:
    """Whether a file was not read because it is not the one in the manifest."""
    return any(found["code"] in ("ManifestMismatch", "ManifestMissing") for found in file["findings"])


def _print_text(report: dict[str, Any], *, quiet: bool, color: str) -> None:
    page = Page(sys.stdout, color)
    # Files that could not be opened were reported on stderr.
    files = [file for file in report["files"] if "error" not in file]
    show(page, {**report, "files": files}, quiet=quiet)
    page.flush()
    _sum_up(report["files"])


def _sarif(report: dict[str, Any], code: int) -> dict[str, Any]:
    from rustload._scan.sarif import sarif

    return sarif(report, exit_code=code)


def _write_sarif(path: str, given: list[str], report: dict[str, Any], code: int) -> int:
    """Writes the log and returns the exit code."""
    import json

    try:
        # An older log in a folder was skipped, as it holds no pickle.
        read = (file["path"] for file in report["files"] if file["status"] != "skipped")
        refuse_input(local_path(path), (*given, *read))
        text = json.dumps(_sarif(report, code), indent=1) + "\n"
        _rustload.PreparedText(path, text, overwrite=True, sync=False).commit()
    except (OSError, ValueError) as error:
        report_error(error)
        return READ_FAILED
    return code


def _failed(path: str, error: Error) -> dict[str, Any]:
    """The report on a path that could not be opened: without findings, with the error."""
    file: dict[str, Any] = {
        "path": path,
        "format": None,
        "status": "unreadable",
        "verdict": "unknown",
        "findings": [],
        "trace": [],
        "globals": [],
        "coverage": {"complete": False, "truncated": False, "scanned": [], "unscanned": []},
        "error": error,
    }
    return {"verdict": "unknown", "complete": False, "excluded": 0, "files": [file]}


def _standard_input(gate: Gate) -> dict[str, Any]:
    """The report on standard input: a file is scanned in place, a pipe is read up to `Limits.scan_bytes`."""
    if sys.stdin is None:
        raise ValueError("-: there is no standard input")
    stream = sys.stdin.buffer
    if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        report = report_on(stream, gate)
    else:
        limit = rustload.Limits().scan_bytes
        content = stream.read(limit + 1)
        if len(content) > limit:
            raise ValueError(
                f"-: standard input goes on beyond {format_bytes(limit)}, the most that is read of a pipe; scan a file"
            )
        report = report_on(content, gate)
    for file in report["files"]:
        file["path"] = "-"
    return report


def _warn_of_unused(report: dict[str, Any], gate: Gate) -> None:
    """Names what has no effect: it may be misspelled, or no longer needed."""
    used = {
        one["allowed"]
        for file in report["files"]
        for one in (*file["findings"], *file["globals"])
        if one["allowed"]
    }
    unused = [pattern for pattern in report["policy"]["allow"] if pattern not in used]
    if unused:
        print_messages([f"rustload: allowed, and not in any file: {', '.join(unused)}"])
    if missing := gate.excluded_nothing:
        print_messages([f"rustload: excluded, and not found: {', '.join(missing)}"])
    if number := gate.unused_baseline(report):
        text = f"the baseline has {count(number, 'finding')}, none in these files: scan the same paths from the same folder"
        print_messages([f"rustload: {text}"])


def _sum_up(files: list[dict[str, Any]]) -> None:
    """Prints the number of files by verdict to stderr, if there are several."""
    if len(files) < 2:
        return
    counts: dict[str, int] = {}
    for file in files:
        word = file["verdict"] if file["status"] == "scanned" else file["status"]
        counts[word] = counts.get(word, 0) + 1
    summary = ", ".join(f"{number:,} {word}" for word, number in counts.items())
    print_messages([f"rustload: {count(len(files), 'file')}: {summary}"])
