"""Operators of lazy tensors: arithmetic and order need elements, so the error says how to read them.

An operand that can compute with a lazy tensor, such as a NumPy array, does so, as without these methods. Two lazy tensors are
equal if they are the same part of the same file, which needs no elements.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NOTE = (
    "a lazy tensor holds no elements: compute with the result of .materialize(), .torch() or .numpy(), which may be of a slice; "
    ".item() is the only element"
)
# The operator of each method, and the method of the other operand that does the same.
_ARITHMETIC = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "divmod": "divmod()",
    "pow": "**",
    "matmul": "@",
    "and": "&",
    "or": "|",
    "xor": "^",
    "lshift": "<<",
    "rshift": ">>",
}
_ORDER = {"lt": ("<", "gt"), "le": ("<=", "ge"), "gt": (">", "lt"), "ge": (">=", "le")}
_UNARY = {"neg": "-", "pos": "+", "invert": "~", "abs": "abs()", "round": "round()"}


def _type_error(message: str) -> TypeError:
    error = TypeError(message)
    error.add_note(_NOTE)
    return error


def _binary(text: str, answer: str) -> Callable[..., Any]:
    """The method of an operator whose left operand is a lazy tensor; `answer` is the method of the right one."""

    def method(self: Operators, other: Any, *_: Any) -> Any:
        compute = None if isinstance(other, Operators) else _method(type(other), answer)
        if compute is not None:
            try:
                found = compute(other, self)
            except TypeError as error:
                error.add_note(_NOTE)
                raise
            if found is not NotImplemented:
                return found
        raise _unsupported(text, self, other)

    return method


def _method(cls: type, name: str) -> Any:
    """The method of the class, as operators look it up: not one of its metaclass."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _reflected(text: str) -> Callable[..., Any]:
    """The method of an operator whose right operand is a lazy tensor: the left one has been asked before."""

    def method(self: Operators, other: Any, *_: Any) -> Any:
        raise _unsupported(text, other, self)

    return method


def _unsupported(text: str, left: Any, right: Any) -> TypeError:
    return _type_error(
        f"unsupported operand types for {text}: {type(left).__name__!r} and {type(right).__name__!r}"
    )


def _unary(text: str) -> Callable[..., Any]:
    def method(self: Operators, *_: Any) -> Any:
        raise _type_error(f"unsupported operand type for {text}: {type(self).__name__!r}")

    return method


def _comparison(text: str, answer: str) -> Callable[..., Any]:
    elements = _binary(text, answer)

    def method(self: Any, other: Any) -> Any:
        if isinstance(other, Operators):
            return (self is other or self._is_same(other)) == (text == "==")
        if isinstance(other, (int, float, complex)) or _method(type(other), "__array__") is not None:
            return elements(self, other)
        return NotImplemented  # nothing that has elements, such as None or a text

    return method


class Operators:
    """Answers operators with a TypeError that says how to read the elements, unless the other operand can compute with them.

    `==`, `!=` and `hash` of lazy tensors are those of the part of the file that they are.
    """

    __slots__ = ()


if not TYPE_CHECKING:  # type checkers must still report the operators
    for _name, _text in _ARITHMETIC.items():
        setattr(Operators, f"__{_name}__", _binary(_text, f"__r{_name}__"))
        setattr(Operators, f"__r{_name}__", _reflected(_text))
    for _name, (_text, _answer) in _ORDER.items():
        setattr(Operators, f"__{_name}__", _binary(_text, f"__{_answer}__"))
    for _name, _text in _UNARY.items():
        setattr(Operators, f"__{_name}__", _unary(_text))
    Operators.__eq__, Operators.__ne__ = _comparison("==", "__eq__"), _comparison("!=", "__ne__")


def index_note(key: Any) -> str | None:
    """What to do in place of an index that is not supported; None for indices of other kinds."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(isinstance(part, slice) and isinstance(part.step, int) and part.step < 0 for part in parts):
        return "slice with a positive step, and reverse the result: t.materialize().flip(0) in torch, .numpy()[::-1] in NumPy"
    if any(hasattr(part, "__len__") or hasattr(part, "dtype") or isinstance(part, bool) for part in parts):
        return (
            "read first: t.materialize()[mask]; or join rows lazily: rustload.stack([t[row] for row in rows]), "
            "rustload.concat([t[start:stop] for start, stop in ranges])"
        )
    return None
