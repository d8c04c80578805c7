"""The memory that tensors take once they are read as one dtype, and whether it fits here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from rustload import _rustload
from rustload._common.memory import memory
from rustload._common.request import Request
from rustload._common.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rustload._tensor.handle import LazyTensor


class Needed(TypedDict):
    """The memory of all tensors that are counted, in memory of their own.

    Attributes:
        dtype: The dtype of tensors of floats; the others keep theirs.
        needed: The most bytes in use while they are made and kept.
        usable: The bytes that a process here may still take, as in `rustload doctor`; None if the system does not say.
        bound: What bounds these.
        fits: Whether they are enough; None if the system does not say.
    """

    dtype: str
    needed: int
    usable: int | None
    bound: Literal["cgroup", "RLIMIT_AS", "RLIMIT_DATA", "machine"] | None
    fits: bool | None


def needed(tensors: Iterable[LazyTensor], dtype: str) -> Needed:
    """The memory of these tensors as `dtype`; reads none."""
    rules, request = Rules(dtype=dtype), Request(copy=True)
    pairs = [(one._core, request.but(dtype=rules.dtype(one))) for one in tensors if not one._core.is_meta]
    nbytes = _rustload.needed_memory(pairs, share_storages=False)
    found = memory()
    fits = None if found.usable is None else nbytes <= found.usable
    return {"dtype": dtype, "needed": nbytes, "usable": found.usable, "bound": found.bound, "fits": fits}
