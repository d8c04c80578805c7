"""`Limits`: upper bounds on the memory and work that a file can cause."""

from __future__ import annotations

from rustload import _rustload

__all__ = ["Limits"]

_DEFAULTS: dict[str, int] = {name: default for name, default, _ in _rustload.LIMITS}


class Limits:
    """Upper bounds on the memory and work that a file can cause; the defaults fit real checkpoints.

    >>> import rustload
    >>> rustload.Limits(tensors=10_000_000).tensors
    10000000
    """

    __slots__ = ("_values",)

    def __init__(self, **limits: int) -> None:
        """Sets some limits and leaves the others at their defaults.

        Args:
            **limits: Name and value of each limit to set; `Limits.describe()` lists the names.

        Raises:
            ValueError: No limit has that name, or the value is negative.
        """
        for name, value in limits.items():
            if name not in _DEFAULTS:
                raise ValueError(f"no limit is named {name!r}; there are: {', '.join(_DEFAULTS)}")
            if value < 0:
                raise ValueError(f"limit {name} is negative")
        self._values = {**_DEFAULTS, **limits}

    def __getattr__(self, name: str) -> int:
        """The limit of that name."""
        if name in _DEFAULTS:
            return self._values[name]
        raise AttributeError(name)

    def __repr__(self) -> str:
        """The limits that differ from their defaults."""
        changed = {name: value for name, value in self._values.items() if value != _DEFAULTS[name]}
        return f"Limits({', '.join(f'{name}={value}' for name, value in changed.items())})"

    @staticmethod
    def describe() -> dict[str, str]:
        """The description of each limit, by name."""
        return {name: what for name, _, what in _rustload.LIMITS}

    def _to_core(self) -> dict[str, int]:
        return self._values
