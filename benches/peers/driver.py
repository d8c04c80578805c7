"""Runs one scanner over the files of a folder, in the scanners' environment, and prints what its exit code would let through.

`refused`: the scanner's documented gate fails. `passed`: it exits with 0. `unread`: it says that it could not read the file, or
does not know it.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

LIMIT_S = 30


def picklescan(path: Path) -> str:
    """`picklescan -p FILE`: 1 for dangerous imports, 2 for an error."""
    from picklescan.scanner import scan_file_path

    found = scan_file_path(str(path))
    return (
        "refused"
        if found.issues_count
        else "unread"
        if found.scan_err or not found.scanned_files
        else "passed"
    )


def picklescan_strict(path: Path) -> str:
    """`picklescan --strict -p FILE`: imports that are not known to be safe count as dangerous."""
    from picklescan.scanner import scan_file_path

    found = scan_file_path(str(path), strict=True)
    return (
        "refused"
        if found.issues_count
        else "unread"
        if found.scan_err or not found.scanned_files
        else "passed"
    )


def modelscan(path: Path) -> str:
    """`modelscan -p FILE`: 1 for issues, 2 for an error, 3 if no file is supported."""
    from modelscan.modelscan import ModelScan

    scan = ModelScan()
    found = scan.scan(path)
    if found["issues"]:
        return "refused"
    return "unread" if found["errors"] or not scan.scanned else "passed"


def hayward(path: Path) -> str:
    """`hayward scan FILE`: a finding of at least high severity fails; coverage findings say what was not read."""
    from hayward.findings import Severity
    from hayward.scanner import ModelFileScanner

    found = ModelFileScanner().scan_file(path)
    if any(one.severity in (Severity.CRITICAL, Severity.HIGH) for one in found):
        return "refused"
    return "unread" if any("SKIP" in one.rule_id for one in found) else "passed"


def fickling(path: Path) -> str:
    """`fickling --check-safety FILE` for pickles, and its function for archives."""
    import zipfile

    import fickling.loader as loader
    from fickling.analysis import Severity

    if zipfile.is_zipfile(path):
        results = list(loader.scan_zip_archive(str(path), graceful=True).values())
    else:
        results = [loader.scan_file(str(path), graceful=True)]
    if any(one.severity > Severity.LIKELY_SAFE and not one.errors for one in results):
        return "refused"
    return "unread" if not results or any(one.errors for one in results) else "passed"


def rustload(path: Path) -> str:
    """`rustload scan FILE`: 1 for a file that is not inert, 3 if it could not be read."""
    import rustload as package

    return _outcome(package.scan(path))


def rustload_execute(path: Path) -> str:
    """`rustload scan --fail-on would-execute FILE`: unknown files pass."""
    import rustload as package

    return _outcome(package.scan(path, policy=package.Policy(fail_on="would-execute")))


def _outcome(report: Any) -> str:
    if not all(file.status == "scanned" for file in report.files):
        return "unread"
    return "passed" if report.passes else "refused"


TOOLS = {
    tool.__name__: tool
    for tool in (rustload, rustload_execute, picklescan, picklescan_strict, modelscan, hayward, fickling)
}


class Late(Exception):  # noqa: N818 - not an error of the scanner's
    """The scanner took too long."""


def late(*_: Any) -> None:
    """Ends a scan."""
    raise Late


def main(tool: str, folder: str) -> None:
    """Prints a JSON object from names of files to outcomes."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, late)
    found = {}
    for path in sorted(Path(folder).iterdir()):
        signal.alarm(LIMIT_S)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                found[path.name] = TOOLS[tool](path)
        except Late:
            found[path.name] = "late"
        except RecursionError:
            found[path.name] = "crashed"
        except Exception:  # noqa: BLE001 - a scanner may fail in any way
            found[path.name] = "crashed"
        finally:
            signal.alarm(0)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
