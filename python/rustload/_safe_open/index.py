"""Indexing of `get_slice`: as torch does, or as the safetensors package (the reference) does for other frameworks."""

from __future__ import annotations

import operator
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

from rustload.errors import _safetensor_error

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from rustload._tensor.handle import LazyTensor

Item: TypeAlias = int | slice
Key: TypeAlias = tuple[Item, ...]


def torch_part(tensor: LazyTensor, key: Any, device: torch.device | None, *, owned: bool) -> Any:
    """The result of `tensor[key]` in torch, on device `device`; reads only the part, except for advanced indexing."""
    import torch

    if device is None:
        return _host_part(tensor, key, owned=owned)
    if not _is_basic(key):
        return _host_part(tensor, key, owned=False).to(device)
    torch.empty(tensor.shape, device="meta")[key]  # torch's own errors, before anything is read
    return tensor[key].materialize(device, framework="torch")


def _host_part(tensor: LazyTensor, key: Any, *, owned: bool) -> Any:
    import torch

    # A view of bools would read all of them, to check that they are 0 or 1.
    if not owned and tensor.dtype != "bool":
        try:
            return tensor.materialize(framework="torch", copy=False)[key]
        except BufferError:
            pass  # no view of it exists: compressed, big-endian, unaligned
    if not _is_basic(key):
        return tensor.materialize(framework="torch", copy=True if owned else None)[key]
    torch.empty(tensor.shape, device="meta")[key]  # torch's own errors, before anything is read
    part = tensor[key]
    return part.materialize(framework="torch", copy=True if owned else None)


def _is_basic(key: Any) -> bool:
    """Whether the key is basic indexing, which a lazy tensor supports; torch takes several ellipses and bools as ends, too."""
    items = _items(key)
    ends = (end for item in items if isinstance(item, slice) for end in (item.start, item.stop, item.step))
    is_basic = all(item is None or isinstance(item, (slice, EllipsisType)) or _is_int(item) for item in items)
    return is_basic and sum(item is ... for item in items) < 2 and not any(type(end) is bool for end in ends)


def _is_int(item: Any) -> bool:
    """Whether the item is an int or a scalar with `__index__`; a bool is a mask."""
    is_bool = isinstance(item, bool) or "bool" in str(getattr(item, "dtype", ""))
    is_array = type(item).__name__ == "ndarray"
    return hasattr(item, "__index__") and not (is_bool or is_array) and getattr(item, "ndim", 0) == 0


def _items(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def reference_key(key: Any, shape: tuple[int, ...]) -> Key:
    """Converts a key that the reference accepts for NumPy to ints and slices within bounds; raises the reference's error.

    Unlike the reference, it accepts empty ranges in a dimension of size 0, and treats a range whose stop is below its start as
    empty.
    """
    items = _expanded(key, len(shape))
    resolved = [_from_start(item, dim, shape) for dim, item in enumerate(items)]
    if len(resolved) > len(shape):
        raise _out_of_bounds(resolved, shape, "more slicing indexes than dimensions in tensor")
    for dim in reversed(range(len(resolved))):
        _check_bounds(resolved, dim, shape)
    return tuple(
        slice(item.start, max(item.start or 0, item.stop), item.step)
        if isinstance(item, slice) and item.stop is not None
        else item
        for item in resolved
    )


def _expanded(key: Any, ndim: int) -> list[Item]:
    """The items of the key, with an expanded ellipsis."""
    if isinstance(key, list):
        if key:
            raise _safetensor_error("Non empty lists are not implemented")
        return [slice(0, 0)]
    items = _items(key)
    ellipses = sum(item is ... for item in items)
    if ellipses > 1:
        raise _safetensor_error("Only one ellipsis (...) is allowed in slice index")
    out: list[Item] = []
    for item in items:
        if item is ...:
            out += [slice(None)] * max(0, ndim - len(items) + 1)
        elif isinstance(item, slice):
            out.append(slice(_bound(item.start), _bound(item.stop), _step(item.step)))
        else:
            out.append(_integer(item, len(out)))
    return out


def _integer(item: Any, position: int) -> int:
    try:
        number = operator.index(item)
    except TypeError:
        number = 1 << 31
    if not -(1 << 31) <= number < 1 << 31:
        text = f"Unsupported slice index at position {position}: expected slice, int, or ellipsis"
        raise _safetensor_error(text)
    return number


def _bound(bound: Any) -> int | None:
    if bound is None:
        return None
    number = operator.index(bound)
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if number >= 1 << 64:
        raise OverflowError("int too big to convert")
    return number


def _step(step: Any) -> int | None:
    if step is None:
        return None
    number = operator.index(step)
    if not -(1 << 63) <= number < 1 << 63:
        raise OverflowError("Python int too large to convert to C long")
    if number < 1:
        raise _safetensor_error(f"Slice step must be a positive integer, got {number}")
    return number


def _from_start(item: Item, dim: int, shape: tuple[int, ...]) -> Item:
    if isinstance(item, slice) or item >= 0:
        return item
    size = shape[dim] if dim < len(shape) else 0
    if item + size < 0:
        raise _safetensor_error(f"Invalid index {item} for dimension {dim} of size {size}")
    return item + size


def _check_bounds(items: Sequence[Item], dim: int, shape: tuple[int, ...]) -> None:
    item, size = items[dim], shape[dim]
    if not isinstance(item, slice):
        beyond = item if item >= size else None
    elif size == 0:
        start = item.start or 0
        beyond = start if start or item.stop else None
    else:
        start, stop = item.start or 0, size if item.stop is None else item.stop
        beyond = start if start >= size else stop - 1 if stop > size else None
    if beyond is not None:
        what = f"index {beyond} out of bounds for tensor dimension #{dim} of size {size}"
        raise _out_of_bounds(items, shape, what)


def _out_of_bounds(items: Sequence[Item], shape: tuple[int, ...], what: str) -> Exception:
    indices = ", ".join(_format_item(item) for item in items)
    return _safetensor_error(f"Error during slicing [{indices}] with shape {list(shape)}: {what}")


def _format_item(item: Item) -> str:
    if not isinstance(item, slice):
        return str(item)
    start, stop = ("" if bound is None else str(bound) for bound in (item.start, item.stop))
    step = "" if item.step in (None, 1) else f":{item.step}"
    return f"{start}:{stop}{step}"
