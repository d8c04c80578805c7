"""`ScanReport`: the result of a scan, as Python objects over the JSON report of the extension."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Self, TypeAlias

from rustload._common.json_values import FORMATS, Positive
from rustload._scan.verdict import Verdict
from rustload.errors import _no_truth

ScanFormat: TypeAlias = Annotated[str | None, {"enum": [*FORMATS, "joblib", "zip", "tar", "archive", None]}]


class Finding(NamedTuple):
    """One finding; findings of equal code, class or function and message are merged, with a count.

    Attributes:
        code: Its stable code: that of an error, or one that only scans have (docs/reference/scan.md lists both).
        severity: `"note"`, `"warning"` or `"error"`, by the verdict.
        verdict: The verdict on the file by this finding alone.
        message: The description, without control characters.
        member: The archive member, with `!` between the levels of nested archives; None for the file itself.
        offset: The byte offset in the member, or in the file; None if it has no single position.
        module: The module of the class or function, or None.
        name: Its name, or None. Names of more than 512 bytes are without their middle, here and in the other classes.
        arguments: The arguments of the call, abbreviated to 256 bytes, or None.
        times: The number of occurrences; member, offset and arguments are those of the first.
        readers: The unpicklers that run it or continue past it: `"c"` and `"python"` are CPython's two.
        allowed: The allowance of the policy that made it inert, or None.
        known: Whether the policy's baseline has it.
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
    times: Positive
    readers: tuple[str, ...]
    allowed: str | None
    known: bool


class Step(NamedTuple):
    """One effect that unpickling would have, in program order.

    Attributes:
        member: The archive member, as in a finding.
        offset: The byte offset of the opcode.
        effect: `"import"`, `"call"`, `"setstate"` or `"ext"`.
        opcode: The opcode's name, as `pickletools` spells it.
        module: The module of what is imported or called; empty if the callable is the result of another call.
        name: Its name.
        arguments: The arguments, abbreviated to 256 bytes.
        verdict: The verdict on it.
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
        verdict: The verdict on the name.
        reason: Why it would execute; empty otherwise.
        calls: The number of calls.
        member: The archive member that names it first.
        offset: The byte offset there.
        allowed: The allowance of the policy that covers it, or None.
    """

    module: str
    name: str
    verdict: Verdict
    reason: str
    calls: int
    member: str | None
    offset: int
    allowed: str | None


class Range(NamedTuple):
    """A byte range that was scanned, or was not.

    Attributes:
        member: The archive's member, as in a finding.
        what: The kind of data that was scanned, or why it was not.
        offset: The first byte in the member.
        nbytes: The length in bytes.
    """

    member: str | None
    what: str
    offset: int
    nbytes: int


class Coverage(NamedTuple):
    """The parts of a file that were scanned; tensor data never is.

    Attributes:
        complete: Whether everything that might contain a pickle was scanned.
        truncated: Whether a list of the report was cut at the limit `findings` or `report_bytes`.
        scanned: The ranges that were scanned.
        unscanned: The ranges that might contain a pickle and were not scanned.
    """

    complete: bool
    truncated: bool
    scanned: list[Range]
    unscanned: list[Range]


class _Report:
    """Base of the report classes: a view of the JSON report."""

    __slots__ = ("_data",)

    _data: dict[str, Any]

    def __init__(self) -> None:
        """Not for users: `rustload.scan` creates reports.

        Raises:
            TypeError: Always.
        """
        raise TypeError("reports are made by rustload.scan(path)")

    def __bool__(self) -> NoReturn:
        """Not defined, as every report would be true.

        Raises:
            TypeError: Always.
        """
        raise _no_truth(self, ".passes")

    def __eq__(self, other: object) -> bool:
        """Equal if everything in them is."""
        return type(self) is type(other) and self._data == other._data

    def __hash__(self) -> int:
        """Hashes verdict and path."""
        return hash((self._data["verdict"], self._data.get("path")))

    @classmethod
    def _wrap(cls, data: dict[str, Any]) -> Self:
        made = cls.__new__(cls)
        made._data = data
        return made


class FileReport(_Report):
    """The report on one file."""

    __slots__ = ()

    @property
    def path(self) -> str | None:
        """The path; a URL without its secrets; `-` for standard input; None for bytes in memory."""
        path: str | None = self._data["path"]
        return path

    @property
    def format(self) -> ScanFormat:
        """The format if it is known: `"torch-zip"`, `"safetensors"`, ...; docs/reference/formats.md lists all."""
        name: str | None = self._data["format"]
        return name

    @property
    def status(self) -> Literal["scanned", "skipped", "unreadable"]:
        """Whether it was scanned; `"skipped"` is a file of a kind that contains no pickle, such as a README."""
        status: Literal["scanned", "skipped", "unreadable"] = self._data["status"]
        return status

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its findings; never `"inert"` if a part was not scanned."""
        verdict: Verdict = self._data["verdict"]
        return verdict

    @property
    def passes(self) -> bool:
        """Whether it passes the policy; a skipped file passes, one that could not be read does not."""
        passes: bool = self._data["passes"]
        return passes

    @property
    def findings(self) -> list[Finding]:
        """The findings, in the order of their discovery."""
        return [Finding(**{**found, "readers": tuple(found["readers"])}) for found in self._data["findings"]]

    @property
    def trace(self) -> list[Step]:
        """The effects of unpickling, in program order; calls that rustload understands are counted in `globals` instead."""
        return [Step(**step) for step in self._data["trace"]]

    @property
    def globals(self) -> list[Named]:
        """Every class and function that its pickles name."""
        return [Named(**named) for named in self._data["globals"]]

    @property
    def coverage(self) -> Coverage:
        """The parts that were scanned, and those that were not."""
        coverage = self._data["coverage"]

        def ranges(key: str, what: str) -> list[Range]:
            return [Range(one["member"], one[what], one["offset"], one["nbytes"]) for one in coverage[key]]

        return Coverage(
            coverage["complete"], coverage["truncated"], ranges("scanned", "kind"), ranges("unscanned", "why")
        )

    def _repr_html_(self) -> str:
        """HTML for notebooks: the verdict, and the findings."""
        from rustload._html.reports import scan_html
        from rustload._scan.text import for_people

        return scan_html({"verdict": self.verdict, "files": for_people([self._data])}, repr(self))

    def __repr__(self) -> str:
        """Path and verdict."""
        return f"<FileReport {self.path or 'bytes'!r} {self.verdict}>"


class ScanReport(_Report):
    """The result of `rustload.scan`: what unpickling the files would do. `str(report)` is the text that `rustload scan` prints.

    >>> import rustload
    >>> report = rustload.scan("model.pt")
    >>> report.verdict, report.complete, report.findings
    ('inert', True, [])
    """

    __slots__ = ()

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all files: `"inert"`, `"unknown"` or `"would execute"`; `"unknown"` if nothing was scanned."""
        verdict: Verdict = self._data["verdict"]
        return verdict

    @property
    def passes(self) -> bool:
        """Whether every file passes the policy, and at least one was scanned; without a policy, whether all are inert."""
        passes: bool = self._data["passes"]
        return passes

    @property
    def complete(self) -> bool:
        """Whether at least one file was scanned, and all were scanned completely."""
        complete: bool = self._data["complete"]
        return complete

    @property
    def excluded(self) -> int:
        """How many files and folders `Policy.exclude` left out; what is in such a folder is not counted."""
        excluded: int = self._data["excluded"]
        return excluded

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
        """The effects of unpickling all files, file by file."""
        return [step for file in self.files for step in file.trace]

    @property
    def globals(self) -> list[Named]:
        """Every class and function that the pickles of all files name, file by file."""
        return [named for file in self.files for named in file.globals]

    @property
    def coverage(self) -> list[Coverage]:
        """The coverage of each file."""
        return [file.coverage for file in self.files]

    def to_json(self) -> str:
        """The report as one JSON document; docs/reference/scan.md lists its keys."""
        import json

        return json.dumps(self._data)

    def to_sarif(self, *others: ScanReport, root: str | os.PathLike[str] | None = None) -> str:
        """The report as a SARIF 2.1.0 log, as JSON; docs/guides/pipelines.md says what is in it.

        >>> import json, rustload
        >>> log = json.loads(rustload.scan("model.pt").to_sarif())
        >>> log["version"], log["runs"][0]["results"]
        ('2.1.0', [])

        Args:
            *others: Further reports for the same log.
            root: The folder that the URIs of files are relative to; None for the working directory.
        """
        import json

        from rustload._scan.sarif import sarif

        reports = (self, *others)
        files = [file for report in reports for file in report._data["files"]]
        all_of_them = {"files": files, "excluded": sum(report.excluded for report in reports)}
        return json.dumps(sarif(all_of_them, root=None if root is None else os.fspath(root)))

    def __str__(self) -> str:
        """The report as text: one line per file, with its findings below."""
        from rustload._common.terminal import text_of
        from rustload._scan.text import show

        return text_of(lambda page: show(page, self._data, quiet=False))

    def _repr_html_(self) -> str:
        """HTML for notebooks: the verdict of each file, and its findings."""
        from rustload._html.reports import scan_html
        from rustload._scan.text import for_people

        return scan_html({**self._data, "files": for_people(self._data["files"])}, repr(self))

    def __repr__(self) -> str:
        """Verdict and number of files."""
        files = self._data["files"]
        what = files[0]["path"] or "bytes" if len(files) == 1 else f"{len(files)} files"
        complete = "" if self.complete else ", not complete"
        found = sum(len(file["findings"]) for file in files)
        return f"<ScanReport {what!r} {self.verdict}, {found} finding{'' if found == 1 else 's'}{complete}>"
