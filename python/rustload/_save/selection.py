"""The argument `select=`: which tensors are converted; and warnings of patterns that match none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rustload._common.patterns import (
    is_literal,
    matching,
    similar_parts,
    warn_of_unused_patterns,
    warn_user,
)
from rustload._common.similar import did_you_mean, similar
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._tensor.handle import LazyTensor

__all__ = ["Selection", "warn_of_unused_rules"]


class Selection:
    """Names and patterns, and which of them matched in any checkpoint.

    Attributes:
        literal: The names.
    """

    def __init__(self, select: str | Iterable[str] | None) -> None:
        """Keeps the argument; None selects all tensors.

        Raises:
            TypeError: It is neither a str nor an iterable of them.
        """
        given = [select] if isinstance(select, str) else select
        self._patterns: list[str] | None = None if given is None else list(given)
        for pattern in self._patterns or ():
            if not isinstance(pattern, str):
                raise _error("Type", f"select= is a name or pattern, or several, not {pattern!r}")
        self.literal = frozenset(filter(is_literal, self._patterns or ()))
        self._unmatched = dict.fromkeys(self._patterns or ())

    def of(self, checkpoint: Checkpoint) -> Mapping[str, LazyTensor]:
        """The selected tensors of a checkpoint, in its order."""
        if self._patterns is None:
            return checkpoint
        found: set[str] = set()
        for pattern in self._patterns:
            matched = [pattern] if pattern in checkpoint else []
            if not is_literal(pattern):
                matched = matching(checkpoint, pattern)
            if matched:
                self._unmatched.pop(pattern, None)
                found.update(matched)
        return {name: checkpoint[name] for name in checkpoint if name in found}

    def check(self, names: list[list[str]]) -> None:
        """Warns of patterns that matched nothing in any of the checkpoints, which have these names.

        Raises:
            TensorNotFoundError: A name is in none of them, or no tensor is selected at all.
        """
        every = [name for some in names for name in some]
        for pattern in self._unmatched:
            if is_literal(pattern):
                text = f"select= names {pattern!r}, and no tensor has that name"
                raise _error("NotFound", text, did_you_mean(similar(pattern, every)) or _LIST)
        if self._patterns is not None and len(self._unmatched) == len(set(self._patterns)):
            patterns = ", ".join(map(repr, self._patterns[:4])) or "nothing"
            near = similar_parts(self._patterns[0], every) if self._patterns else ""
            raise _error("NotFound", f"select= has {patterns}, which matches no name", near or _LIST)
        for pattern in self._unmatched:
            warn_user(f"select= has the pattern {pattern!r}, which matches no name", pattern, every)


_LIST = "rustload info lists the names"


class _Names:
    """The new names of tensors, as `warn_of_unused_patterns` reads them of a checkpoint."""

    def __init__(self, names: list[str]) -> None:
        self._names = names
        self._set = frozenset(names)

    def names(self) -> list[str]:
        return self._names

    def __contains__(self, name: object) -> bool:
        return name in self._set

    def tensor(self, name: str) -> Any:
        raise _error("NotFound", name, did_you_mean(similar(name, self._names)) or _LIST)


def warn_of_unused_rules(tensors: list[Mapping[str, Any]], **rules: Any) -> None:
    """Warns of patterns in `dtype=` and `transpose=` that match none of the new names.

    Raises:
        TensorNotFoundError: A mapping has a name that no tensor has.
    """
    names = _Names([name for some in tensors for name in some])
    warn_of_unused_patterns(names, **rules)  # type: ignore[arg-type]  # the methods that are called are there
