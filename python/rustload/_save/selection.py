"""The argument `select=`: which tensors are converted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rustload._common.patterns import is_literal, matching, no_match, patterns_of, unknown_name, warn_user

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._tensor.handle import LazyTensor


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
        self._patterns = None if select is None else patterns_of(select, "select")
        self.literal = frozenset(filter(is_literal, self._patterns or ()))
        self._unmatched = dict.fromkeys(self._patterns or ())

    def of(self, checkpoint: Checkpoint) -> Mapping[str, LazyTensor]:
        """The selected tensors of a checkpoint, in its order."""
        if self._patterns is None:
            return checkpoint
        found: set[str] = set()
        for pattern in self._patterns:
            if matched := matching(checkpoint, pattern):
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
                raise unknown_name("select", pattern, every)
        if self._patterns is not None and len(self._unmatched) == len(set(self._patterns)):
            raise no_match("select", self._patterns, every)
        for pattern in self._unmatched:
            text = f"has the pattern {pattern!r}, which matches no name"
            warn_user(text, pattern, every, argument="select")
