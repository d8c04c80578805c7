"""`rustload doctor`: how checkpoints would be read on this machine, and why."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

import rustload
from rustload import _rustload
from rustload._cli.arguments import EPILOG, add_color, add_json, add_paths
from rustload._cli.exit_codes import READ_FAILED
from rustload._cli.report import Failed, print_document, report_error
from rustload._common.json_values import Format, Positive
from rustload._common.leftovers import Leftover, leftovers
from rustload._common.memory import Memory, memory, usable_text
from rustload._common.sizes import format_bytes
from rustload._common.terminal import Page
from rustload._remote.urls import is_url, name_of
from rustload.errors import RustloadError, _error

if TYPE_CHECKING:
    import argparse

_UNUSED = {
    "resume": "the same call with resume=True continues; --clean removes it",
    "publication": "not all of its files are in their folder; the next call for that, or --clean, moves the others",
}
"""Texts for leftovers that no writer holds."""

PROBED_FILES_MAX = 4
"""The most files of a checkpoint whose read rate is measured."""


class Machine(TypedDict):
    """This machine.

    Attributes:
        isa: The instruction set of the kernels that are used.
        isa_available: The instruction sets of the kernels that the processor can run.
        threads: The most threads that a call uses by default.
        huge_pages: When the kernel gives transparent huge pages; None if that is unknown.
        memory: The memory of the machine, of its cgroup, and of this process.
    """

    isa: str
    isa_available: list[str]
    threads: Positive
    huge_pages: Literal["always", "madvise", "never"] | None
    memory: Memory


class ProbedFile(TypedDict):
    """How a file would be read, and why.

    Attributes:
        path: The file.
        size: Its bytes.
        file_system: The name of the file system.
        kind: Where its data lie.
        cached: The share in the page cache; None if that is unknown.
        io: How it would be read.
        reason: Why.
        in_flight: How many ranges are read at once; None if one read at a time pays.
        block: Bytes of such a range.
        views: Whether tensors that need no conversion are views by default.
        direct: Whether O_DIRECT works there.
        buffered_rate: Bytes per second through the page cache; None if not measured.
        direct_rate: Bytes per second with O_DIRECT; None if not measured.
    """

    path: str
    size: int
    file_system: str
    kind: Literal["local", "memory", "network", "unknown"]
    cached: Annotated[float | None, {"minimum": 0, "maximum": 1}]
    io: Literal["buffered", "direct"]
    reason: str
    in_flight: Annotated[int | None, {"minimum": 1}]
    block: Positive
    views: bool
    direct: bool
    buffered_rate: float | None
    direct_rate: float | None


class Examined(TypedDict):
    """A checkpoint.

    Attributes:
        path: As given.
        format: The format.
        files: How each file would be read.
    """

    path: str
    format: Format
    files: list[ProbedFile]


class Document(TypedDict):
    """How checkpoints would be read on this machine.

    Attributes:
        machine: This machine.
        checkpoints: One for each path, in their order.
        left: What writers have left beside the paths, or are writing.
    """

    machine: Machine
    checkpoints: list[Examined | Failed]
    left: list[Leftover]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command, and adds its arguments."""
    parser.description = (
        "Says how the files of checkpoints would be read on this machine, and why: the\n"
        "file system, what is in the page cache, how fast a short probe reads, and what\n"
        "the machine has."
    )
    parser.epilog = EPILOG
    add_paths(parser, "a file, a directory of shards, or an index file")
    parser.add_argument(
        "--io", choices=("auto", "buffered", "direct"), default="auto", help="as in rustload.open"
    )
    parser.add_argument(
        "--no-measure",
        dest="measure",
        action="store_false",
        help="do not read up to 64 MiB of each of the first 4 files, in each way, to see how fast that is",
    )
    parser.add_argument(
        "--clean",
        action="store_true",
        help="remove what killed writers have left beside these paths and no process holds",
    )
    add_json(parser)
    add_color(parser)


def run(args: argparse.Namespace) -> int:
    """Prints how files would be read and returns the exit code."""
    machine = {**_rustload.machine(), "memory": memory()}
    found = [_examine(path, args.io, measure=args.measure) for path in args.paths]
    local = [path for path in args.paths if not is_url(path)]
    left = list(dict.fromkeys(one for path in local for one in leftovers(path, remove=args.clean)))
    if args.json:
        print_document({"machine": machine, "checkpoints": found, "left": left})
    else:
        page = Page(sys.stdout, args.color)
        _show_machine(page, machine)
        for report in found:
            if "error" not in report:
                _show(page, report)
        _show_left(page, left)
        page.flush()
    return READ_FAILED if any("error" in report for report in found) else 0


def _examine(path: str, io: str, *, measure: bool) -> Examined | Failed:
    try:
        if is_url(path):
            path = name_of(path)
            note = "rustload info and rustload scan read URLs"
            raise _error("Value", f"{path}: doctor looks at the disks of this machine", note)
        with rustload.open(path) as ckpt:
            files = ckpt.files
            probes: list[Any] = [
                {"path": file, **_rustload.probe(file, io=io, measure=measure and number < PROBED_FILES_MAX)}
                for number, file in enumerate(files)
            ]
            return {"path": path, "format": ckpt.format, "files": probes}
    except (RustloadError, OSError, ValueError, MemoryError) as error:
        return {"path": path, "error": report_error(error)}


def _show_machine(page: Page, machine: dict[str, Any]) -> None:
    memory: Memory = machine["memory"]
    page.title("this machine")
    page.field(
        "kernels", f"{machine['isa']} (has {', '.join(machine['isa_available'])}; RUSTLOAD_ISA forces one)"
    )
    page.field("threads", str(machine["threads"]))
    huge = machine["huge_pages"] or "unknown"
    remark = "" if huge in ("always", "madvise") else ": results of 2 MiB and more are slower to make"
    page.field("huge pages", huge + remark)
    page.field("memory", f"{format_bytes(memory.total)}, {format_bytes(memory.available)} available")
    if memory.limit is None or memory.used is None:
        page.field("cgroup", "no limit")
    else:
        page.field("cgroup", f"limit {format_bytes(memory.limit)}, {format_bytes(memory.used)} used")
    page.field("results", usable_text(memory.usable, memory.bound))
    page.field("recycled", f"up to {format_bytes(memory.keeps)} of dropped results are kept (RUSTLOAD_POOL)")


def _show_left(page: Page, left: list[Leftover]) -> None:
    if not left:
        return
    page.line()
    page.title("left by writers that were killed, or are at work")
    for one in left:
        page.line(f"  {page.strong(page.safe(one.path))}")
        states = {
            True: "a writer has it now",
            None: "the file system does not say whether it is in use",
            False: _UNUSED.get(one.kind, "in no use; --clean removes it"),
        }
        page.field("is", f"{format_bytes(one.nbytes)}; {'removed' if one.removed else states[one.held]}")


def _show(page: Page, found: Examined) -> None:
    page.line()
    page.title(page.safe(found["path"]))
    for file in found["files"]:
        if len(found["files"]) > 1 or file["path"] != found["path"]:
            page.line(f"  {page.strong(page.safe(file['path']))}")
        page.field("reads", f"{file['io']}: {file['reason']}")
        if file["in_flight"] is not None:
            page.field("at once", f"{file['in_flight']} ranges of {format_bytes(file['block'])}")
        if not file["views"]:
            page.field("views", "only with copy=False")
        page.field("on", f"{file['file_system']} ({file['kind']}), {format_bytes(file['size'])}")
        cached = file["cached"]
        page.field("cached", "unknown" if cached is None else f"about {cached:.0%}")
        if file["buffered_rate"] is not None:
            page.field("buffered", f"{file['buffered_rate'] / 1e9:.2f} GB/s in a short probe")
        if not file["direct"]:
            page.field("direct", "not supported here")
        elif file["direct_rate"] is not None:
            page.field("direct", f"{file['direct_rate'] / 1e9:.2f} GB/s in a short probe")
