"""A lazy state dict that tells when its tensors are read, for progress of loads that others do."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from rustload.torch._handle import TorchHandle
from rustload.torch._state_dict import StateDict

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from rustload._common.progress import Report
    from rustload._tensor.handle import LazyTensor

__all__ = ["watched"]


class WatchedHandle(TorchHandle):
    """A handle that tells of every read, in bytes of the file."""

    __slots__ = ("_tell",)

    _tell: Callable[[LazyTensor], None]

    def _read(
        self, device: Any = None, dtype: str | None = None, *, copy: bool | None = None
    ) -> torch.Tensor:
        made = super()._read(device, dtype, copy=copy)
        self._tell(self._lazy)
        return made

    def _like(self, lazy: LazyTensor) -> WatchedHandle:
        return _handle(self, lazy, self._tell)


def _handle(like: TorchHandle, lazy: LazyTensor, tell: Callable[[LazyTensor], None]) -> WatchedHandle:
    made = WatchedHandle(lazy, like._dtype, like._device, like._views)
    made._tell = tell
    return made


def watched(state: StateDict, report: Report) -> StateDict:
    """The same state dict, whose handles report what is read; what is read again counts once.

    Args:
        state: What `state_dict` gave.
        report: As `reporting` gives it; it is called by one thread at a time.
    """
    left = {handle.lazy.name: handle.lazy.nbytes for handle in state.values()}
    lock = threading.Lock()

    def tell(part: LazyTensor) -> None:
        with lock:
            counted = min(part.nbytes, left[part.name])
            left[part.name] -= counted
            if counted:
                report(counted, part.name)

    made = StateDict((name, _handle(one, one.lazy, tell)) for name, one in state.items())
    made._versions = state._versions
    return made
