"""Opens or scans files for the tests, each in a forked child of this process, and reports the outcome and the cost.

This process imports only rustload, so the memory growth of a child is caused by the file: the peak of resident memory is reset
after the fork (`/proc/self/clear_refs`) and read at the end (`VmHWM`). Requests are lines of JSON on stdin, answers lines of JSON
on stdout. A child that does not answer in time is killed.
"""

import contextlib
import functools
import gc
import glob  # noqa: F401 - pathlib imports it late, from Python 3.15 on
import json
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

CHILD_TIMEOUT_SECONDS = 60.0
"""Seconds until a child is killed as hanging. The tests check its CPU time."""


EXPORTED_TENSORS_MAX = 250_000
"""Object trees with more tensors are not exported, because each tensor is a Python object; the limit `tensors` bounds their number."""


def status(field: str) -> int:
    """The value of a field of `/proc/self/status` in bytes."""
    text = Path("/proc/self/status").read_bytes()
    return int(text.partition(field.encode() + b":")[2].split()[0]) << 10


class Cost:
    """The cost from here on: seconds of CPU time, and the peak growth of resident memory."""

    def __init__(self) -> None:
        self._start = resource.getrusage(resource.RUSAGE_SELF)
        Path("/proc/self/clear_refs").write_bytes(b"5")
        self._base = status("VmRSS")

    def now(self) -> dict[str, Any]:
        """The cost so far."""
        start, now = self._start, resource.getrusage(resource.RUSAGE_SELF)
        seconds = now.ru_utime + now.ru_stime - start.ru_utime - start.ru_stime
        return {"seconds": seconds, "peak": max(status("VmHWM") - self._base, 0)}


def scan(source: str, options: dict[str, Any]) -> dict[str, Any]:
    """Scans the source; returns the verdict and the cost."""
    import rustload

    limits = rustload.Limits(**options["limits"]) if "limits" in options else None
    cost, said = Cost(), {}
    try:
        said["verdict"] = rustload.scan(source, limits=limits).verdict
    except OSError as error:
        said["verdict"] = type(error).__name__
    return said | {"scan": cost.now()}


def open_and_list(
    source: str, options: dict[str, Any], label: str | None, *, again: bool = False
) -> dict[str, Any]:
    """Opens the source, lists everything and runs the case's check; with `again`, only opens and exports it, to measure the cost."""
    import rustload

    if "limits" in options:
        options = {**options, "limits": rustload.Limits(**options["limits"])}
    said: dict[str, Any] = {"stage": "open"}
    before, cost = set(sys.modules), Cost()

    def measured(what: str) -> None:
        said[what] = cost.now()

    try:
        try:
            ckpt = rustload.open(source, **options)
            said["count"] = len(ckpt)
            measured("load")
            if not again:
                ckpt.notes, ckpt.tied, ckpt.opaque, ckpt.nbytes, repr(ckpt)
                with contextlib.suppress(rustload.LimitError):
                    said["globals"] = ckpt.globals[:1000]
                said["notes"] = ckpt.notes[:100]
            measured("look")
        except BaseException:
            said.get("load") or measured("load")
            raise
        said["stage"] = "look"
        if not again:
            _list_tensors(ckpt, label)
        said["stage"] = "export"
        if len(ckpt) <= EXPORTED_TENSORS_MAX:
            try:
                said["root"] = type(ckpt.objects).__name__
            finally:
                measured("export")
        said["stage"] = "done"
    except BaseException as error:
        said |= {
            "error": type(error).__name__,
            "code": getattr(error, "code", ""),
            "limit": getattr(error, "name", "") if isinstance(error, rustload.LimitError) else "",
            "text": str(error)[:2000],
            "notes_of": list(getattr(error, "__notes__", [])),
        }
    said["modules"] = sorted(set(sys.modules) - before)
    return said


def _list_tensors(ckpt: Any, label: str | None) -> None:
    from itertools import islice

    for name in islice(ckpt, 300):
        lazy = ckpt[name]
        repr(lazy), lazy.path
    if label is not None:
        case = _cases()[label]
        check = getattr(case.load, "check", None) or getattr(case.load, "ask", None)
        if check is not None:
            check(ckpt)


@functools.cache
def _cases() -> dict[str, Any]:
    from attacks import CASES

    return {case.label: case for case in CASES}


def serve() -> None:
    """Answers requests until the end of stdin."""
    import rustload._frameworks.dlpack
    import rustload._tensor.inert  # noqa: F401 - imported here, because they would be imported with the first file

    _cases()
    gc.freeze()  # a child that collects garbage would copy the pages of all cases
    for line in sys.stdin:
        asked = json.loads(line)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            if asked["scan"]:
                found = scan(asked["source"], asked["options"])
            else:
                found = open_and_list(asked["source"], asked["options"], asked["label"], again=asked["again"])
            answer = json.dumps(found).encode()
            while answer:
                answer = answer[os.write(write, answer) :]
            os._exit(0)
        os.close(write)
        print(json.dumps(_wait(child, read)), flush=True)


def _wait(child: int, read: int) -> dict[str, Any]:
    parts, end = [], time.monotonic() + CHILD_TIMEOUT_SECONDS
    while select.select([read], [], [], max(end - time.monotonic(), 0))[0]:
        part = os.read(read, 1 << 16)
        if not part:
            break
        parts.append(part)
    else:
        os.kill(child, signal.SIGKILL)
    os.close(read)
    _, ended = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(ended)
    return json.loads(b"".join(parts)) if code == 0 and parts else {"died": code}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    serve()
