"""`concat` and `stack`: join lazy tensors into one, which is read into one destination."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from rustload import _rustload
from rustload._common.sizes import format_bytes
from rustload._tensor.handle import LazyTensor
from rustload.errors import _error

if TYPE_CHECKING:
    from rustload._frameworks.adapters import HandleContext


class JoinedTensor(LazyTensor):
    """Several tensors of one dtype, joined by `concat` or `stack`.

    It has the interface of `LazyTensor`. Materializing reads every part directly into the result, without a temporary copy of a
    part. The result is never a view, unless indexing has left only one part. A join of joined tensors has the parts of all.

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
    name = ""
    """Empty: a joined tensor has no name of its own."""
    path = ()
    """Empty: it is not in an object tree."""
    class_name = None
    """None: the result is a plain tensor, whatever the classes of the parts."""
    quantization = None
    """None: quantized tensors cannot be joined."""
    scheme = None
    """None: it is of the parts."""
    part = None
    """None: where it lies in a larger tensor is known of its parts only."""

    def __new__(cls, *_: Any) -> Self:
        """Not for users: `rustload.concat` and `rustload.stack` make them.

        Raises:
            TypeError: Always.
        """
        raise TypeError("tensors are joined by rustload.concat and rustload.stack")

    @property
    def parts(self) -> list[LazyTensor]:
        """The joined tensors, in order; after indexing, the parts that are left of them."""
        return [LazyTensor._wrap(part, self._context) for part in self._core.parts()]

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides of the result in C order, in elements; the elements in the file are not in one strided block."""
        strides, step = [], 1
        for size in reversed(self.shape):
            strides.append(step)
            step *= max(size, 1)
        return tuple(reversed(strides))

    def numel(self) -> int:
        """The number of elements, as in torch."""
        return math.prod(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether there is only one part, and it is contiguous."""
        parts = self._core.parts()
        return len(parts) == 1 and parts[0].is_contiguous

    @property
    def is_parameter(self) -> bool:
        """Whether all parts are parameters."""
        return all(part.is_parameter for part in self._core.parts())

    @property
    def requires_grad(self) -> bool:
        """Whether any part has `requires_grad` set."""
        return any(part.requires_grad for part in self._core.parts())

    @property
    def is_meta(self) -> bool:
        """Whether any part is a meta tensor."""
        return any(part.is_meta for part in self._core.parts())

    @property
    def attributes(self) -> dict[str, Any]:
        """Empty: attributes belong to the parts."""
        return {}

    def _warn_of_codes(self) -> None:
        self.parts[0]._warn_of_codes()  # all have the same dtype

    def _place(self) -> tuple[Any, ...]:
        offsets = tuple(map(tuple, self._core.offsets()))
        return self.shape, offsets, tuple(part._place() for part in self.parts)

    def _files(self) -> list[_rustload.Checkpoint]:
        return [part.checkpoint for part in self._core.parts()]

    def _shown_parts(self) -> list[tuple[str, str, str]]:
        return [(part.name, str(list(part.shape)), format_bytes(part.nbytes)) for part in self.parts]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles its parts, as `LazyTensor` does.

        Raises:
            TypeError: As for `LazyTensor`.
        """
        return restored_join, (self.parts, self._core.offsets(), self.shape)

    def __repr__(self) -> str:
        """The number of parts, dtype, shape and size; reads nothing."""
        count = len(self._core.parts())
        return f"<JoinedTensor of {count} {self.dtype} {list(self.shape)} {format_bytes(self.nbytes)}>"


def restored_join(parts: list[LazyTensor], offsets: list[list[int]], shape: tuple[int, ...]) -> JoinedTensor:
    """The joined tensor that was pickled, of parts at these offsets along each dimension; called by unpickling.

    Raises:
        ValueError: The parts are not a tensor of that shape.
    """
    cores, context = _cores(parts)
    joined = _rustload.restored_join(cores, offsets, shape)  # type: ignore[arg-type]  # not joined themselves
    return JoinedTensor._wrap(joined, context)  # type: ignore[arg-type]  # a Joined has a tensor's methods


def concat(tensors: Iterable[LazyTensor], dim: int = 0) -> JoinedTensor:
    """Concatenates lazy tensors along `dim`, as `torch.cat` does; returns a lazy tensor and reads nothing.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> rustload.concat(ckpt.values(), dim=1).shape
    (8, 32)

    Args:
        tensors: Lazy tensors of one dtype, with equal shapes except along `dim`. They may be parts of tensors or joined ones, and
            come from several checkpoints.
        dim: The dimension to join along; a negative number counts from the end.

    Raises:
        ValueError: The list is empty, or dtypes or shapes do not fit; the message names two tensors that do not.
        UnsupportedError: A tensor is quantized; each has its own scales.
        IndexError: `dim` is out of bounds.
        TypeError: An element is not a lazy tensor.
    """
    cores, context = _cores(tensors)
    return JoinedTensor._wrap(_rustload.concat(cores, operator.index(dim)), context)  # type: ignore[arg-type]  # as above


def stack(tensors: Iterable[LazyTensor], dim: int = 0) -> JoinedTensor:
    """Stacks lazy tensors along a new dimension `dim`, as `torch.stack` does; returns a lazy tensor and reads nothing.

    >>> import rustload
    >>> ckpt = rustload.open("model.pt")
    >>> rustload.stack(ckpt.values()).shape
    (4, 8, 8)

    The weights of experts, each fused of two:

    >>> gate, up = ckpt["q.weight"], ckpt["k.weight"]
    >>> rustload.concat([rustload.stack([gate, gate]), rustload.stack([up, up])], dim=1).shape
    (2, 16, 8)

    Args:
        tensors: Lazy tensors of one dtype and shape. They may be parts of tensors or joined ones, and come from several
            checkpoints.
        dim: The index of the new dimension; a negative number counts from the end.

    Raises:
        ValueError: The list is empty, or dtypes or shapes differ; the message names two tensors that differ.
        UnsupportedError: A tensor is quantized; each has its own scales.
        IndexError: `dim` is out of bounds.
        TypeError: An element is not a lazy tensor.
    """
    cores, context = _cores(tensors)
    return JoinedTensor._wrap(_rustload.stack(cores, operator.index(dim)), context)  # type: ignore[arg-type]  # as above


def _cores(tensors: Any) -> tuple[list[_rustload.Tensor | _rustload.Joined], HandleContext]:
    given = list(tensors) if isinstance(tensors, Iterable) and not isinstance(tensors, LazyTensor) else None
    if given is None:
        raise _error("Type", "concat and stack take a list of lazy tensors")
    for one in given:
        if not isinstance(one, LazyTensor):
            raise _error("Type", f"the list holds a {type(one).__name__}, not a lazy tensor")
    if not given:
        raise _error("Value", "there is nothing to join: the list of tensors is empty")
    return [one._core for one in given], given[0]._context
