"""Deep copies of object trees without recursion: values of a file may be nested more deeply than `copy.deepcopy` can recurse."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Self

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

    def _fill(self, made: Any, copied: Callable[[Any], Any]) -> None:
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


def deep_copy(root: Any, memo: dict[int, Any]) -> Any:
    """As `copy.deepcopy`; the containers that object trees consist of are copied without recursion.

    Mutable containers are made empty and filled at the end. `copy.deepcopy` copies objects of other classes. `memo` is what
    `__deepcopy__` gets: the copies so far, by the id of the original.
    """

    def copied(value: Any) -> Any:
        return memo.get(id(value), value)

    def is_open(value: Any) -> bool:
        return type(value) not in _ATOMS and id(value) not in memo

    filled: list[Any] = []
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
                    items = [copied(item) for item in value]
                    same = all(one is other for one, other in zip(items, value, strict=True))
                    memo[id(value)] = value if same else type(value)(items)
            elif isinstance(value, Container) or type(value) in _MUTABLE:
                memo[id(value)] = _empty(value)
                filled.append(value)
                waiting += _held(value)
            else:
                import copy

                memo[id(value)] = copy.deepcopy(value, memo)
    for value in filled:
        _fill(value, copied(value), copied)
    return copied(root)


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


def _fill(value: Any, made: Any, copied: Callable[[Any], Any]) -> None:
    if isinstance(value, Container):
        value._fill(made, copied)
    elif isinstance(value, dict):
        made.update({copied(key): copied(item) for key, item in value.items()})
        if hasattr(value, "__dict__"):
            vars(made).update({name: copied(item) for name, item in vars(value).items()})
    elif isinstance(value, set):
        made.update(map(copied, value))
    else:
        made.extend(map(copied, value))
