"""Framework "torch": results are `torch.Tensor`.

A view is set on one byte-typed torch storage per storage of the file, so that tied tensors stay tied, and strides and offsets
are the file's. An owned result is a storage of its own.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack

from rustload import _rustload
from rustload._common.request import wanted_for
from rustload._cuda import results
from rustload._frameworks import torch_gpu
from rustload._frameworks.torch_dtypes import IN_DLPACK
from rustload._frameworks.torch_dtypes import torch_dtype as torch_dtype
from rustload.errors import _make

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rustload._common.request import Cast, Core, Wanted
    from rustload._cuda.place import Place
    from rustload._frameworks.adapters import Shared


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
    return torch_gpu.checked(found) if found.type == "cuda" else _checked(found)


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
    return torch_gpu.Place(device)


def make(core: Core, wanted: Wanted, device: torch.device | None, shared: Shared) -> torch.Tensor:
    """The tensor as asked for: on the storage that its names share where nothing is converted, on one of its own otherwise."""
    if _is_meta(core):
        return _meta(core, wanted)
    converted = wanted.transpose not in (None, False) or wanted.dtype not in (None, core.dtype)
    made = None if converted or wanted.copy is True else _on_shared_storage(core, wanted, shared)
    if made is None:
        # copy=False comes here only with a conversion, which the core refuses.
        copy = wanted.copy is not False
        made = _owned(core.materialize(wanted.but(copy=copy)))
    return made if device is None else made.to(device)


def view(core: Core, shared: Shared) -> torch.Tensor | None:
    """A tensor that is all of its storage comes by DLPack, in half the time; others come to stand on the storage that it has."""
    if not isinstance(core, _rustload.Tensor) or core.dtype not in IN_DLPACK:
        return None
    found = core.lone_view(shared.mappings)
    if found is None:
        return None
    key = (*found[0], "view")
    if key in shared.storages:
        return None
    # What torch.utils.dlpack.from_dlpack calls, after it has asked the capsule for attributes that capsules have not.
    made = torch._C._from_dlpack(found[1])
    storage = made.untyped_storage()
    # setdefault: as below.
    return made if shared.storages.setdefault(key, storage) is storage else None


def wrap(buffer: _rustload.Buffer, device: torch.device | None) -> torch.Tensor:
    """A tensor over the buffer's memory, keeping it alive; on another device, a copy of it."""
    made = _owned(buffer)
    return made if device is None else made.to(device)


def into(core: Core, out: Any, wanted: Wanted, *, cast: Cast, sync: bool) -> bool:
    """Writes into a tensor; straight into its memory where that is contiguous and on the CPU or a GPU."""
    if not isinstance(out, torch.Tensor):
        return False
    if out.device.type == "meta":
        raise _make("Device", "Device", "out= is on the meta device, which has no memory to write to")
    wanted = wanted_for(core, str(out.dtype), tuple(out.shape), wanted)
    target = out.detach()
    is_plain = not (target.is_conj() or target.is_neg())
    gpu = place(target.device) if is_plain else None
    if gpu is not None:
        results.filled(core, wanted, target, gpu, cast=cast, sync=sync)
        torch.autograd.graph.increment_version(out)
    elif target.device.type == "cpu" and target.is_contiguous() and is_plain:
        row = target.as_strided((target.numel(),), (1,)).view(torch.uint8)
        core.materialize_into(wanted, row.__dlpack__())
        torch.autograd.graph.increment_version(out)  # autograd must know that saved values are gone
    else:
        with torch.no_grad():
            out.copy_(_owned(core.materialize(wanted)))
    return True


def sparse(
    layout: str, shape: tuple[int, ...], parts: Sequence[torch.Tensor], *, is_coalesced: bool | None
) -> torch.Tensor:
    """The sparse tensor of parts that were checked, in the order of torch's own functions."""
    untyped: Any = torch  # its stubs have other arguments
    made: torch.Tensor
    if layout == "sparse_coo":
        made = untyped.sparse_coo_tensor(*parts, shape, check_invariants=False)
        return made._coalesced_(bool(is_coalesced))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse ", UserWarning)  # that compressed layouts are in beta
        made = untyped.sparse_compressed_tensor(
            *parts, shape, layout=getattr(torch, layout), check_invariants=False
        )
    return made


def _is_meta(core: Core) -> bool:
    """Whether it has no elements in its file, or a part of it has not."""
    if isinstance(core, _rustload.Tensor):
        return core.is_meta
    return any(part.is_meta for part in core.parts())


def _meta(core: Core, wanted: Wanted) -> torch.Tensor:
    dtype = torch_dtype(core.dtype)
    if isinstance(core, _rustload.Tensor):
        made = torch.empty_strided(core.shape, core.strides, dtype=dtype, device="meta")
    else:
        made = torch.empty(core.shape, dtype=dtype, device="meta")
    if wanted.transpose not in (None, False):
        made = made.mT if wanted.transpose is True else made.permute(wanted.transpose)
        made = made.contiguous()
    return made if wanted.dtype is None else made.to(torch_dtype(wanted.dtype))


def _on_shared_storage(core: Core, wanted: Wanted, shared: Shared) -> torch.Tensor | None:
    """The tensor on the one torch storage of its storage in the file; None where its elements must be copied by themselves."""
    standing = core.shared_storage(wanted.copy)
    if standing is None or not isinstance(core, _rustload.Tensor):
        return None  # joined tensors stand on no storage
    storages = shared.storages
    key = (*core.storage, standing)
    storage: torch.UntypedStorage | None = storages.get(key)
    if storage is None:
        # setdefault: of two threads that come here at once, both must go on with the same storage.
        storage = storages.setdefault(key, _storage(core.storage_bytes(standing, wanted)))
    offset = core.offset if core.size else 0
    return torch.empty(0, dtype=torch_dtype(core.dtype)).set_(storage, offset, core.shape, core.strides)


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
