"""`scan`: what a file would do in a reader that runs pickles."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload import _rustload
from rustload._common.paths import paths
from rustload._scan.report import ScanReport
from rustload._scan.verdict import ORDER
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload._common.limits import Limits

__all__ = ["merged", "report_on", "scan"]

StrPath: TypeAlias = str | os.PathLike[str] | os.PathLike[bytes]
Source: TypeAlias = StrPath | bytes | bytearray | memoryview | io.IOBase


def scan(
    source: Source | Iterable[Source],
    *,
    limits: Limits | None = None,
) -> ScanReport:
    r"""Says what a file would do in a reader that runs pickles, and runs nothing.

    What is wrong with a file is in the report and not raised. Tensors are not read: a checkpoint of any size is scanned in about
    the time that opening it takes.

    >>> import rustload
    >>> print(rustload.scan(b"cos\nsystem\n(S'id'\ntR."))
    bytes: would execute
      error    DisallowedGlobal  byte 19  os.system('id'): would be called: it runs programs

    Args:
        source: A file; a directory, of which all files are scanned; the bytes of a file (`bytes` are never a path here); an open
            binary file, all of it, wherever it stands; or a list of any of these.
        limits: Bounds on what a file may make the scan do; beyond one, the report is not complete.

    Returns:
        The report. Its verdict is `"inert"` (nothing but data, all of it looked at and understood), `"unknown"` (classes or
        functions of which nothing is known, damage, or readers disagree) or `"would execute"` (it calls what runs code or
        touches the system).

    Raises:
        OSError: A path does not exist, or a directory cannot be listed.
        TypeError: `source` is none of the above.
    """
    given = {} if limits is None else limits._given()
    single = (str, bytes, bytearray, memoryview, os.PathLike, io.IOBase)
    if isinstance(source, single) or hasattr(source, "read") or not isinstance(source, Iterable):
        parts = [report_on(source, given)]
    else:
        parts = [report_on(one, given) for one in source]
    if len(parts) == 1:
        return ScanReport._wrap(parts[0])
    return ScanReport._wrap(merged(parts))


def report_on(source: Any, limits: dict[str, int]) -> dict[str, Any]:
    """The report on one thing, as JSON has it."""
    if isinstance(source, io.BytesIO):
        source = source.getbuffer()
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parsed(_rustload.scan_bytes(bytes(source), limits=limits))
    if hasattr(source, "read"):
        return _open_file(source, limits)
    if not isinstance(source, (str, os.PathLike)):
        raise _make(
            "Type", "Type", f"scan takes paths, bytes and binary files, not a {type(source).__name__}"
        )
    return _parsed(_rustload.scan_paths(paths(source), limits=limits))


def _parsed(text: str) -> dict[str, Any]:
    """The extension's JSON; the parser is imported by the first scan, and not with the package."""
    import json

    parsed: dict[str, Any] = json.loads(text)
    return parsed


def _open_file(file: Any, limits: dict[str, int]) -> dict[str, Any]:
    """A file on a disk is read by position, whatever has been read from it; anything else is read to its end."""
    try:
        number = file.fileno()
    except (AttributeError, OSError):
        data = file.read()
        if not isinstance(data, bytes):
            raise _make("Type", "Type", "the file is open for text; open it with 'rb'") from None
        return _parsed(_rustload.scan_bytes(data, limits=limits))
    if isinstance(file, io.TextIOBase):
        raise _make("Type", "Type", "the file is open for text; open it with 'rb'")
    report = _parsed(_rustload.scan_paths([f"/proc/self/fd/{number}"], limits=limits))
    for one in report["files"]:
        one["path"] = str(getattr(file, "name", one["path"]))
    return report


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Several reports as one."""
    if not parts:
        raise _make("Value", "Value", "there is nothing to scan")
    files = [file for part in parts for file in part["files"]]
    verdict = max((part["verdict"] for part in parts), key=ORDER.__getitem__)
    return {
        **parts[0],
        "verdict": verdict,
        "complete": all(part["complete"] for part in parts),
        "files": files,
    }
