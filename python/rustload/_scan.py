"""`scan` and `ScanReport`: what a file would do in a reader that runs pickles."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from rustload import _rustload
from rustload._paths import paths
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload._limits import Limits

__all__ = ["Coverage", "FileReport", "Finding", "Named", "Range", "ScanReport", "Step", "scan"]

StrPath: TypeAlias = str | os.PathLike[str] | os.PathLike[bytes]
Source: TypeAlias = StrPath | bytes | bytearray | memoryview | io.IOBase

_ORDER: dict[str, int] = {"inert": 0, "unknown": 1, "would execute": 2}


class Finding(NamedTuple):
    """One thing that was found; equal ones are one, with a count.

    Attributes:
        code: Its stable code: an error's, or one that only scans have (docs/scan.md lists both).
        severity: `"note"`, `"warning"` or `"error"`, by the verdict.
        verdict: What this finding alone makes of the file.
        message: What is the matter.
        member: The archive's member, behind `!` where archives nest; None for the file itself.
        offset: The byte in the member, or in the file; None where there is no one place.
        module: The module of the class or function that it is about, or None.
        name: Its name, or None.
        arguments: What it is called with, abbreviated to 256 bytes, or None.
        times: How often it was found; offset and arguments are the first's.
        readers: Who sees it or goes on past it: `"c"` and `"python"` are CPython's two unpicklers.
    """

    code: str
    severity: Literal["note", "warning", "error"]
    verdict: Literal["inert", "unknown", "would execute"]
    message: str
    member: str | None
    offset: int | None
    module: str | None
    name: str | None
    arguments: str | None
    times: int
    readers: tuple[str, ...]


class Step(NamedTuple):
    """One thing that unpickling would do, in program order.

    Attributes:
        member: The archive's member, as in a finding.
        offset: Where the opcode lies, in bytes.
        effect: `"import"`, `"call"`, `"setstate"` or `"ext"`.
        opcode: The opcode's name, as `pickletools` spells it.
        module: The module of what is imported or called; empty for the result of another call.
        name: Its name.
        arguments: The arguments, abbreviated to 256 bytes.
        verdict: What is thought of it.
    """

    member: str | None
    offset: int
    effect: Literal["import", "call", "setstate", "ext"]
    opcode: str
    module: str
    name: str
    arguments: str
    verdict: Literal["inert", "unknown", "would execute"]


class Named(NamedTuple):
    """A class or function that the pickles name.

    Attributes:
        module: Its module, in Python 3's spelling.
        name: Its name in the module; may be dotted.
        verdict: What is thought of the name.
        reason: Why it would execute; else empty.
        calls: How often it is called.
        member: The member that names it first.
        offset: Where, in bytes.
    """

    module: str
    name: str
    verdict: Literal["inert", "unknown", "would execute"]
    reason: str
    calls: int
    member: str | None
    offset: int


class Range(NamedTuple):
    """Bytes that were looked at, or were not.

    Attributes:
        member: The archive's member, as in a finding.
        what: What was looked at, or why it was not.
        offset: The first byte in the member.
        nbytes: How many.
    """

    member: str | None
    what: str
    offset: int
    nbytes: int


class Coverage(NamedTuple):
    """What was looked at in a file; tensors' bytes never are.

    Attributes:
        complete: Whether everything that might hold a pickle was.
        truncated: Whether a list of the report ended at the limit `findings`.
        scanned: What was looked at.
        unscanned: What was not.
    """

    complete: bool
    truncated: bool
    scanned: list[Range]
    unscanned: list[Range]


class _Report:
    """A report as the extension made it."""

    __slots__ = ("_data",)

    _data: dict[str, Any]

    def __init__(self) -> None:
        """Not for users: `rustload.scan` makes reports.

        Raises:
            TypeError: Always.
        """
        raise TypeError("reports are made by rustload.scan(path)")

    @classmethod
    def _wrap(cls, data: dict[str, Any]) -> Self:
        made = cls.__new__(cls)
        made._data = data
        return made


class FileReport(_Report):
    """What was found in one file."""

    __slots__ = ()

    @property
    def path(self) -> str | None:
        """The path; None for bytes in memory."""
        path: str | None = self._data["path"]
        return path

    @property
    def format(self) -> str | None:
        """The format, where it has one: `"torch-zip"`, `"torch-legacy"`, `"pickle"`, `"safetensors"`, `"npy"`, ..."""
        name: str | None = self._data["format"]
        return name

    @property
    def status(self) -> Literal["scanned", "skipped", "unreadable"]:
        """Whether it was scanned; `"skipped"` is a file that holds no pickle as far as anybody knows, such as a README."""
        status: Literal["scanned", "skipped", "unreadable"] = self._data["status"]
        return status

    @property
    def verdict(self) -> Literal["inert", "unknown", "would execute"]:
        """The worst of its findings, and never `"inert"` where something was not looked at."""
        verdict: Literal["inert", "unknown", "would execute"] = self._data["verdict"]
        return verdict

    @property
    def findings(self) -> list[Finding]:
        """What was found, in the order in which it was."""
        return [Finding(**{**found, "readers": tuple(found["readers"])}) for found in self._data["findings"]]

    @property
    def trace(self) -> list[Step]:
        """What unpickling would do, in program order; calls that rustload understands are counted in `globals` instead."""
        return [Step(**step) for step in self._data["trace"]]

    @property
    def globals(self) -> list[Named]:
        """Every class and function that its pickles name."""
        return [Named(**named) for named in self._data["globals"]]

    @property
    def coverage(self) -> Coverage:
        """What was looked at, and what was not."""
        told = self._data["coverage"]

        def ranges(key: str, what: str) -> list[Range]:
            return [Range(one["member"], one[what], one["offset"], one["nbytes"]) for one in told[key]]

        return Coverage(
            told["complete"], told["truncated"], ranges("scanned", "kind"), ranges("unscanned", "why")
        )

    def __repr__(self) -> str:
        """Path and verdict."""
        return f"<FileReport {self.path or 'bytes'!r} {self.verdict}>"


class ScanReport(_Report):
    """What files would do in a reader that runs pickles. `str(report)` is the text that `rustload scan` prints.

    >>> import rustload
    >>> report = rustload.scan("model.pt")
    >>> report.verdict, report.complete, report.findings
    ('inert', True, [])
    """

    __slots__ = ()

    @property
    def verdict(self) -> Literal["inert", "unknown", "would execute"]:
        """The worst of all files: `"inert"`, `"unknown"` or `"would execute"`; `"unknown"` where nothing was scanned."""
        verdict: Literal["inert", "unknown", "would execute"] = self._data["verdict"]
        return verdict

    @property
    def complete(self) -> bool:
        """Whether something was scanned, and all of it was."""
        complete: bool = self._data["complete"]
        return complete

    @property
    def files(self) -> list[FileReport]:
        """One report for each file."""
        return [FileReport._wrap(data) for data in self._data["files"]]

    @property
    def findings(self) -> list[Finding]:
        """The findings of all files."""
        return [found for file in self.files for found in file.findings]

    @property
    def trace(self) -> list[Step]:
        """What unpickling all files would do."""
        return [step for file in self.files for step in file.trace]

    @property
    def globals(self) -> list[Named]:
        """Every class and function that the pickles of all files name, file by file."""
        return [named for file in self.files for named in file.globals]

    @property
    def coverage(self) -> list[Coverage]:
        """What was looked at, file by file."""
        return [file.coverage for file in self.files]

    def to_json(self) -> str:
        """The report as one JSON document; docs/scan.md lists its keys."""
        import json

        return json.dumps(self._data)

    def __str__(self) -> str:
        """One line for each file, its findings below."""
        from rustload._cli import scan as cli
        from rustload._cli.text import Page

        out = io.StringIO()
        page = Page(out, "never")
        cli.show(page, self._data, quiet=False)
        page.flush()
        return out.getvalue().rstrip("\n")

    def __repr__(self) -> str:
        """Verdict and number of files."""
        files = self._data["files"]
        what = files[0]["path"] or "bytes" if len(files) == 1 else f"{len(files)} files"
        complete = "" if self.complete else ", not complete"
        found = sum(len(file["findings"]) for file in files)
        return f"<ScanReport {what!r} {self.verdict}, {found} finding{'' if found == 1 else 's'}{complete}>"


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
        parts = [_one(source, given)]
    else:
        parts = [_one(one, given) for one in source]
    if len(parts) == 1:
        return ScanReport._wrap(parts[0])
    return ScanReport._wrap(_merged(parts))


def _one(source: Any, limits: dict[str, int]) -> dict[str, Any]:
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


def _merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Several reports as one."""
    if not parts:
        raise _make("Value", "Value", "there is nothing to scan")
    files = [file for part in parts for file in part["files"]]
    verdict = max((part["verdict"] for part in parts), key=_ORDER.__getitem__)
    return {
        **parts[0],
        "verdict": verdict,
        "complete": all(part["complete"] for part in parts),
        "files": files,
    }
