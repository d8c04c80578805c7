"""Tensor names and glob patterns in arguments: matching, and the error or warning if nothing matches.

One rule for all arguments: a name that does not exist is a `TensorNotFoundError`, and a glob pattern without an effect is a
`RustloadWarning`. Both list similar names. A string is a name if it has no `*`, `?` or `[`, or if a tensor has exactly that name.
"""

from __future__ import annotations

import itertools
import re
import sys
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase, translate
from typing import TYPE_CHECKING, Any

from rustload._common.similar import did_you_mean, similar
from rustload.errors import RustloadWarning, _clipped, _error, _printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "NAMES_SEARCHED_MAX",
    "is_literal",
    "matches",
    "matching",
    "similar_parts",
    "unknown_name",
    "warn_of_unused_patterns",
    "warn_user",
]

NAMES_SEARCHED_MAX = 20_000
"""The most names to search for what a user may have meant."""
_PARTS_SEARCHED_MAX = 200_000
"""The most parts of these names."""


def matches(name: str, pattern: str) -> bool:
    """Whether a glob pattern matches a name, as `fnmatch` does; a name always matches itself, whatever characters it has."""
    return name == pattern or fnmatchcase(name, pattern)


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """The names that a glob pattern matches, as by `matches`; the pattern is compiled once, for millions of names."""
    match = re.compile(translate(pattern)).match
    return [name for name in names if match(name) or name == pattern]


def is_literal(pattern: str) -> bool:
    """Whether the string has no glob characters, so that it can only be a name."""
    return not any(char in pattern for char in "*?[")


def warn_of_unused_patterns(all_names: Callable[[], Iterable[str]], **rules: Any) -> None:
    """Warns of patterns in `dtype=` and `transpose=` without an effect: no name matches, or earlier patterns match all of them.

    Args:
        all_names: The names of the checkpoint. All are tried, so that one mapping also works for a subset of the tensors.
        **rules: The arguments as the user gave them; values that are not mappings are skipped.

    Raises:
        TensorNotFoundError: A mapping has the name of a tensor that does not exist.
        TypeError: A pattern is not a str.
    """
    for argument, rule in rules.items():
        earlier: list[str] = []
        if not isinstance(rule, Mapping):
            continue
        names = dict.fromkeys(all_names())
        for pattern in rule:
            if not isinstance(pattern, str):
                kind = type(pattern).__name__
                raise _error("Type", f"has a {kind} where a name or a pattern belongs", argument=argument)
            if is_literal(pattern) and pattern not in names:
                raise unknown_name(argument, pattern, names)
            matched = [pattern] if pattern in names else matching(names, pattern)
            if not matched:
                warn_user(
                    f"has the pattern {pattern!r}, which matches no name", pattern, names, argument=argument
                )
            elif all(any(fnmatchcase(name, one) for one in earlier) for name in matched):
                first = next(one for one in earlier if fnmatchcase(matched[0], one))
                text = f"has {pattern!r} after {first!r}, which takes its names: the first match counts"
                warn_user(text, argument=argument)
            if not is_literal(pattern):
                earlier.append(pattern)


def unknown_name(argument: str | None, name: str, names: Iterable[str], of: str = "tensor") -> BaseException:
    """The error for a name that does not exist, with similar names in its note.

    Args:
        argument: The argument that has it; None where the name alone was given.
        name: The name.
        names: Those that exist.
        of: What they are the names of.
    """
    text = f"names {name!r}, and no {of} has that name" if argument else f"no {of} is named {name!r}"
    return _error("NotFound", text, did_you_mean(similar(name, names)), argument=argument)


def warn_user(
    message: str, pattern: str | None = None, names: Iterable[str] = (), *, argument: str | None = None
) -> None:
    """Emits a `RustloadWarning` at the user's call; for a pattern, adds similar parts of names.

    Args:
        message: What has no effect.
        pattern: The pattern that matches nothing.
        names: The names that exist.
        argument: The argument, whose name begins the message.
    """
    near = similar_parts(pattern, names) if pattern else ""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "rustload":
        level, frame = level + 1, frame.f_back
    message = _printable(_clipped(f"{argument}= {message}" if argument else message, 1000))
    warning = RustloadWarning(message + (f" ({near})" if near else ""))
    warning.argument = argument
    warnings.warn(warning, stacklevel=level)


def similar_parts(pattern: str, names: Iterable[str]) -> str:
    """Similar parts of names for a pattern without a match: `"did you mean: weight"` for `"*.wieght"`; or an empty str."""
    searched = itertools.islice(names, NAMES_SEARCHED_MAX)
    parts = itertools.islice((part for name in searched for part in name.split(".")), _PARTS_SEARCHED_MAX)
    existing = set(parts)
    unknown = [part for part in re.split(r"[.*?]+", pattern) if part and part not in existing]
    found = [near for part in unknown for near in similar(part, existing, 2)]
    return did_you_mean(found) or ""
