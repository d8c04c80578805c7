"""`DTYPE_ROWS`: the core's table of dtypes."""

from __future__ import annotations

from typing import NamedTuple

from rustload import _rustload


class DTypeRow(NamedTuple):
    """The columns of the core's table (`src/dtype.rs`) for one dtype.

    Attributes:
        name: The name in torch.
        itemsize: Bytes per element.
        kind: `"Bool"`, `"Int"`, `"Float"`, `"Complex"`, or `"Packed"`.
        code: The code in a safetensors header; None where the format has none.
        rank: The code's number in the enumeration of the safetensors package, which sorts tensors by it, the last first.
        numpy_code: The type code in NumPy; None where NumPy has no such dtype.
    """

    name: str
    itemsize: int
    kind: str
    code: str | None
    rank: int | None
    numpy_code: str | None


DTYPE_ROWS = {row[0]: DTypeRow(*row) for row in _rustload.DTYPES}
"""Every dtype by its name."""
