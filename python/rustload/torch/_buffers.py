"""Lets a model on the meta device make its non-persistent buffers, such as rotary frequencies, which no file has.

Two conventions say how: `initialize_weights` of transformers' models, and torch's `reset_parameters`. Both initialize weights
too, so all other tensors are out of their reach meanwhile: they are replaced by stand-ins on the meta device.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import torch

from rustload.errors import _printable
from rustload.torch._shards import local_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rustload.torch._slots import Slot


def make_buffers(
    model: torch.nn.Module, slots: Sequence[Slot], device_of: Callable[[Slot], torch.device | None]
) -> list[str]:
    """Runs the model's own initialization for non-persistent buffers that are on meta; those it does not write stay there.

    No other tensor of the model changes, nor does the state of random number generators.

    Returns:
        A note if that code failed.
    """
    waiting = [slot for slot in slots if slot.on_meta and not slot.persistent]
    if not waiting:
        return []
    notes = []
    unmade = [slot.tensor for slot in waiting]
    others = (slot for slot in slots if slot.persistent or not slot.on_meta)
    with _out_of_reach(others), torch.random.fork_rng(devices=[]):
        for slot in waiting:
            target = device_of(slot) or torch.device("cpu")
            slot.assign(slot.parameter(torch.empty_like(local_tensor(slot.tensor), device=target)))
        empty = [(slot.tensor, slot.tensor._version) for slot in waiting]
        try:
            _initialize(model, waiting)
        except Exception as error:  # noqa: BLE001 - code of the model, which need not work for a part of its tensors
            notes.append(
                f"the initialization of {type(model).__qualname__} failed: {_printable(repr(error))}"
            )
        values = [module._buffers.get(name) for module, name in (slot.owners[0] for slot in waiting)]
    for slot, before, (made, version), now in zip(waiting, unmade, empty, values, strict=True):
        # What was not written, or not to the end, has no value.
        is_unmade = notes or now is None or (now is made and now._version == version)
        slot.assign(before if is_unmade or now is None else now)
    return notes


def is_of_transformers(module: torch.nn.Module) -> bool:
    """Whether the module is a model of transformers, which is not imported for it."""
    kind = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return kind is not None and isinstance(module, kind)


def _initialize(model: torch.nn.Module, waiting: Iterable[Slot]) -> None:
    for module, _ in (owner for slot in waiting for owner in slot.owners):
        if callable(getattr(module, "reset_parameters", None)):
            module.reset_parameters()  # type: ignore[operator]
    roots: list[Any] = [module for module in model.modules() if is_of_transformers(module)]
    for module in (inner for root in roots for inner in root.modules()):
        module._is_hf_initialized = False  # it was: its constructor initialized tensors on meta
    for root in roots:
        root.initialize_weights()


@contextlib.contextmanager
def _out_of_reach(slots: Iterable[Slot]) -> Iterator[None]:
    """Replaces tensors by stand-ins on the meta device that transformers takes for initialized."""
    held = [(slot, slot.tensor) for slot in slots if not torch.nn.parameter.is_lazy(slot.tensor)]
    try:
        for slot, tensor in held:
            stand_in = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
            if slot.is_parameter:
                stand_in = torch.nn.Parameter(stand_in, requires_grad=tensor.requires_grad)
            stand_in._is_hf_initialized = True  # type: ignore[attr-defined]
            slot.assign(stand_in)
        yield
    finally:
        for slot, tensor in held:
            slot.assign(tensor)
