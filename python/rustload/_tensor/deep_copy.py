"""Deep copies of object trees without recursion: values of a file may be nested more deeply than `copy.deepcopy` can recurse."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Self, TypeAlias

    _Copied: TypeAlias = Callable[[Any], Any]
    """Gives the copy of a value."""

_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))


class Container:
    """A stand-in that holds other values. Its deep copy is made empty and then filled, so it may contain itself."""

    __slots__ = ()

    def _empty(self) -> Self:
        """A copy without what it holds."""
        raise NotImplementedError

    def _held(self) -> Iterable[Any]:
        """The values that it holds."""
        raise NotImplementedError

    def _fill(self, made: Any, copied: _Copied) -> None:
        """Puts the copies of what it holds into `made`."""
        raise NotImplementedError

    def __copy__(self) -> Self:
        """A shallow copy."""
        made = self._empty()
        self._fill(made, lambda value: value)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A deep copy, however deeply values are nested in each other."""
        made: Self = deep_copy(self, memo)
        return made


def deep_copy(
    root: Any,
    memo: dict[int, Any],
    *,
    replace: Callable[[Any], tuple[Any, Callable[[_Copied], None]] | None] = lambda _: None,
    other: Callable[[Any], Any] | None = None,
) -> Any:
    """As `copy.deepcopy`; the containers that object trees consist of are copied without recursion.

    Mutable containers are made empty and filled at the end.

    Args:
        root: The tree.
        memo: What `__deepcopy__` gets: the copies so far, by the id of the original.
        replace: What is made in place of the copy of a mutable container, empty, and what fills it; None for a copy.
        other: Copies objects of other classes; `copy.deepcopy` does without it.
    """

    def copied(value: Any) -> Any:
        return memo.get(id(value), value)

    def is_open(value: Any) -> bool:
        return type(value) not in _ATOMS and id(value) not in memo

    filled: list[tuple[Any, Any, Callable[[_Copied], None] | None]] = []
    waiting = [root]
    while waiting:
        stack = [waiting.pop()]
        while stack:
            value = stack.pop()
            if not is_open(value):
                continue
            if type(value) in (tuple, frozenset):
                todo = [item for item in value if is_open(item)]
                if todo:
                    stack += [value, *todo]
                else:
                    items = (
                        [copied_key(item, copied) for item in value]
                        if type(value) is frozenset
                        else [*map(copied, value)]
                    )
                    same = all(one is other for one, other in zip(items, value, strict=True))
                    memo[id(value)] = value if same else type(value)(items)
            elif isinstance(value, Container) or type(value) in _MUTABLE:
                made, fill = replace(value) or (_empty(value), None)
                memo[id(value)] = made
                filled.append((value, made, fill))
                waiting += _held(value)
            elif other is not None:
                memo[id(value)] = other(value)
            else:
                import copy

                memo[id(value)] = copy.deepcopy(value, memo)
    for value, made, fill in filled:
        if fill is None:
            _fill(value, made, copied)
        else:
            fill(copied)
    return copied(root)


def copied_key(value: Any, copied: _Copied) -> Any:
    """The copy of a key, or of an item of a set; the value itself if what replaces it cannot be one, as a namespace cannot."""
    made = copied(value)
    try:
        hash(made)
    except TypeError:
        return value
    return made


_MUTABLE = frozenset((list, dict, OrderedDict, Counter, set, deque))


def _empty(value: Any) -> Any:
    if isinstance(value, Container):
        return value._empty()
    return deque(maxlen=value.maxlen) if type(value) is deque else type(value)()


def _held(value: Any) -> Iterable[Any]:
    if isinstance(value, Container):
        return value._held()
    if isinstance(value, dict):
        # A state dict has attributes, such as `_metadata`.
        return [*value.keys(), *value.values(), *getattr(value, "__dict__", {}).values()]
    return value  # type: ignore[no-any-return]


def _fill(value: Any, made: Any, copied: _Copied) -> None:
    if isinstance(value, Container):
        value._fill(made, copied)
    elif isinstance(value, dict):
        made.update({copied_key(key, copied): copied(item) for key, item in value.items()})
        if hasattr(value, "__dict__"):
            vars(made).update({name: copied(item) for name, item in vars(value).items()})
    elif isinstance(value, set):
        made.update(copied_key(item, copied) for item in value)
    else:
        made.extend(map(copied, value))
