"""`OpaqueClass`: a class of a checkpoint whose values are kept as inert data."""

from __future__ import annotations

from typing import NamedTuple

from rustload._common.json_values import Positive


class OpaqueClass(NamedTuple):
    """A class whose values are kept as inert data.

    Attributes:
        class_name: `module.name`, as the pickle spells it; for an array of a NumPy file, the class of its elements.
        count: The number of values.
        at: The dotted paths of the first few.
    """

    class_name: str
    count: Positive  # type: ignore[assignment]  # hides tuple.count
    at: list[str]
