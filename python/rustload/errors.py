"""The exceptions of rustload, one class per party that has to act.

Every exception has a stable `code` (docs/reference/errors.md lists all). The message says what is wrong and where. The advice
on what to try next is an exception note (PEP 678), which a traceback shows below the message. Errors of the operating system
are `OSError`, wrong arguments are `ValueError`, `TypeError` or `IndexError`, and a view that is not possible is a
`BufferError`; these have a `code` too.
"""

from __future__ import annotations

import os
import sys
from _pickle import UnpicklingError  # defined there; importing `pickle` takes longer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, TypeAlias

__all__ = [
    "DeviceError",
    "DisallowedError",
    "FormatError",
    "InternalError",
    "LimitError",
    "ModelMismatchError",
    "NotEnoughMemoryError",
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
        argument: The argument that is at fault, or None.
    """

    code: str = ""
    argument: str | None = None
    path: str | None = None
    member: str | None = None
    offset: int | None = None


class RustloadWarning(UserWarning):
    """An argument has no effect, such as a glob pattern that matches no name.

    Attributes:
        argument: The argument, or None.
    """

    argument: str | None = None


class FormatError(RustloadError, ValueError):
    """The file violates its format. The producer of the file has to fix it."""


class UnsupportedError(RustloadError, NotImplementedError):
    """The file or the request is valid, but rustload does not support it yet."""


class DisallowedError(RustloadError, UnpicklingError):
    """The pickle names or calls something that rustload does not know, and `unknown="error"` is set.

    Attributes:
        module: The module as the pickle spells it.
        name: The name as the pickle spells it.
    """

    module: str = ""
    name: str = ""


class LimitError(RustloadError):
    """A limit was exceeded. Raise the limit with `limits=rustload.Limits(...)`, or reject the file.

    Attributes:
        name: The limit's name; `"available_memory"`, which is not one of `Limits`, for a file object that is read into memory.
        limit: Its value.
        found: The value that the file needs.
    """

    name: str = ""
    limit: int = 0
    found: int = 0


class TensorNotFoundError(RustloadError, KeyError):
    """No tensor has that name; the note lists similar names."""

    def __str__(self) -> str:
        """The message without the quotes that `KeyError` adds."""
        return str(self.args[0]) if self.args else ""


class NotEnoughMemoryError(RustloadError, MemoryError):
    """The results need more memory than is left, or an allocation failed.

    With the code `NotEnoughMemory`, their sum was compared before anything was allocated; the attributes are set then.

    Attributes:
        needed: The bytes that the results need, or None.
        available: The bytes that are available, or None.
        bound: What bounds these: `"cgroup"`, `"RLIMIT_AS"`, `"RLIMIT_DATA"`, `"machine"`, `"available_memory"` (the limit) or
            `"GPU"`; or None.
    """

    needed: int | None = None
    available: int | None = None
    bound: str | None = None


class SafetensorError(RustloadError):
    """Raised by `rustload.safe_open` where the safetensors package raises its error of that name.

    If the file is at fault, the error is also an instance of rustload's own class: `FormatError`, `UnsupportedError` or
    `LimitError`.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the message only, because the class may have been created at run time."""
        return _safetensor_error, (str(self),)


class ModelMismatchError(RustloadError, ValueError, RuntimeError):
    """A checkpoint does not fit the model: names are missing or unexpected, or shapes differ. It is a RuntimeError as in torch.

    Attributes:
        missing: Names that are in the model and not in the file.
        unexpected: Names that are in the file and not in the model.
        mismatched: `(name, found, expected)` for each tensor whose shape or kind of number differs.
    """

    code: str = "ModelMismatch"
    missing: list[str]
    unexpected: list[str]
    mismatched: list[Any]


class DeviceError(RustloadError, RuntimeError):
    """The device does not exist, or reported an error."""


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
    "Memory": NotEnoughMemoryError,
    "Cancelled": KeyboardInterrupt,  # type: ignore[dict-item]  # a BaseException, and raised as such
    "Internal": InternalError,
}


_MESSAGE_MAX = 1000


def _clipped(text: str, most: int = 200) -> str:
    """The text, with its middle cut out if it is longer than `most` characters: names from files can be arbitrarily long."""
    return text if len(text) <= most else f"{text[: most * 2 // 3]}...{text[len(text) - most // 3 + 3 :]}"


def _printable(text: str) -> str:
    """The text with escape sequences for characters without a visible form, such as control characters and bidi controls.

    Names from files are shown to people in this form, so that they can neither control a terminal nor forge a line. The core has
    the same rule (src/text.rs).
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _printable_lines(text: str) -> str:
    """As `_printable`, for a text with line breaks of rustload's own."""
    return "\n".join(map(_printable, text.split("\n")))


def _shown(text: str) -> str:
    """A name from a file, for people: clipped and printable."""
    return _printable(_clipped(text))


_Remedy: TypeAlias = tuple[str, str, object, str]
"""What to try next, as in the core (src/error/remedy.rs), which each face words: `"say"`, `"raise"`, `"pass"`, `"call"` or
`"list"`; the words, limit, argument or function; the value of an argument, where `...` stands for any; and why."""


def _say(words: str) -> _Remedy:
    return "say", words, ..., ""


def _pass(argument: str, why: str = "", *, value: Any = ...) -> _Remedy:
    return "pass", argument, value, why


def _for_python(remedy: _Remedy) -> str:
    act, name, value, why = remedy
    match act:
        case "raise":
            return f"raise it with limits=rustload.Limits({name}=...) {why}"
        case "pass":
            return f"pass {name}={'' if value is ... else repr(value)} {why}".rstrip()
        case "call":
            return f"call rustload.{name} {why}"
        case "list":
            return "list the names: list(ckpt)"
    return name


class _Note(str):
    """Remedies in the words for Python, as the note of an exception, which keeps them for other faces."""

    remedies: tuple[_Remedy, ...]

    def __new__(cls, remedies: Iterable[_Remedy]) -> _Note:
        made = tuple(remedies)
        note = super().__new__(cls, _sentence(made, _for_python))
        note.remedies = made
        return note

    def __reduce__(self) -> tuple[Any, ...]:
        return _Note, (self.remedies,)


def _sentence(remedies: Sequence[_Remedy], worded: Callable[[_Remedy], str]) -> str:
    """The alternatives as a sentence; words for any caller that are the only one stay as they are."""
    text = ", or ".join(map(worded, remedies))
    if text and [act for act, *_ in remedies] != ["say"]:
        text = f"{text[:1].upper()}{text[1:]}."
    return _printable_lines(_clipped(text, _MESSAGE_MAX))


def _from_core(
    *,
    kind: str,
    code: str,
    message: str,
    remedies: Iterable[_Remedy] = (),
    argument: str | None = None,
    errno: int | None = None,
    path: str | None = None,
    member: str | None = None,
    offset: int | None = None,
    **details: Any,
) -> BaseException:
    """Creates the exception for an error of the Rust core; called by the extension."""
    error: BaseException
    message = f"{argument}= {message}" if argument else message
    message = _printable_lines(_clipped(message, _MESSAGE_MAX))
    if kind == "Io":
        error = OSError(errno, os.strerror(errno), path) if errno else OSError(message)
    else:
        error = _CLASSES[kind](message)
    vars(error).update(details, code=code, path=path, member=member, offset=offset, argument=argument)
    if note := _Note(remedies):
        error.add_note(note)
    return error


def _error(
    code: str,
    message: str,
    *notes: str | _Remedy | None,
    argument: str | None = None,
    **details: Any,
) -> BaseException:
    """Creates the exception for an error that Python code found.

    Args:
        code: The code.
        message: What is wrong.
        *notes: What to try next; the default is what the catalogue has for the code.
        argument: The argument at fault, whose name begins the message.
        **details: The file, and other attributes.
    """
    from rustload import _rustload

    kind, remedies = next((kind, remedies) for name, kind, _, remedies in _rustload.CODES if name == code)
    own = [_say(note) if isinstance(note, str) else note for note in notes if note]
    return _from_core(
        kind=kind, code=code, message=message, remedies=own or remedies, argument=argument, **details
    )


def _no_truth(report: object, attributes: str) -> TypeError:
    """The error for the truth value of a report, which says what to ask instead."""
    return TypeError(f"a {type(report).__name__} has no truth value: use {attributes}")


def _check_one_of(argument: str, value: Any, allowed: tuple[object, ...]) -> None:
    """Checks that the value of an argument is one of a few words, or None.

    Raises:
        ValueError: It is none of them.
    """
    if value not in allowed:
        *others, last = map(repr, allowed)
        raise _error("Value", f"is {', '.join(others)} or {last}, not {value!r}", argument=argument)


# Code that is ported to rustload contains `except safetensors.SafetensorError`, which must keep working. rustload does not import
# that package, but a handler can name the class only if the program has imported it. So if the package is loaded, the error's
# class also derives from the package's class. There is one class per combination of bases.
_SAFETENSOR_ERRORS: dict[tuple[type, ...], type[SafetensorError]] = {(SafetensorError,): SafetensorError}


def _safetensor_error(message: str, cause: RustloadError | None = None) -> SafetensorError:
    """Creates a SafetensorError; with a `cause` it is also of that class, and copies its code, location and notes."""
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
    error = made(_printable_lines(message))
    if cause is not None:
        vars(error).update(vars(cause) | {"__notes__": list(getattr(cause, "__notes__", ()))})
    return error
