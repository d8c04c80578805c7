"""`ScanReport`: what a scan found, as Python has it; the data are the extension's JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

if TYPE_CHECKING:
    from rustload._scan.verdict import Verdict


__all__ = ["Coverage", "FileReport", "Finding", "Named", "Range", "ScanReport", "Step"]


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
    verdict: Verdict
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
    verdict: Verdict


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
    verdict: Verdict
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
    def verdict(self) -> Verdict:
        """The worst of its findings, and never `"inert"` where something was not looked at."""
        verdict: Verdict = self._data["verdict"]
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
    def verdict(self) -> Verdict:
        """The worst of all files: `"inert"`, `"unknown"` or `"would execute"`; `"unknown"` where nothing was scanned."""
        verdict: Verdict = self._data["verdict"]
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
        from rustload._scan.text import plain  # few need it

        return plain(self._data)

    def __repr__(self) -> str:
        """Verdict and number of files."""
        files = self._data["files"]
        what = files[0]["path"] or "bytes" if len(files) == 1 else f"{len(files)} files"
        complete = "" if self.complete else ", not complete"
        found = sum(len(file["findings"]) for file in files)
        return f"<ScanReport {what!r} {self.verdict}, {found} finding{'' if found == 1 else 's'}{complete}>"
