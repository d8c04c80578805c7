"""Names and patterns of names that a user writes: what they take, and what is told where they take nothing.

The rule is one for all arguments: a name that is not there is an error, and a pattern that has no effect is a `RustloadWarning`.
Both say what comes near. A name is a text without `*`, `?` and `[`, or one that a tensor has as it stands.
"""

from __future__ import annotations

import itertools
import re
import sys
import warnings
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from rustload._common.similar import did_you_mean, similar
from rustload.errors import RustloadWarning, TensorNotFoundError, _clipped, _make

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rustload import _rustload

__all__ = ["check_rules", "is_name", "matches", "near_parts", "tell", "unknown_name"]

_LOOKED_AT = 20_000
"""Names that are looked through for parts that come near."""


def matches(name: str, pattern: str) -> bool:
    """Whether a glob pattern takes a name, as in `fnmatch`; a name always takes itself, whatever is in it."""
    return name == pattern or fnmatchcase(name, pattern)


def is_name(pattern: str) -> bool:
    """Whether it can only mean the tensor of that name."""
    return not any(char in pattern for char in "*?[")


def check_rules(core: _rustload.Checkpoint, **rules: Any) -> None:
    """Tells of patterns in `dtype=` and `transpose=` that change nothing: none matches, or others take all their names first.

    Args:
        core: The checkpoint. All its names count, so that one mapping serves for parts of it.
        **rules: The arguments as the user gave them; what is no mapping is passed over.

    Raises:
        TensorNotFoundError: A mapping names a tensor that is not there.
        TypeError: A pattern is no text.
    """
    for argument, rule in rules.items():
        earlier: list[str] = []
        if not isinstance(rule, Mapping):
            continue
        names = core.names()
        for pattern in rule:
            if not isinstance(pattern, str):
                kind = type(pattern).__name__
                raise _make("Type", "Type", f"{argument}= has a {kind} where a name or a pattern belongs")
            taken = [pattern] if pattern in core else [n for n in names if fnmatchcase(n, pattern)]
            if not taken and is_name(pattern):
                raise unknown_name(f"{argument}=", pattern, core)
            if not taken:
                tell(f"{argument}= has the pattern {pattern!r}, which matches no name", pattern, names)
            elif all(any(fnmatchcase(name, one) for one in earlier) for name in taken):
                first = next(one for one in earlier if fnmatchcase(taken[0], one))
                tell(
                    f"{argument}= has {pattern!r} after {first!r}, which takes its names: the first match counts"
                )
            if not is_name(pattern):
                earlier.append(pattern)


def unknown_name(argument: str, name: str, core: _rustload.Checkpoint) -> BaseException:
    """The error for a name that is not there, with near ones in its note."""
    try:
        core.tensor(name)
    except TensorNotFoundError as error:
        made = _make("NotFound", error.code, f"{argument} names {name!r}, and no tensor has that name")
        made.__notes__ = list(getattr(error, "__notes__", ()))
        return made
    raise AssertionError(name)


def tell(message: str, pattern: str | None = None, names: Iterable[str] = ()) -> None:
    """Warns where the user's own code called rustload; with a pattern, of what in the names comes near to it."""
    near = near_parts(pattern, names) if pattern else ""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "rustload":
        level, frame = level + 1, frame.f_back
    message = _clipped(message, 1000)
    warnings.warn(RustloadWarning(message + (f" ({near})" if near else "")), stacklevel=level)


def near_parts(pattern: str, names: Iterable[str]) -> str:
    """What the names have that may have been meant: `"did you mean: weight"` for `"*.wieght"`; empty where nothing is."""
    there = {part for name in itertools.islice(names, _LOOKED_AT) for part in name.split(".")}
    wanted = [part for part in re.split(r"[.*?]+", pattern) if part and part not in there]
    found = [near for part in wanted for near in similar(part, there, 2)]
    return did_you_mean(found) or ""
