"""`concat` and `stack`: several lazy tensors seen as one, and read into one destination."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from rustload import _rustload
from rustload._common.sizes import format_bytes
from rustload._tensor.handle import LazyTensor
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload._frameworks.adapters import Shared

__all__ = ["JoinedTensor", "concat", "stack"]


class JoinedTensor(LazyTensor):
    """Several tensors of one dtype, end to end along one dimension; `concat` and `stack` make it.

    It is used as a `LazyTensor` is. Materializing reads every part straight to its place in the result: there is no copy of a
    part by itself. It is never a view, unless indexing has left one part.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> qkv = rustload.concat([ckpt["q.weight"], ckpt["k.weight"], ckpt["v.weight"]])
    >>> qkv
    <JoinedTensor of 3 float32 [24, 8] 768 B>
    >>> qkv[4:12, ::2].materialize(dtype="bfloat16", transpose=True).shape
    torch.Size([4, 8])
    """

    __slots__ = ()

    _core: _rustload.Joined  # type: ignore[assignment]  # with all of a tensor's methods that are used here

    def __init__(self) -> None:
        """Not for users: `rustload.concat` and `rustload.stack` make them.

        Raises:
            TypeError: Always.
        """
        raise TypeError("tensors are joined by rustload.concat and rustload.stack")

    @property
    def parts(self) -> list[LazyTensor]:
        """The tensors that it is made of, in order; after indexing, their parts that are left."""
        return [LazyTensor._wrap(part, self._shared) for part in self._core.parts()]

    @property
    def name(self) -> str:
        """Empty: a joined tensor has no name of its own."""
        return ""

    @property
    def path(self) -> tuple[Any, ...]:
        """Empty: it is at no place in a checkpoint."""
        return ()

    @property
    def strides(self) -> tuple[int, ...]:
        """Those of the result in C order: its elements lie in several places of a file."""
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= max(size, 1)
        return tuple(reversed(strides))

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for count in self.shape:
            size *= count
        return size

    @property
    def is_contiguous(self) -> bool:
        """Whether it is one part, and that is contiguous."""
        parts = self._core.parts()
        return len(parts) == 1 and parts[0].is_contiguous

    @property
    def is_parameter(self) -> bool:
        """Whether all parts are parameters."""
        return all(part.is_parameter for part in self._core.parts())

    @property
    def requires_grad(self) -> bool:
        """Whether any part wants gradients."""
        return any(part.requires_grad for part in self._core.parts())

    @property
    def is_meta(self) -> bool:
        """Whether a part has no elements in its file."""
        return any(part.is_meta for part in self._core.parts())

    @property
    def class_name(self) -> None:
        """None: whatever its parts were, it is a plain tensor."""

    @property
    def attributes(self) -> dict[str, Any]:
        """Empty: what was set on its parts is theirs."""
        return {}

    @property
    def quantization(self) -> None:
        """None: quantized tensors are not joined."""

    def __repr__(self) -> str:
        """The number of parts, dtype, shape and size; reads nothing."""
        count = len(self._core.parts())
        return f"<JoinedTensor of {count} {self.dtype} {list(self.shape)} {format_bytes(self.nbytes)}>"


def concat(tensors: Iterable[LazyTensor], dim: int = 0) -> JoinedTensor:
    """The tensors one after the other along `dim`, as a lazy tensor; reads nothing.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> rustload.concat(ckpt.values(), dim=1).shape
    (8, 32)

    Args:
        tensors: Lazy tensors of one dtype, of equal shape but along `dim`; parts of tensors, and of several checkpoints, too.
        dim: The dimension to join along; negative counts from the end.

    Raises:
        ValueError: There are none, or their dtypes or shapes do not fit; the message names two that do not.
        UnsupportedError: One is quantized: each has scales of its own.
        IndexError: `dim` is out of bounds.
        TypeError: Something else than lazy tensors.
    """
    cores, shared = _cores(tensors)
    return JoinedTensor._wrap(_rustload.concat(cores, operator.index(dim)), shared)  # type: ignore[arg-type]  # as above


def stack(tensors: Iterable[LazyTensor], dim: int = 0) -> JoinedTensor:
    """The tensors side by side along a new dimension `dim`, as a lazy tensor; reads nothing.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> rustload.stack(ckpt.values()).shape
    (4, 8, 8)

    Args:
        tensors: Lazy tensors of one dtype and shape; parts of tensors, and of several checkpoints, too.
        dim: Where the new dimension goes; negative counts from the end.

    Raises:
        ValueError: There are none, or their dtypes or shapes differ; the message names two that do.
        UnsupportedError: One is quantized: each has scales of its own.
        IndexError: `dim` is out of bounds.
        TypeError: Something else than lazy tensors.
    """
    cores, shared = _cores(tensors)
    return JoinedTensor._wrap(_rustload.stack(cores, operator.index(dim)), shared)  # type: ignore[arg-type]  # as above


def _cores(tensors: Any) -> tuple[list[_rustload.Tensor], Shared]:
    given = list(tensors) if isinstance(tensors, Iterable) and not isinstance(tensors, LazyTensor) else None
    if given is None:
        raise _make("Type", "Type", "a list of lazy tensors is wanted")
    for one in given:
        if not isinstance(one, LazyTensor) or isinstance(one, JoinedTensor):
            joined = isinstance(one, JoinedTensor)
            note = "join all tensors at once: a joined one is no part of another" if joined else None
            raise _make("Type", "Type", f"the list holds a {type(one).__name__}, not a lazy tensor", note)
    if not given:
        raise _make("Value", "Value", "there is nothing to join: the list of tensors is empty")
    return [one._core for one in given], given[0]._shared
