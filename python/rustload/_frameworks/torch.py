"""Framework "torch": results are `torch.Tensor`.

All views of one storage of the file share one `UntypedStorage`, so tied tensors stay tied; their strides and offsets are those in
the file. An owned result has its own storage.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.dlpack

from rustload import _rustload
from rustload._common.request import request_for_out
from rustload._frameworks.adapters import check_copy
from rustload._frameworks.torch_dtypes import IN_DLPACK
from rustload._frameworks.torch_dtypes import torch_dtype as torch_dtype
from rustload.errors import _error

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rustload._common.request import Cast, Core, Request
    from rustload._cuda.gpu import Gpu
    from rustload._frameworks.adapters import HandleContext


COPIES_VIEWS = False
HAS_READ_ONLY = False

_CPU = torch.device("cpu")
"""Named where a tensor is made, as the program may have another default device."""


def check_device(device: Any) -> torch.device | None:
    """Converts `device=` to a `torch.device`, with an index for a GPU; None for the CPU.

    Raises:
        DeviceError: torch does not have the device.
        TypeError: It is not a device, but a dtype, for example.
    """
    if device is None:
        return None
    try:
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except TypeError:
        note = "pass a dtype as dtype=" if isinstance(device, torch.dtype) else None
        text = f"is a device such as 'cpu' or 'cuda:0', not {device!r}"
        raise _error("Type", text, note, argument="device") from None
    except RuntimeError as error:
        is_dtype = isinstance(getattr(torch, str(device), None), torch.dtype)
        note = f"pass a dtype as dtype={device!r}" if is_dtype else None
        raise _error("Device", f"torch knows no device {device!r}", note) from error
    if found.type == "cpu":
        return None
    if found.type != "cuda":
        return _checked(found)
    from rustload._frameworks.torch_gpu import checked  # a process that uses no GPU does not import it

    return checked(found)


def _checked(device: torch.device) -> torch.device:
    """Checks a device that is neither CPU nor CUDA by creating a tensor on it, because torch has no common test for them.

    Raises:
        DeviceError: Creating the tensor failed; the error of torch is the cause.
    """
    try:
        torch.empty(0, device=_CPU).to(device)
    except Exception as error:
        message = str(error).partition("\n")[0]
        note = (
            f"torch {torch.__version__} says: {message}; use device='cpu', or a torch that was built for it"
        )
        raise _error("Device", f"device {str(device)!r} is not available", note) from error
    return device


def gpu_for(device: torch.device | None) -> Gpu | None:
    """The GPU; None for other devices. AMD GPUs, which torch calls "cuda" too, are used where the user names HIP's library."""
    if device is None or device.type != "cuda":
        return None
    if torch.version.hip is not None and not os.environ.get("RUSTLOAD_LIBCUDA"):
        return None
    from rustload._frameworks.torch_gpu import TorchGpu

    return TorchGpu(device)


def make(core: Core, request: Request, device: torch.device | None, context: HandleContext) -> torch.Tensor:
    """Materializes a tensor: without conversion, on the storage that tied names share; otherwise with its own storage."""
    if _is_meta(core):
        return _meta(core, request)
    converted = request.transpose not in (None, False) or request.dtype not in (None, core.dtype)
    converted = converted or (request.dequantize and core.is_quantized)
    made = None if converted or request.copy is True else _on_shared_storage(core, request, context)
    if made is None:
        # copy=False gets here only with a conversion, for which the core raises BufferError.
        copy = request.copy is not False
        made = _owned(core.materialize(request.but(copy=copy)))
        return made if device is None else made.to(device)
    if device is None:
        return made
    check_copy(core)
    return made.to(device)


def fast_view(core: Core, context: HandleContext) -> torch.Tensor | None:
    """A view by DLPack, in half the time of `make`, for a tensor that fills its storage; None for others.

    Other names of the same storage share the storage of this tensor: it is registered in `context.storages`.
    """
    if not isinstance(core, _rustload.Tensor) or core.dtype not in IN_DLPACK:
        return None
    found = core.lone_view(context.mappings)
    if found is None:
        return None
    # torch.utils.dlpack.from_dlpack calls this, after looking for attributes that a capsule does not have.
    made = torch._C._from_dlpack(found[1])
    storage = made.untyped_storage()
    # Where another view of the storage lives, `make` takes its storage: two threads may get here at once.
    return made if context.storages.setdefault((*found[0], "view"), storage) is storage else None


def wrap(buffer: _rustload.Buffer, device: torch.device | None) -> torch.Tensor:
    """A tensor that shares the buffer's memory and keeps it alive; on another device than the CPU, a copy."""
    made = _owned(buffer)
    return made if device is None else made.to(device)


def write_into(core: Core, out: Any, request: Request, *, cast: Cast, sync: bool) -> bool:
    """Materializes into a tensor: directly if it is contiguous on the CPU, or on a GPU; otherwise through a temporary tensor."""
    if not isinstance(out, torch.Tensor):
        return False
    if out.device.type == "meta":
        raise _error("Device", "is on the meta device, which has no memory to write to", argument="out")
    request = request_for_out(core, str(out.dtype), tuple(out.shape), request)
    target = out.detach()
    is_plain = not (target.is_conj() or target.is_neg())
    gpu = gpu_for(target.device) if is_plain else None
    if gpu is not None:
        from rustload._cuda import results

        results.fill(core, request, target, gpu, cast=cast, sync=sync)
        torch.autograd.graph.increment_version(out)
    elif target.device.type == "cpu" and target.is_contiguous() and is_plain:
        memory = target.as_strided((target.numel(),), (1,)).view(torch.uint8)
        core.materialize_into(request, memory.__dlpack__())
        torch.autograd.graph.increment_version(out)  # the version counter: autograd must see the write
    else:
        with torch.no_grad():
            out.copy_(_owned(core.materialize(request)))
    return True


def sparse(
    layout: str, shape: tuple[int, ...], parts: Sequence[torch.Tensor], *, is_coalesced: bool | None
) -> torch.Tensor:
    """Creates a sparse tensor from parts whose invariants are checked already, in the order of torch's constructors."""
    untyped: Any = torch  # its stubs lack some arguments
    made: torch.Tensor
    if layout == "sparse_coo":
        made = untyped.sparse_coo_tensor(
            *parts, shape, is_coalesced=is_coalesced, check_invariants=False, device=parts[0].device
        )
        return made
    with warnings.catch_warnings():
        # That compressed layouts are in beta.
        warnings.filterwarnings("ignore", "Sparse ", UserWarning)
        made = untyped.sparse_compressed_tensor(
            *parts, shape, layout=getattr(torch, layout), check_invariants=False, device=parts[0].device
        )
    return made


def _is_meta(core: Core) -> bool:
    """Whether the tensor, or a part of a joined one, is a meta tensor, without elements in its file."""
    if isinstance(core, _rustload.Tensor):
        return core.is_meta
    return any(part.is_meta for part in core.parts())


def _meta(core: Core, request: Request) -> torch.Tensor:
    dtype = torch_dtype(core.dtype)
    if isinstance(core, _rustload.Tensor):
        made = torch.empty_strided(core.shape, core.strides, dtype=dtype, device="meta")
    else:
        made = torch.empty(core.shape, dtype=dtype, device="meta")
    if request.transpose not in (None, False):
        made = made.mT if request.transpose is True else made.permute(request.transpose)
        made = made.contiguous()
    return made if request.dtype is None else made.to(torch_dtype(request.dtype))


def _on_shared_storage(core: Core, request: Request, context: HandleContext) -> torch.Tensor | None:
    """A tensor on the `UntypedStorage` that all names of its storage share; None if its elements have to be copied separately."""
    kind = core.shared_storage(request.copy)
    if kind is None or not isinstance(core, _rustload.Tensor):
        return None  # a joined tensor shares no storage
    storages = context.storages
    kind_of_view = kind if request.writable else f"read-only {kind}"
    key = (core.checkpoint.serial, *core.storage, kind_of_view)
    storage: torch.UntypedStorage | None = storages.get(key)
    if storage is None:
        # setdefault: if two threads get here at once, both must use the same storage.
        storage = storages.setdefault(key, _storage(core.storage_bytes(kind, request)))
    offset = core.offset if core.size else 0
    made = torch.empty(0, dtype=torch_dtype(core.dtype), device=_CPU)
    return made.set_(storage, offset, core.shape, core.strides)


def _owned(buffer: _rustload.Buffer) -> torch.Tensor:
    if buffer.dtype in IN_DLPACK:
        # Passing the capsule takes half the time of passing the buffer, whose `__dlpack__` torch would call.
        return torch.utils.dlpack.from_dlpack(buffer.__dlpack__())
    return torch.empty(0, dtype=torch_dtype(buffer.dtype), device=_CPU).set_(
        _storage(buffer), 0, buffer.shape, buffer.strides
    )


def _storage(buffer: _rustload.Buffer) -> torch.UntypedStorage:
    memory: torch.Tensor = torch.from_dlpack(buffer.as_bytes())  # type: ignore[attr-defined]  # exported, not declared
    storage: torch.UntypedStorage = memory.untyped_storage()
    return storage
