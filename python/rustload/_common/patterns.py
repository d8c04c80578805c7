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
from rustload.errors import RustloadWarning, TensorNotFoundError, _clipped, _error, _printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rustload import _rustload

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


def warn_of_unused_patterns(core: _rustload.Checkpoint, **rules: Any) -> None:
    """Warns of patterns in `dtype=` and `transpose=` without an effect: no name matches, or earlier patterns match all of them.

    Args:
        core: The checkpoint. All of its names are tried, so that one mapping also works for a subset of the tensors.
        **rules: The arguments as the user gave them; values that are not mappings are skipped.

    Raises:
        TensorNotFoundError: A mapping has the name of a tensor that does not exist.
        TypeError: A pattern is not a str.
    """
    for argument, rule in rules.items():
        earlier: list[str] = []
        if not isinstance(rule, Mapping):
            continue
        names = core.names()
        for pattern in rule:
            if not isinstance(pattern, str):
                kind = type(pattern).__name__
                raise _error("Type", f"{argument}= has a {kind} where a name or a pattern belongs")
            if is_literal(pattern) and pattern not in core:
                raise unknown_name(f"{argument}=", pattern, core)
            matched = [pattern] if pattern in core else matching(names, pattern)
            if not matched:
                warn_user(f"{argument}= has the pattern {pattern!r}, which matches no name", pattern, names)
            elif all(any(fnmatchcase(name, one) for one in earlier) for name in matched):
                first = next(one for one in earlier if fnmatchcase(matched[0], one))
                warn_user(
                    f"{argument}= has {pattern!r} after {first!r}, which takes its names: the first match counts"
                )
            if not is_literal(pattern):
                earlier.append(pattern)


def unknown_name(argument: str, name: str, core: _rustload.Checkpoint) -> BaseException:
    """The error for a name that does not exist, with similar names in its note."""
    try:
        core.tensor(name)
    except TensorNotFoundError as error:
        unknown = _error(error.code, f"{argument} names {name!r}, and no tensor has that name")
        unknown.__notes__ = list(getattr(error, "__notes__", ()))
        return unknown
    raise AssertionError(name)


def warn_user(message: str, pattern: str | None = None, names: Iterable[str] = ()) -> None:
    """Emits a `RustloadWarning` at the user's call; for a pattern, adds similar parts of names."""
    near = similar_parts(pattern, names) if pattern else ""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "rustload":
        level, frame = level + 1, frame.f_back
    message = _printable(_clipped(message, 1000))
    warnings.warn(RustloadWarning(message + (f" ({near})" if near else "")), stacklevel=level)


def similar_parts(pattern: str, names: Iterable[str]) -> str:
    """Similar parts of names for a pattern without a match: `"did you mean: weight"` for `"*.wieght"`; or an empty str."""
    searched = itertools.islice(names, NAMES_SEARCHED_MAX)
    parts = itertools.islice((part for name in searched for part in name.split(".")), _PARTS_SEARCHED_MAX)
    existing = set(parts)
    unknown = [part for part in re.split(r"[.*?]+", pattern) if part and part not in existing]
    found = [near for part in unknown for near in similar(part, existing, 2)]
    return did_you_mean(found) or ""
