"""Runs the readers in another version of CPython, which needs no libraries: `python3.8 -m fuzz.oracle.elsewhere`.

Reads batches of tasks from stdin, each a line of JSON, and writes a line with the results of each.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from typing import Any

from fuzz.oracle import ROOT, fence, watch


class Elsewhere:
    """The readers of another interpreter."""

    def __init__(self, python: str) -> None:
        command = [python, "-m", "fuzz.oracle.elsewhere"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.failures: list[tuple[fence.Task, str, str]] = []
        """As those of a fence."""
        self._version = self._ask([])["version"]

    def run(self, tasks: list[fence.Task]) -> list[fence.Result]:
        """Runs the readers on every task; the interpreter's version follows their names."""
        said = self._ask([
            {"data": base64.b64encode(task.data).decode(), "names": [[*name, calls] for name, calls in task.inert.items()]}
            for task in tasks
        ])  # fmt: skip
        at = self._version
        for number, reader, how in said["failures"]:
            self.failures.append((tasks[number], f"{reader}, {at}", how))
        results = []
        for number, finds, outcomes in said["results"]:
            found = [watch.Find(kind, f"{reader}, {at}", detail) for kind, reader, detail in finds]
            named = {f"{label}, {at}": outcome for label, outcome in outcomes.items()}
            results.append(fence.Result(tasks[number], found, named))
        return results

    def _ask(self, tasks: list[dict[str, Any]]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(tasks) + "\n")
        self._process.stdin.flush()
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        return said

    def close(self) -> None:
        """Ends the interpreter."""
        self._process.communicate()


def serve() -> None:
    """Answers batches until the end of stdin."""
    watch.install()
    one = fence.Fence()
    for line in sys.stdin:
        tasks = []
        for number, asked in enumerate(json.loads(line)):
            names = {(module, name): calls for module, name, calls in asked["names"]}
            tasks.append(fence.Task(number, base64.b64decode(asked["data"]), names))
        results = [(result.task.number, result.finds, result.outcomes) for result in one.run(tasks)]
        failures = [(task.number, reader, how) for task, reader, how in one.failures]
        one.failures.clear()
        version = ".".join(map(str, sys.version_info[:2]))
        print(json.dumps({"version": version, "results": results, "failures": failures}), flush=True)
    one.close()


if __name__ == "__main__":
    serve()
