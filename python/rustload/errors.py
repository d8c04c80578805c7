"""The exceptions of rustload, by who must act.

Every exception has a stable `code` (the catalogue is in the documentation) and says what, where and what to try next; the
advice is an exception note (PEP 678), so a traceback shows it below the message. Errors of the operating system stay
`OSError`, wrong arguments stay `ValueError`, `TypeError` and `IndexError`, and a view that cannot be had is a `BufferError`;
these carry `code` too.
"""

from __future__ import annotations

import os
import sys
from _pickle import UnpicklingError  # pickle has it from there, and takes longer to import
from typing import Any

__all__ = [
    "DeviceError",
    "DisallowedError",
    "FormatError",
    "InternalError",
    "LimitError",
    "ModelMismatchError",
    "RustloadError",
    "RustloadWarning",
    "SafetensorError",
    "TensorNotFoundError",
    "UnsupportedError",
]


class RustloadError(Exception):
    """Base of rustload's own exceptions.

    Attributes:
        code: The stable code, such as `"ZipTrailing"`.
        path: The file, or None for bytes in memory.
        member: The archive member or tensor, or None.
        offset: The byte offset inside the member (or the file), or None.
    """

    code: str = ""
    path: str | None = None
    member: str | None = None
    offset: int | None = None


class RustloadWarning(UserWarning):
    """Something that was asked for has no effect, such as a pattern that matches no name."""


class FormatError(RustloadError, ValueError):
    """The file is not what its format allows. Whoever made the file must act."""


class UnsupportedError(RustloadError, NotImplementedError):
    """The file or request is legitimate, and rustload cannot serve it yet."""


class DisallowedError(RustloadError, UnpicklingError):
    """The pickle names or calls what rustload does not know, and `unknown="error"` was asked for.

    Attributes:
        module: The module as the pickle spells it.
        name: The name as the pickle spells it.
    """

    module: str = ""
    name: str = ""


class LimitError(RustloadError):
    """A limit was exceeded. Raise it with `limits=rustload.Limits(...)`, or reject the file.

    Attributes:
        name: The limit's name.
        limit: The limit in force.
        found: What the file wants.
    """

    name: str = ""
    limit: int = 0
    found: int = 0


class TensorNotFoundError(RustloadError, KeyError):
    """No tensor has that name; the note gives the nearest names there are."""

    def __str__(self) -> str:
        """The message as it is, where `KeyError` would quote it."""
        return str(self.args[0]) if self.args else ""


class SafetensorError(RustloadError):
    """What `rustload.safe_open` raises where the safetensors package raises the error of that name, in the same words.

    Where a file is at fault, it is rustload's own error as well: a `FormatError`, an `UnsupportedError`, a `LimitError`.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as its message: the class may have been made for the occasion."""
        return _safetensor_error, (str(self),)


class ModelMismatchError(RustloadError, ValueError, RuntimeError):
    """A checkpoint does not fit the model: names are missing or unexpected, or shapes differ. torch raises RuntimeError there.

    Attributes:
        missing: Names that the model has and the file has not.
        unexpected: Names that the file has and the model has not.
        mismatched: `(name, found, expected)` of what differs in shape, or in its kind of number.
    """

    code: str = "ModelMismatch"
    missing: list[str]
    unexpected: list[str]
    mismatched: list[Any]


class DeviceError(RustloadError, RuntimeError):
    """The device is missing or reported an error."""


class InternalError(RustloadError, RuntimeError):
    """A bug in rustload. Please report it."""


_CLASSES: dict[str, type[Exception]] = {
    "Format": FormatError,
    "Unsupported": UnsupportedError,
    "Disallowed": DisallowedError,
    "Limit": LimitError,
    "NotFound": TensorNotFoundError,
    "Value": ValueError,
    "Type": TypeError,
    "Index": IndexError,
    "Buffer": BufferError,
    "Device": DeviceError,
    "Memory": MemoryError,
    "Cancelled": KeyboardInterrupt,  # type: ignore[dict-item]  # not an Exception, and raised all the same
    "Internal": InternalError,
}


_MESSAGE_MAX = 1000


def _clipped(text: str, most: int = 200) -> str:
    """The text without its middle where it is longer than `most`: files, too, say how long names are."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]}...{text[len(text) - most // 3 + 3 :]}"


def _from_core(
    *,
    kind: str,
    code: str,
    message: str,
    note: str | None,
    errno: int | None,
    path: str | None,
    **details: Any,
) -> BaseException:
    """Makes the exception for an error of the core; called by the extension."""
    error: BaseException
    message = _clipped(message, _MESSAGE_MAX)
    if kind == "Io":
        error = OSError(errno, os.strerror(errno), path) if errno else OSError(message)
    else:
        error = _CLASSES[kind](message)
    for name, value in {"code": code, "path": path, **details}.items():
        setattr(error, name, value)
    if note:
        error.add_note(_clipped(note, _MESSAGE_MAX))
    return error


def _make(kind: str, code: str, message: str, note: str | None = None) -> BaseException:
    """Makes the exception for an error that Python itself found; without a note of its own it gets the catalogue's."""
    from rustload import _rustload

    note = note or next((then for name, _, _, then in _rustload.CODES if name == code), None)
    return _from_core(
        kind=kind, code=code, message=message, note=note, errno=None, path=None, member=None, offset=None
    )


# Code that is ported to rustload has `except safetensors.SafetensorError` in it, which must go on working; rustload does not
# import that package, and a handler that names its class can only exist once somebody has. So an error is raised as a class
# that also derives from the package's own, if that is loaded by then; one class per combination of bases.
_SAFETENSOR_ERRORS: dict[tuple[type, ...], type[SafetensorError]] = {(SafetensorError,): SafetensorError}


def _safetensor_error(message: str, cause: RustloadError | None = None) -> SafetensorError:
    """Makes a SafetensorError; with a `cause` it is of that class too, and takes over its code, its place and its notes."""
    bases: tuple[type, ...] = (SafetensorError,)
    if cause is not None and not isinstance(cause, SafetensorError):
        bases += (type(cause),)
    theirs = getattr(sys.modules.get("safetensors"), "SafetensorError", None)
    if isinstance(theirs, type) and issubclass(theirs, Exception) and not issubclass(theirs, RustloadError):
        bases += (theirs,)
    made = _SAFETENSOR_ERRORS.get(bases)
    if made is None:
        namespace = {"__module__": __name__, "__doc__": SafetensorError.__doc__}
        made = _SAFETENSOR_ERRORS.setdefault(bases, type("SafetensorError", bases, namespace))
    error = made(message)
    if cause is not None:
        vars(error).update(vars(cause) | {"__notes__": list(getattr(cause, "__notes__", ()))})
    return error
