"""`scan`: reports what unpickling a file would do, without running it."""

from __future__ import annotations

import io
import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload import _rustload
from rustload._common.files import FileObject, file_name, source_of
from rustload._common.paths import file_bytes, is_file_object, path_list
from rustload._remote.folder import ObjectFolder, in_folder
from rustload._remote.ranges import ObjectRanges
from rustload._remote.resolve import remote_source
from rustload._remote.urls import DEFAULT_SCHEMES
from rustload._scan.gate import Gate
from rustload._scan.policy import Policy
from rustload._scan.report import ScanReport
from rustload._scan.verdict import ORDER
from rustload.errors import _error

if TYPE_CHECKING:
    from rustload._rustload import Limits

StrPath: TypeAlias = str | os.PathLike[str] | os.PathLike[bytes]
Source: TypeAlias = StrPath | bytes | bytearray | memoryview | FileObject | ObjectFolder


def scan(
    source: Source | Iterable[Source],
    *,
    limits: Limits | None = None,
    policy: Policy | None = None,
    storage_options: Mapping[str, Any] | None = None,
    remote: Collection[str] = DEFAULT_SCHEMES,
) -> ScanReport:
    r"""Reports what unpickling a file would do. Nothing is run or imported.

    Faults of a file are findings in the report, not exceptions. Tensor data is not read: scanning a checkpoint of any size takes
    about as long as opening it.

    >>> import rustload
    >>> print(rustload.scan(b"cos\nsystem\n(S'id'\ntR."))
    bytes: would execute
      error    DisallowedGlobal  byte 19  os.system('id'): would be called: it runs programs
      next step  delete it, or read its tensors with rustload.open, which runs nothing of it

    Args:
        source: A file; a directory, of which all files are scanned; the content of a file (`bytes` are never a path here); an
            open binary file or an object with `read_ranges` (`rustload.Ranges`), which is scanned from its start whatever its
            position; the URL of a file or of a folder, as for `rustload.open`; or a list of any of these.
        limits: Upper bounds on the memory and work of the scan; if one is exceeded, the report is not complete.
        policy: The names that are accepted, and what makes `report.passes` False; None accepts no name beyond those that
            rustload understands, and lets only inert files pass.
        storage_options: What fsspec makes the file system of a URL with. No message shows them.
        remote: The schemes of URLs that are allowed; `()` for none.

    Returns:
        The report. Its verdict is `"inert"` (only data, and all of it was scanned and understood), `"unknown"` (unknown classes
        or functions, damage, or unpicklers that disagree) or `"would execute"` (it calls functions that run code or access the
        system).

    Raises:
        OSError: A path does not exist, a directory cannot be listed, or the baseline cannot be read.
        TypeError: `source` is none of the above, or `policy` is not one.
        UnsupportedError: The package for a URL is missing.
        ValueError: The baseline of the policy is not a report, or the scheme of a URL is not in `remote`.
    """
    given: Any = policy
    if given is not None and not isinstance(given, Policy):
        note = "rustload.Policy.from_file(path) reads one"
        raise _error("Type", f"is a rustload.Policy or None, not {given!r}", note, argument="policy")
    gate = Gate(policy, limits)
    single = (str, bytes, bytearray, memoryview, os.PathLike, io.IOBase)
    if (
        isinstance(source, single)
        or hasattr(source, "fs")
        or is_file_object(source)
        or isinstance(source, Mapping)
        or not isinstance(source, Iterable)
    ):
        sources = [source]
    else:
        sources = list(source)
    parts = [
        report_on(remote_source(one, storage_options=storage_options, remote=remote), gate) for one in sources
    ]
    report = merged(parts)
    gate.judge(report)
    return ScanReport._wrap(report)


def report_on(source: Any, gate: Gate) -> dict[str, Any]:
    """The report on one source, as a dict in the form of the JSON report; not judged yet."""
    options = gate.options(source)
    if gate.manifest is not None and isinstance(source, ObjectRanges):
        source = in_folder(source)
    if isinstance(source, ObjectFolder):
        name = source.name
        is_excluded = options.excludes
        folders, excluded = (
            ([source], 0) if source.chosen else source.all_folders(lambda path: is_excluded(name, path))
        )
        parts = [_report(one, options, name) for one in folders]
        excluded += sum(part["excluded"] for part in parts)
        # What has no files has no verdict.
        return merged([part for part in parts if part["files"]] or parts[:1]) | {"excluded": excluded}
    content = file_bytes(source)
    if content is not None:
        return _report(content, options)
    if is_file_object(source):
        return _open_file(source, options)
    if not isinstance(source, (str, os.PathLike)):
        raise _error("Type", f"scan takes paths, bytes and binary files, not a {type(source).__name__}")
    return _report(path_list(source), options)


def _report(source: Any, options: _rustload.ScanOptions, root: str | None = None) -> dict[str, Any]:
    """Parses the extension's JSON; `json` is imported here, not with the package, because that takes time."""
    import json

    parsed: dict[str, Any] = json.loads(_rustload.scan(source, options, root))
    return parsed


def _open_file(file: Any, options: _rustload.ScanOptions) -> dict[str, Any]:
    """Scans an open file from its start: one on disk by its path, any other by position or in memory."""
    source = source_of(file, from_start=True)
    if isinstance(source, bytes):
        return _report(source, options)
    if not isinstance(source, str):
        return _report((source, 0, file_name(source)), options)
    report = _report([source], options)
    for one in report["files"]:
        one["path"] = str(getattr(file, "name", one["path"]))
    return report


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Merges several reports into one."""
    if not parts:
        raise _error("Value", "there is nothing to scan")
    if len(parts) == 1:
        return parts[0]
    files = [file for part in parts for file in part["files"]]
    verdict = max((part["verdict"] for part in parts), key=ORDER.__getitem__)
    return {
        **parts[0],
        "verdict": verdict,
        "complete": all(part["complete"] for part in parts),
        "excluded": sum(part["excluded"] for part in parts),
        "files": files,
    }
