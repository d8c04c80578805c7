"""What a file says of a tensor: known without reading its elements."""

from __future__ import annotations

from rustload import _rustload
from rustload._common.sizes import same_tensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from rustload._common.dtypes import Size
    from rustload._tensor.part import Part
    from rustload._tensor.scheme import Scheme


class Metadata(_rustload.Handle):
    """The properties of a lazy tensor that need neither its elements nor other tensors."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The tensor's name in its checkpoint; empty for a tensor that is only reachable through `Checkpoint.objects`."""
        return self._core.name

    @property
    def path(self) -> tuple[Any, ...]:
        """The keys and indices that lead to it from the root of `Checkpoint.objects`."""
        return self._core.path

    @property
    def strides(self) -> tuple[int, ...]:
        """The strides in the file, in elements."""
        return self._core.strides

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._core.shape)

    def dim(self) -> int:
        """The number of dimensions, as in torch."""
        return len(self._core.shape)

    @property
    def size(self) -> Size:
        """The number of elements, as in NumPy; called as in torch, `size()` is the shape and `size(dim)` one of it."""
        from rustload._common.dtypes import Size

        return Size._of(self.numel(), self.shape)

    def numel(self) -> int:
        """The number of elements, as in torch."""
        return self._core.size

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements are C-contiguous in the file."""
        return self._core.is_contiguous

    @property
    def is_parameter(self) -> bool:
        """Whether the file has it as a `torch.nn.Parameter`."""
        return self._core.is_parameter

    @property
    def requires_grad(self) -> bool:
        """Whether the file has `requires_grad` set."""
        return self._core.requires_grad

    @property
    def is_meta(self) -> bool:
        """Whether it was saved on the meta device: a shape without elements, which only framework "torch" can make."""
        return self._core.is_meta

    @property
    def class_name(self) -> str | None:
        """The subclass of `torch.Tensor` that the file has it as, as `module.name`; None for plain tensors and parameters."""
        return self._core.class_name

    @property
    def scheme(self) -> Scheme | None:
        """The scheme that it is decoded from; None for what is as it is stored. See `rustload.open(dequantize=True)`."""
        from rustload._tensor.scheme import Scheme

        found = self._core.scheme
        return None if found is None else Scheme(found[0], found[1], tuple(found[2]), found[3])

    def _is_scaled(self) -> bool:
        """Whether `dequantize=True` makes other numbers of the elements, or fails because they are codes."""
        return self._core.is_quantized

    def _warn_of_codes(self) -> None:
        """Warns where a cast makes numbers of codes that have scales."""
        if not self._core.casts_without_scales:
            return
        from rustload._common.patterns import warn_user

        text = f"casts codes of the quantized weight {self.name!r}, without its scales"
        warn_user(f"{text}: open the checkpoint with dequantize=True for its numbers", argument="dtype")

    @property
    def _is_kept_as_stored(self) -> bool:
        """Whether a dtype for all tensors leaves it, as it is the codes of a quantized weight or belongs to some."""
        return self._core.is_kept_as_stored

    @property
    def part(self) -> Part | None:
        """Which part of a larger tensor the file has; None for a whole tensor, and for a slice of any.

        A process of a distributed program saves its part of a DTensor or ShardedTensor. Its file alone gives that part; the
        files of all processes, opened together, give the whole tensor.
        """
        found = self._core.part
        if found is None:
            return None
        from rustload._tensor.part import Part

        return Part(*found)

    def __copy__(self) -> Self:
        """The handle itself: it cannot be changed."""
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        """The handle itself: it cannot be changed."""
        return self

    def _place(self) -> tuple[Any, ...]:
        """Which part of its checkpoint it is."""
        # The numbers of quantized ones are also those of their scales.
        return same_tensor(self._core), self._core.id if self._is_scaled() else None

    def _is_same(self, other: Any) -> bool:
        if type(self) is not type(other) or self._place() != other._place():
            return False
        from rustload._tensor.pickling import are_same_files

        pairs = zip(self._files(), other._files(), strict=True)
        return all(are_same_files(one, two) for one, two in pairs)

    def _files(self) -> list[_rustload.Checkpoint]:
        """The checkpoints of what it joins."""
        return [self._core.checkpoint]

    def __hash__(self) -> int:
        """Equal for the same part of the same file, whatever its name."""
        return hash(self._place())
