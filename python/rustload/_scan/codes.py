"""The codes of a scan's findings that are not an error codes: what each means, and the verdicts that it can have.

docs/reference/errors.md lists them. The codes of errors are `_rustload.CODES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rustload import _rustload
from rustload.errors import _Note

if TYPE_CHECKING:
    from rustload._scan.verdict import Verdict

_NOTE: tuple[Verdict, ...] = ("inert",)
_UNKNOWN: tuple[Verdict, ...] = ("unknown",)


class ScanCode(NamedTuple):
    """What a code means.

    Attributes:
        verdicts: The verdicts that a finding can have, the usual one first.
        meaning: The meaning, in one sentence.
        executes: The meaning with the verdict `"would execute"`; None if the code never has it.
    """

    verdicts: tuple[Verdict, ...]
    meaning: str
    executes: str | None = None


def _may_execute(meaning: str, executes: str) -> ScanCode:
    return ScanCode(("unknown", "would execute"), meaning, executes)


SCAN_CODES = {
    "DisallowedGlobal": _may_execute(
        "A class or function that rustload does not know is called.",
        "A function is called that runs code or accesses the system.",
    ),
    "DisallowedCall": _may_execute(
        "A known function is called with arguments of an unknown form.", "The result of a call is called."
    ),
    "StateAttribute": _may_execute(
        "A BUILD sets an attribute that hides a method, or a state of a form that is not known.",
        "A BUILD sets an attribute that is called in place of a method, to something that runs code.",
    ),
    "DictKey": ScanCode(_UNKNOWN, "A key of a dict or set is hashed and compared by code of its class."),
    "Import": _may_execute(
        "A class or function is named and not called, or used as a value; its module is imported.",
        "A function that runs code or accesses the system is passed to a call, which may call it.",
    ),
    "AttributeWalk": _may_execute(
        "A dotted name is resolved through attributes.",
        "A dotted name leads to a function that runs code or accesses the system.",
    ),
    "NestedLoad": ScanCode(
        ("unknown", "inert"), "A call loads bytes inside the pickle; they were scanned, too."
    ),
    "ExtRegistry": ScanCode(
        _UNKNOWN, "A class is named by its code in the extension registry of the process that reads the file."
    ),
    "OutOfBand": ScanCode(_UNKNOWN, "The pickle needs buffers that the process that reads it has to supply."),
    "PersistentId": ScanCode(
        _UNKNOWN, "The pickle needs an object that the program that reads it has to supply."
    ),
    "ModuleSource": ScanCode(_UNKNOWN, "A legacy file has the source code of a class."),
    "Polyglot": ScanCode(_UNKNOWN, "Other readers detect another format."),
    "OpaqueContainer": ScanCode(_UNKNOWN, "A compressed stream or an archive is not unpacked."),
    "CodeInArchive": _may_execute(
        "An archive has code of TorchScript or a library, or texts with calls, types or operators that the scan does not know.",
        "An archive has native code that torch loads, texts that torch evaluates as Python, or YAML that names what is called.",
    ),
    "FrameDivergence": ScanCode(_UNKNOWN, "CPython's two unpicklers read a frame differently."),
    "NestedArchive": ScanCode(_NOTE, "An archive or an array is inside the archive."),
    "UnreferencedRecord": ScanCode(_NOTE, "The checkpoint does not refer to a pickle in its archive."),
    "ExtensionMismatch": ScanCode(_NOTE, "The file extension belongs to another format."),
    "BadAlignment": ScanCode(_NOTE, "The alignment of a storage is one that torch cannot compute with."),
    "ProtocolMix": ScanCode(_NOTE, "An opcode is newer than the protocol that the pickle states."),
    "DuplicateKey": ScanCode(_NOTE, "A dict has equal keys."),
    "SelfReference": ScanCode(_NOTE, "A value contains itself."),
    "OddName": ScanCode(_NOTE, "The name of a tensor looks like a path."),
    "OverlappingView": ScanCode(_NOTE, "A tensor is far larger than its storage."),
    "UnrestrictedLoad": ScanCode(
        _NOTE, "A reader unpickles the file, and files that it names, without restriction."
    ),
    "CheckpointScript": ScanCode(
        _NOTE, "The file is a script beside a checkpoint that unpickles it without restriction."
    ),
    "EncodedText": ScanCode(_NOTE, "A string decodes to a pickle or to code."),
}
"""The codes, in the order of docs/reference/errors.md."""

NOTED_ERRORS = frozenset(
    {
        "ExportSymbolic",
        "ExportVersion",
        "NpyDtype",
        "NpyObjects",
        "StDtype",
        "TarUnsupported",
        "TensorMetadata",
        "UnknownFormat",
        "UnsupportedContainer",
        "ZipCase",
        "ZipStructure",
        "ZipVersion",
    }
)
"""The codes of errors that can be notes: rustload cannot read the file, and no reader runs anything in it."""

_KINDS = ("Format", "Unsupported", "Disallowed", "Limit")


def error_codes() -> list[tuple[str, str, str, str]]:
    """The codes of errors about a file's content: code, kind, meaning and next step."""
    return [
        (code, kind, meaning, _Note(remedies))
        for code, kind, meaning, remedies in _rustload.CODES
        if kind in _KINDS and code not in SCAN_CODES
    ]
