"""Tensor names and glob patterns in arguments: matching, and the error or warning if nothing matches.

One language for all arguments: `*`, `?` and `[ab]` as in `fnmatch`, and braces around alternatives: `{q,k}` and the ranges of
whole numbers that `info` prints, `{0..7}`, `{0..30 step 2}`, `{0, 3, 5..9}`.

One rule for all arguments: a name that does not exist is a `TensorNotFoundError`, and a glob pattern without an effect is a
`RustloadWarning`. Both list similar names. A string is a name if it has no `*`, `?`, `[` or `{`, or if a tensor has exactly that
name.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload._common.similar import did_you_mean, similar
from rustload.errors import RustloadWarning, _clipped, _error, _printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

Key: TypeAlias = str | tuple[Any, ...] | None
Strip: TypeAlias = str | Iterable[str] | None
Rename: TypeAlias = Mapping[Any, str | None] | Iterable[tuple[str, str]] | Callable[[str], str | None] | None

NAMES_SEARCHED_MAX = 20_000
"""The most names to search for what a user may have meant."""
_PARTS_SEARCHED_MAX = 200_000
"""The most parts of these names."""


_DIGITS_MAX = 18
"""The most digits of a number of a range."""
_STEPS_MAX = 1024
"""The most numbers of a range with a step; other ranges have no limit, because their numbers are not listed."""
_TOKEN = re.compile(r"\[!?\]?[^\]]*\]|[{},]")
_BETWEEN_PARTS = re.compile(r"(?:\[[^\]]*\]?|[.*?{},\s])+")
_RANGE = re.compile(r"([0-9]+)\.\.([0-9]+)(?: step ([0-9]+))?")


def patterns_of(given: Any, argument: str) -> list[str]:
    """The names and patterns of an argument that takes one or several.

    Raises:
        TypeError: It is neither a str nor an iterable of them.
    """
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    patterns = list(several)
    for one in patterns:
        if not isinstance(one, str):
            raise _error("Type", f"is a name or pattern, or several, not {one!r}", argument=argument)
    return patterns


def matches(name: str, pattern: str) -> bool:
    """Whether a glob pattern matches a name; a name always matches itself, whatever characters it has.

    Raises:
        ValueError: The braces of the pattern are wrong.
    """
    return name == pattern or _compiled(pattern).match(name) is not None


def matching(names: Collection[str], pattern: str) -> list[str]:
    """The names that a glob pattern matches; only the name that it is, if there is one.

    Raises:
        ValueError: The braces of the pattern are wrong.
    """
    if pattern in names or is_literal(pattern):
        return [str.__str__(pattern)] if pattern in names else []
    match = _compiled(pattern).match
    return [name for name in names if match(name)]


def is_literal(pattern: str) -> bool:
    """Whether the string has no glob characters, so that it can only be a name."""
    return not any(char in pattern for char in "*?[{")


def _compile(pattern: str) -> re.Pattern[str]:
    """The regular expression of a glob pattern, which has to match a whole name.

    Raises:
        TypeError: The pattern is not a str.
        ValueError: The braces of the pattern are wrong.
    """
    given: object = pattern
    if not isinstance(given, str):
        raise _error("Type", f"a pattern is a str, not {given!r}")
    parts: list[str] = []
    # Where the alternatives of the open braces begin in the pattern.
    begins: list[int] = []
    start = 0
    for token in _TOKEN.finditer(pattern):
        char = token[0]
        if char[0] == "[" or (char != "{" and not begins):
            continue
        text = pattern[start : token.start()]
        if char == "{":
            begins.append(token.end())
            parts += [_glob(text), "(?:"]
        else:
            # Braces inside of an alternative were translated already.
            whole = pattern[begins[-1] : token.start()].strip() if begins[-1] == start else ""
            if whole == "..":
                why = "stands for numbers that were left out: write a range, such as 9..40"
                raise _error("Value", f"'..' in the pattern {pattern!r} {why}")
            number = _RANGE.fullmatch(whole)
            parts += [_range(pattern, number) if number else _glob(text), "|" if char == "," else ")"]
            begins[-1] = token.end()
            if char == "}":
                begins.pop()
        start = token.end()
        if char == ",":
            start += len(pattern) - start - len(pattern[start:].lstrip(" "))
            begins[-1] = start
    if begins:
        what = f"the pattern {pattern!r} has a '{{' without its '}}'"
        raise _error("Value", what, "write [{] for the character itself")
    return re.compile("".join(parts) + _glob(pattern[start:]) + r"\Z")


_compiled = functools.lru_cache(maxsize=1024)(_compile)


def _glob(text: str) -> str:
    """The regular expression of a pattern without braces, as a group."""
    return translate(text)[:-2] if text else ""


def _range(pattern: str, found: re.Match[str]) -> str:
    """The regular expression of a range of numbers: of its digits, not of a list of all numbers.

    Raises:
        ValueError: It is empty, or has too many numbers or digits.
    """
    first, last, step = found[1], found[2], int((found[3] or "1")[:_DIGITS_MAX])
    low, high = int(first[:_DIGITS_MAX]), int(last[:_DIGITS_MAX])
    why = None
    if max(map(len, (first, last, found[3] or ""))) > _DIGITS_MAX:
        why = f"has more than {_DIGITS_MAX} digits"
    elif low > high or step == 0:
        why = "has no number"
    elif step > 1 and (high - low) // step >= _STEPS_MAX:
        why = f"has more than {_STEPS_MAX:,} numbers, which is the most with a step"
    if why:
        raise _error("Value", f"the range {found[0]!r} of the pattern {pattern!r} {why}")
    # Zeros in front are digits of all numbers: 08..12.
    is_padded = any(len(end) > 1 and end[0] == "0" for end in (first, last))
    width = max(len(first), len(last)) if is_padded else 0
    if step > 1:
        return f"(?:{'|'.join(str(number).zfill(width) for number in range(low, high + 1, step))})"
    if is_padded:
        return f"(?:{'|'.join(_of_width(low, high, width))})"
    widths = range(len(str(low)), len(str(high)) + 1)
    spans = (
        (max(low, 10 ** (digits - 1) if digits > 1 else 0), min(high, 10**digits - 1)) for digits in widths
    )
    parts = [_of_width(start, end, digits) for digits, (start, end) in zip(widths, spans, strict=True)]
    return f"(?:{'|'.join(itertools.chain(*parts))})"


def _of_width(low: int, high: int, width: int) -> Iterator[str]:
    """Regular expressions of the numbers from `low` to `high`, each of `width` digits: some tens at most."""
    while low <= high:
        free = 0  # the last digits, which are any
        while free + 1 < width and low % 10 ** (free + 1) == 0 and low + 10 ** (free + 1) - 1 <= high:
            free += 1
        head, digit = divmod(low // 10**free, 10)
        last = min(digit + (high - low + 1) // 10**free - 1, 9)
        lead = str(head).zfill(width - free - 1) if width > free + 1 else ""
        yield f"{lead}[{digit}-{last}]" + (f"[0-9]{{{free}}}" if free else "")
        low = (head * 10 + last + 1) * 10**free


def warn_of_unused_patterns(all_names: Callable[[], Iterable[str]], **rules: Any) -> None:
    """Warns of patterns in `dtype=` and `transpose=` without an effect: no name matches, or earlier patterns match all of them.

    Args:
        all_names: The names of the checkpoint. All are tried, so that one mapping also works for a subset of the tensors.
        **rules: The arguments as the user gave them; values that are not mappings are skipped.

    Raises:
        TensorNotFoundError: A mapping has the name of a tensor that does not exist.
        TypeError: A pattern is not a str.
        ValueError: The braces of a pattern are wrong.
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
            matched = matching(names, pattern)
            if is_literal(pattern) and not matched:
                raise unknown_name(argument, pattern, names)
            if not matched:
                warn_user(
                    f"has the pattern {pattern!r}, which matches no name", pattern, names, argument=argument
                )
            elif all(any(matches(name, one) for one in earlier) for name in matched):
                first = next(one for one in earlier if matches(matched[0], one))
                text = f"has {pattern!r} after {first!r}, which takes its names: the first match counts"
                warn_user(text, argument=argument)
            if not is_literal(pattern):
                earlier.append(pattern)


def refuse_rules_without_effect(names: Collection[str], **rules: Any) -> None:
    """Refuses mappings in `dtype=` and `transpose=` without a pattern that matches any name: the user asked for nothing else.

    Raises:
        TensorNotFoundError: A mapping has patterns, and none matches.
    """
    for argument, rule in rules.items():
        patterns = list(rule) if isinstance(rule, Mapping) and names else []
        # Names that no tensor has are an error of their own.
        if any(not isinstance(one, str) or is_literal(one) or matching(names, one) for one in patterns):
            continue
        if patterns:
            raise no_match(argument, patterns, names)


def unknown_name(argument: str | None, name: str, names: Iterable[str], of: str = "tensor") -> BaseException:
    """The error for a name that does not exist, with similar ones in its note; `argument` is the one that has it, if any."""
    text = f"names {name!r}, and no {of} has that name" if argument else f"no {of} is named {name!r}"
    return _error("NotFound", text, did_you_mean(similar(name, names)), argument=argument)


def warn_user(
    message: str, pattern: str | None = None, names: Iterable[str] = (), *, argument: str | None = None
) -> None:
    """Emits a `RustloadWarning` at the user's call; for a pattern without a match, adds similar parts of existing names."""
    near = similar_parts(pattern, names) if pattern else ""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "rustload":
        level, frame = level + 1, frame.f_back
    message = _printable(_clipped(f"{argument}= {message}" if argument else message, 1000))
    warning = RustloadWarning(message + (f" ({near})" if near else ""))
    warning.argument = argument
    warnings.warn(warning, stacklevel=level)


def no_match(argument: str, patterns: Sequence[str], names: Iterable[str]) -> BaseException:
    """The error for patterns that match no name at all."""
    listed = ", ".join(map(repr, patterns[:4])) or "nothing"
    near = similar_parts(patterns[0], names) if patterns else ""
    return _error("NotFound", f"has {listed}, which matches no name", near, argument=argument)


def similar_parts(pattern: str, names: Iterable[str]) -> str:
    """Similar parts of names for a pattern without a match: `"did you mean: *.weight"` for `"*.wieght"`; or an empty str.

    They are in their places in the pattern if a name matches that, and listed otherwise.
    """
    searched = list(itertools.islice(names, NAMES_SEARCHED_MAX))
    parts = itertools.islice((part for name in searched for part in name.split(".")), _PARTS_SEARCHED_MAX)
    existing = set(parts)
    words = (part for part in _BETWEEN_PARTS.split(pattern) if part and not part.isdigit())
    near = {part: similar(part, existing, 2) for part in words if part not in existing}
    pieces = re.split(f"({_BETWEEN_PARTS.pattern})", pattern)
    whole = "".join(near[piece][0] if near.get(piece) else piece for piece in pieces)
    if (
        whole != pattern
        and all(map(is_literal, itertools.chain(*near.values())))
        and matching(searched, whole)
    ):
        return did_you_mean([whole]) or ""
    return did_you_mean(itertools.chain(*near.values())) or ""
