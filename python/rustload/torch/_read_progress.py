"""A lazy state dict that reports reads of its tensors: progress of a load that another library executes."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from rustload._common.sizes import same_tensor
from rustload.torch._handle import TorchHandle
from rustload.torch._state_dict import StateDict

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from rustload._common.progress import Report
    from rustload._tensor.handle import LazyTensor


class ProgressHandle(TorchHandle):
    """A handle that reports every read."""

    __slots__ = ("_report_read",)

    _report_read: Callable[[LazyTensor], None]

    def _read(
        self, device: Any = None, dtype: str | None = None, *, copy: bool | None = None
    ) -> torch.Tensor:
        made = super()._read(device, dtype, copy=copy)
        self._report_read(self._lazy)
        return made

    def _like(self, lazy: LazyTensor) -> ProgressHandle:
        return _handle(self, lazy, self._report_read)


def _handle(like: TorchHandle, lazy: LazyTensor, report_read: Callable[[LazyTensor], None]) -> ProgressHandle:
    made = ProgressHandle(lazy, like._dtype, like._device, like._views)
    made._report_read = report_read
    return made


def with_read_progress(state: StateDict, report: Report) -> StateDict:
    """Wraps the handles of a state dict so that they report reads; a tensor that is read again, or by a tied name, counts once.

    No thread waits for another one's report: the callback of the user may read tensors of the same state dict, or fork. One
    thread at a time calls `report`.
    """
    tensor_of = {handle.lazy.name: same_tensor(handle.lazy._core) for handle in state.values()}
    left = {tensor_of[handle.lazy.name]: handle.lazy.nbytes for handle in state.values()}
    unreported: deque[LazyTensor] = deque()
    reporter = threading.Lock()

    def report_read(part: LazyTensor) -> None:
        unreported.append(part)
        # One thread reports for all; the others go on. A read that is appended while the reporter leaves its loop finds the lock
        # taken, so the reporter looks once more after the release.
        while unreported and reporter.acquire(blocking=False):
            try:
                while unreported:
                    report_one(unreported.popleft())
            finally:
                reporter.release()

    def report_one(part: LazyTensor) -> None:
        tensor = tensor_of[part.name]
        counted = min(part.nbytes, left[tensor])
        left[tensor] -= counted
        if counted:
            report(counted, part.name)

    made = StateDict((name, _handle(one, one.lazy, report_read)) for name, one in state.items())
    made._module_versions = state._module_versions
    return made
