"""Framework "torch": results are `torch.Tensor`.

A view is set on one byte-typed torch storage per storage of the file, so that tied tensors stay tied, and strides and offsets
are the file's. An owned result is a storage of its own.
"""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack

from rustload._cuda import _results, _torch
from rustload._frameworks._torch_dtypes import IN_DLPACK
from rustload._frameworks._torch_dtypes import torch_dtype as torch_dtype
from rustload.errors import _make

if TYPE_CHECKING:
    from rustload import _rustload
    from rustload._cast import Cast
    from rustload._cuda._place import Place
    from rustload._inert import Sparse
    from rustload._tensor import LazyTensor, Wanted


def check_device(device: Any) -> torch.device | None:
    """The device as torch has it, a GPU with its number; None for the CPU.

    Raises:
        DeviceError: torch sees no such device.
    """
    if device is None:
        return None
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except RuntimeError as error:
        raise _make("Device", "Device", f"torch knows no device {device!r}") from error
    if found.type == "cpu":
        return None
    return _torch.checked(found) if found.type == "cuda" else _checked(found)


def _checked(device: torch.device) -> torch.device:
    """A device of another maker, after something was made there: no function of torch's answers for all of them.

    Raises:
        DeviceError: torch cannot; what it says, in whichever class of its own, is the cause.
    """
    try:
        torch.empty(0).to(device)
    except Exception as error:
        said = str(error).partition("\n")[0]
        note = f"torch {torch.__version__} says: {said}; use device='cpu', or a torch that was built for it"
        raise _make("Device", "Device", f"device {str(device)!r} is not available", note) from error
    return device


def place(device: torch.device | None) -> Place | None:
    """The GPU to upload to; None for other devices, and for a torch that calls another maker's GPUs "cuda"."""
    if device is None or device.type != "cuda" or torch.version.hip is not None:
        return None
    return _torch.Place(device)


def make(tensor: LazyTensor, wanted: Wanted, device: torch.device | None) -> torch.Tensor:
    """The tensor as asked for: on the storage that its names share where nothing is converted, on one of its own otherwise."""
    if tensor.is_meta:
        return _meta(tensor, wanted)
    converted = wanted.transpose not in (None, False) or wanted.dtype not in (None, tensor.dtype)
    made = None if converted or wanted.copy is True else _on_shared_storage(tensor, wanted)
    if made is None:
        # copy=False comes here only with a conversion, which the core refuses.
        copy = wanted.copy is not False
        made = _owned(tensor._core.materialize(dataclasses.replace(wanted, copy=copy)))
    return made if device is None else made.to(device)


def wrap(buffer: _rustload.Buffer, device: torch.device | None) -> torch.Tensor:
    """A tensor over the buffer's memory, keeping it alive; on another device, a copy of it."""
    made = _owned(buffer)
    return made if device is None else made.to(device)


def into(tensor: LazyTensor, out: Any, wanted: Wanted, *, cast: Cast, sync: bool) -> bool:
    """Writes into a tensor; straight into its memory where that is contiguous and on the CPU or a GPU."""
    if not isinstance(out, torch.Tensor):
        return False
    if out.device.type == "meta":
        raise _make("Device", "Device", "out= is on the meta device, which has no memory to write to")
    wanted = tensor._wanted_for(str(out.dtype), tuple(out.shape), wanted)
    target = out.detach()
    is_plain = not (target.is_conj() or target.is_neg())
    gpu = place(target.device) if is_plain else None
    if gpu is not None:
        _results.filled(tensor, wanted, target, gpu, cast=cast, sync=sync)
        torch.autograd.graph.increment_version(out)
    elif target.device.type == "cpu" and target.is_contiguous() and is_plain:
        row = target.as_strided((target.numel(),), (1,)).view(torch.uint8)
        tensor._core.materialize_into(wanted, row.__dlpack__())
        torch.autograd.graph.increment_version(out)  # autograd must know that saved values are gone
    else:
        with torch.no_grad():
            out.copy_(_owned(tensor._core.materialize(wanted)))
    return True


def sparse(given: Sparse) -> torch.Tensor:
    """The sparse tensor of parts that were checked; indices are copies, so that they stay what was checked."""
    parts = [
        part.materialize(framework="torch", copy=name != "values" or None)
        for name, part in given.parts.items()
    ]
    untyped: Any = torch  # its stubs have other arguments
    made: torch.Tensor
    if given.layout == "sparse_coo":
        made = untyped.sparse_coo_tensor(*parts, given.shape, check_invariants=False)
        return made._coalesced_(bool(given.is_coalesced))
    layout = getattr(torch, given.layout)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse ", UserWarning)  # that compressed layouts are in beta
        made = untyped.sparse_compressed_tensor(*parts, given.shape, layout=layout, check_invariants=False)
    return made


def _meta(tensor: LazyTensor, wanted: Wanted) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.strides, dtype=torch_dtype(tensor.dtype), device="meta")
    if wanted.transpose not in (None, False):
        made = made.mT if wanted.transpose is True else made.permute(wanted.transpose)
        made = made.contiguous()
    return made if wanted.dtype is None else made.to(torch_dtype(wanted.dtype))


def _on_shared_storage(tensor: LazyTensor, wanted: Wanted) -> torch.Tensor | None:
    """The tensor on the one torch storage of its storage in the file; None where its elements must be copied by themselves."""
    standing = tensor._core.standing(wanted.copy)
    if standing is None:
        return None
    storages = tensor._shared.storages
    key = (*tensor._core.storage, standing)
    storage: torch.UntypedStorage | None = storages.get(key)
    if storage is None:
        # setdefault: of two threads that come here at once, both must go on with the same storage.
        storage = storages.setdefault(key, _storage(tensor._core.storage_bytes(standing, wanted)))
    offset = tensor._core.offset if tensor.size else 0
    return torch.empty(0, dtype=torch_dtype(tensor.dtype)).set_(storage, offset, tensor.shape, tensor.strides)


def _owned(buffer: _rustload.Buffer) -> torch.Tensor:
    if buffer.dtype in IN_DLPACK:
        # The capsule itself: half the time of an object that torch asks for one.
        return torch.utils.dlpack.from_dlpack(buffer.__dlpack__())
    return torch.empty(0, dtype=torch_dtype(buffer.dtype)).set_(
        _storage(buffer), 0, buffer.shape, buffer.strides
    )


def _storage(buffer: _rustload.Buffer) -> torch.UntypedStorage:
    row: torch.Tensor = torch.from_dlpack(buffer.as_bytes())  # type: ignore[attr-defined]  # exported, not declared
    storage: torch.UntypedStorage = row.untyped_storage()
    return storage
