"""Framework "torch": results are `torch.Tensor`.

A view is set on one byte-typed torch storage per storage of the file, so that tied tensors stay tied, and strides and offsets
are the file's. An owned result is a storage of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rustload.errors import _make

if TYPE_CHECKING:
    from rustload import _rustload
    from rustload._tensor import LazyTensor, Wanted


def check_device(device: Any) -> torch.device | None:
    """The device as torch has it; None for the CPU.

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
    if found.type == "cuda":
        if not torch.cuda.is_available():
            built = "was built without CUDA" if torch.version.cuda is None else "sees no GPU"
            note = f"torch {torch.__version__} {built}; use device='cpu', or install a CUDA build and driver"
            raise _make("Device", "Device", f"device {str(found)!r} is not available", note)
        count = torch.cuda.device_count()
        if found.index is not None and found.index >= count:  # type: ignore[redundant-expr]  # None without a number
            raise _make(
                "Device", "Device", f"device {str(found)!r} is not available: there are {count} GPU(s)"
            )
    return found


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype of that name.

    Raises:
        UnsupportedError: The installed torch has none.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise _make(
            "Unsupported", "DtypeUnsupported", f"torch {torch.__version__} has no {name}", "use a newer torch"
        )
    return found


def make(tensor: LazyTensor, buffer: _rustload.Buffer, device: torch.device | None) -> torch.Tensor:
    """A tensor over the buffer's memory, or a copy of it on another device."""
    empty = torch.empty(0, dtype=torch_dtype(buffer.dtype))
    if buffer.is_view:
        storage = _storage(tensor)
        made = empty.set_(storage, tensor._core.offset if tensor.size else 0, buffer.shape, buffer.strides)
    else:
        made = empty.set_(_bytes(buffer), 0, buffer.shape, buffer.strides)
    return made if device is None else made.to(device)


def into(tensor: LazyTensor, out: Any, wanted: Wanted) -> bool:
    """Writes into a tensor; straight into its memory where that is contiguous and on the CPU."""
    if not isinstance(out, torch.Tensor):
        return False
    wanted = tensor._wanted_for(str(out.dtype), tuple(out.shape), wanted)
    out = out.detach()
    if out.device.type == "cpu" and out.is_contiguous() and not (out.is_conj() or out.is_neg()):
        flat = out.reshape(-1).view(torch.uint8)
        tensor._core.materialize_into(wanted, flat.__dlpack__())
    else:
        out.copy_(make(tensor, tensor._core.materialize(wanted), None))
    return True


def _bytes(buffer: _rustload.Buffer) -> torch.UntypedStorage:
    row: torch.Tensor = torch.from_dlpack(buffer.as_bytes())  # type: ignore[attr-defined]  # exported, not declared
    storage: torch.UntypedStorage = row.untyped_storage()
    return storage


def _storage(tensor: LazyTensor) -> torch.UntypedStorage:
    """The one torch storage of the tensor's storage in the file."""
    storages = tensor._shared.storages
    key = tensor._core.storage
    found: torch.UntypedStorage | None = storages.get(key)
    if found is None:
        # setdefault: of two threads that come here at once, both must go on with the same storage.
        found = storages.setdefault(key, _bytes(tensor._core.storage_view()))
    return found
