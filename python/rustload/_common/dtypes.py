"""`DType`: the name of a dtype that is equal to the dtypes of frameworks, too."""

from __future__ import annotations

import sys

from rustload import _rustload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self


_LIBRARIES = frozenset({"torch", "numpy", "ml_dtypes", "jax", "jaxlib", "cupy"})


class DType(str):
    """A dtype's name, as torch spells it: a `str` that is also equal to a `torch.dtype`, a NumPy or a JAX dtype of that kind.

    >>> import numpy, rustload, torch
    >>> found = rustload.open("model.pt")["q.weight"].dtype
    >>> found, found == "float32", found == torch.float32, found == numpy.float32, found == torch.bfloat16
    ('float32', True, True, True, False)

    Its hash is that of the text, so it finds entries of sets and dicts by a str, and not by a `torch.dtype`: for these, use
    `getattr(torch, t.dtype)`. JSON has it as the text, and unpickling gives a plain str; `torch.load(weights_only=True)` accepts
    only `str(t.dtype)`. A NumPy dtype in the other byte order is not equal.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        """Whether `other` is the same text, or a framework's dtype of that name; imports nothing."""
        if isinstance(other, str):
            return str.__eq__(self, other)
        return str.__eq__(self, _name_of(other))

    def __ne__(self, other: object) -> bool:
        """The opposite of `==`."""
        return not self == other

    __hash__ = str.__hash__

    def __copy__(self) -> Self:
        """The dtype itself."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """The dtype itself."""
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Pickled as a plain str, which needs no rustload to be read."""
        return str, (str(self),)


def _name_of(dtype: object) -> str:
    """The name of a framework's dtype, as torch spells it; empty for anything else."""
    owner = dtype if isinstance(dtype, type) else type(dtype)
    library = owner.__module__.partition(".")[0]
    if library not in _LIBRARIES:
        return ""
    if library == "torch":
        name = str(dtype).removeprefix("torch.") if type(dtype).__name__ == "dtype" else ""
    else:
        # It was imported with the dtype. It knows the names of its aliases, such as `longlong`.
        numpy = sys.modules.get("numpy")
        try:
            found = numpy.dtype(dtype)  # type: ignore[union-attr]  # None: as below
        except (AttributeError, TypeError, ValueError):
            return ""
        name = found.name if found.isnative else ""
    try:
        return _rustload.dtype_name(name)
    except ValueError:
        return ""


DTYPES = {name: DType(name) for name, *_ in _rustload.DTYPES}
"""Every dtype by its name; the extension gives them as dtypes of lazy tensors."""


class Size(int):
    """A number of elements, as NumPy has it, that torch's programs can call: `t.size()` is the shape, `t.size(0)` one of it.

    >>> import rustload
    >>> t = rustload.open("model.pt")["q.weight"]
    >>> t.size, t.size(), t.size(-1)
    (64, (8, 8), 8)
    """

    _shape: tuple[int, ...]

    @classmethod
    def _of(cls, size: int, shape: tuple[int, ...]) -> Self:
        made = cls(size)
        made._shape = shape
        return made

    def __call__(self, dim: int | None = None) -> Any:
        """The shape, or the elements along one dimension.

        Raises:
            IndexError: There is no such dimension.
        """
        return self._shape if dim is None else self._shape[dim]

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """Pickled as a plain int."""
        return int, (int(self),)
