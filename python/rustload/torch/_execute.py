"""The steps of a plan, done: ahead where the result is new memory or a GPU's, in place or through windows elsewhere."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

from rustload._checkpoint.makers import maker_for
from rustload._common.request import Wanted
from rustload._frameworks import torch as adapter
from rustload._frameworks.torch import torch_dtype
from rustload.errors import _make
from rustload.torch._fill import fill, is_on_gpu, is_straight
from rustload.torch._hooks import Made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rustload._tensor.handle import LazyTensor
    from rustload.torch._plan import Step, Wish

__all__ = ["done_steps"]


def done_steps(steps: Sequence[Step], wish: Wish, held: Callable[[], None]) -> Iterator[Step]:
    """Does every step and gives it when it is done.

    Args:
        steps: What to do.
        wish: How.
        held: Called when the most host memory is held.

    Raises:
        FormatError: The file was cut or changed meanwhile; what was done before stays done. Other errors of reading likewise.
        ValueError: Tied parameters have different values in the file.
    """
    ahead: dict[tuple[torch.device, bool], list[Step]] = {}
    rest = []
    for step in steps:
        if _is_read_ahead(step):
            ahead.setdefault((step.device, step.is_new), []).append(step)
        else:
            rest.append(step)
    for (device, _), some in ahead.items():
        for step, data in _read_ahead(some, wish, device if is_on_gpu(device) else None):
            _give(step, data, wish)
            yield step
    for step in rest:
        _put(step, wish, held)
        yield step


def _is_read_ahead(step: Step) -> bool:
    """Whether the result is memory of the host that the core makes, or memory of a GPU."""
    made = isinstance(step.lazy, Made)
    if is_on_gpu(step.device):
        return not (step.is_lazy or made) and (step.is_new or is_straight(step.slot.tensor))
    return step.is_new and step.device.type == "cpu" and not step.is_lazy and not made


def _read_ahead(
    steps: Sequence[Step], wish: Wish, gpu: torch.device | None
) -> Iterator[tuple[Step, torch.Tensor]]:
    """The tensors of the steps in the file's order, made by the core's workers while the last one is taken.

    The steps are all new, or none is; then they are in the memory of a GPU.
    """
    wanted = [
        Wanted(
            dtype=step.dtype,
            copy=step.copy if gpu is None else True,
            allow_lossy=wish.allow_lossy,
            mappings=step.lazy._shared.mappings,
        )
        for step in steps
    ]
    maker = maker_for(
        [step.lazy for step in steps],
        wanted,
        list(range(len(steps))),
        adapter,
        gpu,
        by_file=True,
        window=wish.window,
        ahead=wish.window,
        threads=None,
        standing=True,
        whole=True,
        into=None if steps[0].is_new else [step.slot.tensor.detach() for step in steps],
    )
    with contextlib.closing(maker):
        for index in maker.order:
            data = maker.next()
            if data is not None:
                yield steps[index], data


def _give(step: Step, data: torch.Tensor, wish: Wish) -> None:
    """Makes `data` the model's."""
    slot = step.slot
    if not step.is_new:
        torch.autograd.graph.increment_version(slot.tensor)  # it was written in place
    elif slot.on_meta or wish.assign is True:
        made = slot.parameter(data)
        for one in (slot, *step.also):
            one.assign(made)
    else:
        # The parameter stays the same object, so that an optimizer that has it still does.
        slot.tensor.data = data
        slot.tensor.grad = None
    _compare(step, wish)


def _put(step: Step, wish: Wish, held: Callable[[], None]) -> None:
    """Reads one tensor into memory that is there, or was made for it on its device."""
    slot = step.slot
    dtype = torch_dtype(step.dtype)
    if step.is_lazy:
        # What is on meta stays there: a tensor cannot change to another kind of device, so it is replaced below.
        place = "meta" if slot.on_meta else step.device
        slot.tensor.materialize(step.lazy.shape, device=place, dtype=dtype)  # type: ignore[attr-defined]  # a lazy parameter has it
    if step.is_new and (slot.on_meta or not step.is_lazy):
        made = torch.empty(step.lazy.shape, dtype=dtype, device=step.device)
        _fill(made, step.lazy, wish, held)
        _give(step, made, wish)
        return
    _fill(slot.tensor.detach(), step.lazy, wish, held)
    _compare(step, wish)


def _compare(step: Step, wish: Wish) -> None:
    """Other tensors of the file for the same place must be equal."""
    for other in step.others:
        if not _is_equal(step.slot.tensor.detach(), other, wish):
            both = f"{step.lazy.name!r} and {other.name!r}"
            note = "untie them in the model, or leave one out with rename={...: None}"
            raise _make(
                "Value", "ModelMismatch", f"{both} differ in the file and are one tensor in the model", note
            )


def _fill(target: torch.Tensor, lazy: LazyTensor, wish: Wish, held: Callable[[], None]) -> None:
    fill(target, lazy, wish.window, allow_lossy=wish.allow_lossy, held=held)


def _is_equal(filled: torch.Tensor, lazy: LazyTensor, wish: Wish) -> bool:
    """Whether what was loaded is also what `lazy` has, looked at in windows. NaN counts as equal to itself."""
    if not filled.ndim:
        filled, lazy = filled[None], lazy[None]
    nbytes = filled.numel() * filled.dtype.itemsize
    rows = max(1, min(wish.window, 16 << 20) * filled.shape[0] // max(nbytes, 1))
    for first in range(0, filled.shape[0], rows):
        part = slice(first, first + rows)
        other = lazy[part].materialize(dtype=filled.dtype, framework="torch", allow_lossy=wish.allow_lossy)
        mine = filled[part]
        other = other.to(mine.device)
        if not torch.equal(mine, other) and not bool(
            ((mine == other) | ((mine != mine) & (other != other))).all()
        ):
            return False
    return True
